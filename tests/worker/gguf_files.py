"""Writes tiny GGUF files out of transformers models, the way converters do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf import GGMLQuantizationType, GGUFWriter, quants

_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "self_attn.qkv_proj": "attn_qkv",
    "mlp.gate_up_proj": "ffn_up",
}
_GEMMA_NAMES = {
    **_NAMES,
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}
_ARCHITECTURES = {"mistral": "llama", "gemma3_text": "gemma3"}


def gguf_name(name: str, architecture: str) -> str:
    """``model.layers.3.self_attn.q_proj.weight`` → ``blk.3.attn_q.weight``."""
    names = _GEMMA_NAMES if architecture.startswith("gemma") else _NAMES
    stem, _, kind = name.rpartition(".")
    if stem.startswith("model.layers."):
        layer, _, part = stem.removeprefix("model.layers.").partition(".")
        return f"blk.{layer}.{names[part]}.{kind}"
    return f"{names[stem]}.{kind}"


def interleave(rows: np.ndarray[Any, Any], heads: int) -> np.ndarray[Any, Any]:
    """Rows of rotate-half order as llama.cpp stores them: dimension d of a head beside d + D / 2."""
    out = np.empty_like(rows)
    size = len(rows) // heads
    for head in range(heads):
        for d in range(size // 2):
            out[head * size + 2 * d] = rows[head * size + d]
            out[head * size + 2 * d + 1] = rows[head * size + d + size // 2]
    return out


def write_gguf(
    path: Path,
    reference: Any,
    kind: GGMLQuantizationType = GGMLQuantizationType.F32,
    edit: Callable[[GGUFWriter], None] | None = None,
    drop: tuple[str, ...] = (),
    architecture: str = "",
    num_kv_heads: list[int] | None = None,
) -> None:
    """Writes a transformers model, matrices as `kind`. `edit` adds to the file, `drop` names tensors to
    leave out, `num_kv_heads` states them layer by layer.
    """
    config = reference.config
    architecture = architecture or _ARCHITECTURES.get(config.model_type, config.model_type)
    writer = GGUFWriter(path, architecture)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(num_kv_heads or config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    rope = config.rope_parameters
    writer.add_rope_freq_base(rope.get("full_attention", rope)["rope_theta"])
    if architecture in ("gemma2", "gemma3", "phi3"):
        writer.add_sliding_window(config.sliding_window or 0)
    if getattr(config, "attn_logit_softcapping", None) is not None:
        writer.add_attn_logit_softcapping(config.attn_logit_softcapping)
        writer.add_final_logit_softcapping(config.final_logit_softcapping)
    writer.add_token_list([f"<{token}>" for token in range(config.vocab_size)])
    head_dim = getattr(config, "head_dim", None)
    if head_dim is not None:
        writer.add_key_length(head_dim)
        writer.add_value_length(head_dim)
    if edit is not None:
        edit(writer)
    for name, tensor in reference.state_dict().items():
        if (name == "lm_head.weight" and config.tie_word_embeddings) or gguf_name(name, architecture) in drop:
            continue
        values = tensor.numpy()
        if architecture.startswith("gemma") and name.endswith("norm.weight"):
            values = values + 1
        if architecture == "llama" and "q_proj" in name:
            values = interleave(values, config.num_attention_heads)
        if architecture == "llama" and "k_proj" in name:
            values = interleave(values, config.num_key_value_heads)
        stored = kind if values.ndim == 2 else GGMLQuantizationType.F32
        writer.add_tensor(gguf_name(name, architecture), quants.quantize(values, stored), raw_dtype=stored)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def round_to(reference: Any, kind: GGMLQuantizationType) -> None:
    """Replaces the matrices of a transformers model by what a file of `kind` keeps of them."""
    with torch.no_grad():
        for weight in reference.parameters():
            if weight.ndim == 2:
                kept = quants.dequantize(quants.quantize(weight.numpy(), kind), kind)
                weight.copy_(torch.from_numpy(kept))
