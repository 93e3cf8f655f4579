"""Reads a model's configuration from the metadata of a GGUF file. Knows no weights but those that scale rope."""

from __future__ import annotations

import math

from tercet.errors import ModelError
from tercet.model_fields import MAX_LAYERS, Fields
from tercet.model_length import gguf_length

from ..model.config import ModelConfig, RopeConfig
from ..model.families import BY_GGUF_ARCHITECTURE
from ..model.family import Family, Softcaps, WindowRule
from ..model.rope import longrope_attention_factor, yarn_attention_factor
from ..model.tensors import EMBEDDING, HEAD
from .gguf_file import GgufArray, GgufFile, GgufValue
from .gguf_tensors import (
    LONG_FREQUENCIES,
    ROPE_FREQUENCIES,
    SHORT_FREQUENCIES,
    read_tensor,
    stored_layer_name,
    stored_name,
)

_SCALING_TYPES = ("none", "linear", "yarn")


def parse_gguf_config(file: GgufFile) -> ModelConfig:
    """The configuration in a file's metadata; serves the model's full length. Raises ModelError naming the key."""
    every = Fields(dict(file.metadata), str(file.path))
    if every.count("split.count", 1, minimum=0) > 1:
        raise every.error("split.count", every.get("split.count"), "one file; merge the parts with gguf-split --merge")
    name = every.get("general.architecture")
    if not isinstance(name, str) or name not in BY_GGUF_ARCHITECTURE:
        raise every.error("general.architecture", name, ", ".join(BY_GGUF_ARCHITECTURE))
    family = BY_GGUF_ARCHITECTURE[name]
    fields = _keys(file, name)
    if fields.get("expert_count"):
        raise fields.error("expert_count", fields.get("expert_count"), "dense models only")
    hidden_size = fields.count("embedding_length")
    num_heads = fields.count("attention.head_count")
    head_dim = _head_dim(fields, hidden_size // num_heads)
    rotary_dim = _rotary_dim(fields, family, head_dim)
    stated = fields.count("context_length")
    max_position = gguf_length(fields)
    num_layers = fields.count("block_count", maximum=MAX_LAYERS)
    window, sliding_layers = _windows(fields, family, num_layers)
    softcaps = _softcaps(fields, family)
    local_theta = family.default_local_theta
    query_scalar = family.default_query_scalar
    if query_scalar is not None:
        query_scalar = hidden_size / num_heads if num_layers == family.gguf_hidden_scalar_layers else float(head_dim)
    return ModelConfig(
        family=family.name,
        vocab_size=_vocab_size(file, every),
        hidden_size=hidden_size,
        intermediate_size=fields.count("feed_forward_length"),
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=fields.count("attention.head_count_kv", num_heads),
        head_dim=head_dim,
        rms_norm_eps=fields.number("attention.layer_norm_rms_epsilon", 1e-6),
        max_position=max_position,
        max_model_len=max_position,
        rope=_rope(file, fields, family, stated),
        partial_rotary_dim=None if rotary_dim == head_dim else rotary_dim,
        tie_word_embeddings=stored_name(HEAD) not in file.tensors,
        qkv_bias=_has_bias(file, "self_attn.qkv_proj" if family.fused_projections else "self_attn.q_proj"),
        output_bias=_has_bias(file, "self_attn.o_proj"),
        mlp_bias=_has_bias(file, "mlp.down_proj"),
        qk_norm=family.qk_norm,
        sliding_window=window,
        sliding_layers=sliding_layers,
        local_rope=None if local_theta is None else RopeConfig(fields.number("rope.freq_base_swa", local_theta)),
        activation=family.activation,
        post_norms=family.post_norms,
        fused_projections=family.fused_projections,
        embedding_scale=math.sqrt(hidden_size) if family.scales_embedding else 1.0,
        query_scalar=query_scalar,
        attention_softcap=softcaps.attention,
        logit_softcap=softcaps.logits,
    )


def _windows(fields: Fields, family: Family, num_layers: int) -> tuple[int | None, tuple[bool, ...]]:
    """The window in tokens, and which layers have it; none and no flags if no layer has one."""
    name = "attention.sliding_window"
    default = family.default_sliding_window if family.window is WindowRule.PATTERN else 0
    window = fields.count(name, default, minimum=0)
    if window == 0:
        return None, ()
    if family.window is WindowRule.IF_USED:
        # Which of the layers have it GGUF does not say.
        raise fields.error(name, window, "0, which is none")
    if family.window is not WindowRule.PATTERN:
        return window, (True,) * num_layers
    pattern = fields.get("attention.sliding_window_pattern")
    if isinstance(pattern, list) and len(pattern) == num_layers:
        return window, tuple(bool(slides) for slides in pattern)
    global_every = fields.count("attention.sliding_window_pattern", family.global_every)
    return window, tuple((layer + 1) % global_every != 0 for layer in range(num_layers))


def _softcaps(fields: Fields, family: Family) -> Softcaps:
    if family.softcaps is None:
        return Softcaps(attention=None, logits=None)
    return Softcaps(
        attention=_softcap(fields, "attn_logit_softcapping", family.softcaps.attention),
        logits=_softcap(fields, "final_logit_softcapping", family.softcaps.logits),
    )


def _softcap(fields: Fields, name: str, default: float | None) -> float | None:
    """0 says that there is no cap."""
    if fields.get(name) == 0:
        return None
    return default if fields.get(name) is None else fields.number(name)


def _keys(file: GgufFile, architecture: str) -> Fields:
    """The keys of one architecture, without its prefix."""
    prefix = f"{architecture}."
    values = {
        key.removeprefix(prefix): _merged(value) for key, value in file.metadata.items() if key.startswith(prefix)
    }
    return Fields(values, str(file.path), prefix)


def _merged(value: GgufValue) -> object:
    """A number per layer counts as one number if all are equal."""
    if not isinstance(value, GgufArray) or not value.values:
        return value
    if len(set(value.values)) == 1:
        return value.values[0]
    return list(value.values)


def _vocab_size(file: GgufFile, every: Fields) -> int:
    """The rows of the embedding: some files pad it past the tokens, and it is what the model computes."""
    embedding = file.tensors.get(stored_name(EMBEDDING))
    if embedding is None:
        raise ModelError(f"model: {every.origin} lacks the tensor {stored_name(EMBEDDING)}")
    tokens = every.get("tokenizer.ggml.tokens")
    rows = embedding.shape[0]
    if isinstance(tokens, GgufArray) and tokens.length > rows:
        raise ModelError(
            f"model: {every.origin} has {tokens.length} tokens in its vocabulary but embeddings for {rows} only"
        )
    return rows


def _head_dim(fields: Fields, default: int) -> int:
    head_dim = fields.count("attention.key_length", default)
    if fields.count("attention.value_length", head_dim) != head_dim:
        raise fields.error("attention.value_length", fields.get("attention.value_length"), _the_head_size(head_dim))
    return head_dim


def _rotary_dim(fields: Fields, family: Family, head_dim: int) -> int:
    name = "rope.dimension_count"
    rotary_dim = fields.count(name, head_dim)
    if rotary_dim == head_dim or (family.partial_rotary and rotary_dim < head_dim and rotary_dim % 2 == 0):
        return rotary_dim
    or_less = ", or an even part of it" if family.partial_rotary else ""
    raise fields.error(name, rotary_dim, f"{_the_head_size(head_dim)}{or_less}")


def _the_head_size(head_dim: int) -> str:
    return f"the head size, {head_dim}"


def _has_bias(file: GgufFile, part: str) -> bool:
    """GGUF has no flag for biases: they are there or not."""
    return stored_layer_name(0, part, "bias") in file.tensors


def _rope(file: GgufFile, fields: Fields, family: Family, stated: int) -> RopeConfig:
    theta = fields.number("rope.freq_base", family.default_rope_theta)
    divisors: tuple[float, ...] = ()
    if ROPE_FREQUENCIES in file.tensors:
        divisors = tuple(read_tensor(file, ROPE_FREQUENCIES).flatten().tolist())
    kind = fields.get("rope.scaling.type")
    if kind is None:
        # Files from before rope.scaling.* had linear scaling under this key.
        factor = fields.number("rope.scale_linear", 1.0)
        kind = "none" if factor == 1.0 else "linear"
    else:
        factor = fields.number("rope.scaling.factor", 1.0)
    if SHORT_FREQUENCIES in file.tensors and LONG_FREQUENCIES in file.tensors:
        original = fields.count("rope.scaling.original_context_length", stated)
        return RopeConfig(
            theta=theta,
            type="longrope",
            original_max_position=original,
            attention_factor=fields.number(
                "rope.scaling.attn_factor", longrope_attention_factor(stated / original, original)
            ),
            divisors=tuple(read_tensor(file, SHORT_FREQUENCIES).flatten().tolist()),
            long_divisors=tuple(read_tensor(file, LONG_FREQUENCIES).flatten().tolist()),
        )
    if kind == "none":
        return RopeConfig(theta=theta, divisors=divisors)
    if kind == "linear":
        return RopeConfig(theta=theta, type="linear", factor=factor, divisors=divisors)
    if kind != "yarn":
        raise fields.error("rope.scaling.type", kind, ", ".join(_SCALING_TYPES))
    scale = fields.number("rope.scaling.attn_factor", fields.number("rope.scaling.yarn_attn_factor", 1.0))
    return RopeConfig(
        theta=theta,
        type="yarn",
        factor=factor,
        original_max_position=fields.count("rope.scaling.original_context_length", stated),
        beta_fast=fields.number("rope.scaling.yarn_beta_fast", 32.0),
        beta_slow=fields.number("rope.scaling.yarn_beta_slow", 1.0),
        attention_factor=scale * yarn_attention_factor(factor),
        divisors=divisors,
    )
