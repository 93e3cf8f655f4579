"""Which tensors a model is made of, and how many bytes they and its KV cache take. Knows no files.

Names are those of Hugging Face checkpoints; other formats map theirs onto them.
"""

from __future__ import annotations

import torch

from tercet.sections import Quantization

from ..ops.linear_fp8 import SIDE_MULTIPLE
from .config import ModelConfig

EMBEDDING = "model.embed_tokens.weight"
NORM = "model.norm.weight"
HEAD = "lm_head.weight"

Shape = tuple[int, ...]


def layer_tensor(layer: int, part: str) -> str:
    """The name of one tensor of a layer, such as `part` ``self_attn.q_proj.weight``."""
    return f"model.layers.{layer}.{part}"


def tensor_shapes(config: ModelConfig) -> dict[str, Shape]:
    """Every tensor the model needs, with its shape; a tied head is not one."""
    embedding = (config.vocab_size, config.hidden_size)
    shapes: dict[str, Shape] = {EMBEDDING: embedding}
    parts = layer_shapes(config)
    for layer in range(config.num_layers):
        shapes.update({layer_tensor(layer, part): shape for part, shape in parts.items()})
    shapes[NORM] = (config.hidden_size,)
    if not config.tie_word_embeddings:
        shapes[HEAD] = embedding
    return shapes


def layer_shapes(config: ModelConfig) -> dict[str, Shape]:
    """Every tensor of one layer, by its name within the layer."""
    hidden, inner = config.hidden_size, config.intermediate_size
    queries, keys = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    products = {
        "self_attn.o_proj": ((hidden, queries), config.output_bias),
        "mlp.down_proj": ((hidden, inner), config.mlp_bias),
    }
    if config.fused_projections:
        products["self_attn.qkv_proj"] = ((queries + 2 * keys, hidden), config.qkv_bias)
        products["mlp.gate_up_proj"] = ((2 * inner, hidden), config.mlp_bias)
    else:
        products["self_attn.q_proj"] = ((queries, hidden), config.qkv_bias)
        for part in ("self_attn.k_proj", "self_attn.v_proj"):
            products[part] = ((keys, hidden), config.qkv_bias)
        for part in ("mlp.gate_proj", "mlp.up_proj"):
            products[part] = ((inner, hidden), config.mlp_bias)
    shapes: dict[str, Shape] = {f"{norm}.weight": (hidden,) for norm in layer_norms(config).values()}
    for name, (shape, has_bias) in products.items():
        shapes[f"{name}.weight"] = shape
        if has_bias:
            shapes[f"{name}.bias"] = shape[:1]
    if config.qk_norm:
        shapes["self_attn.q_norm.weight"] = shapes["self_attn.k_norm.weight"] = (config.head_dim,)
    return shapes


def layer_norms(config: ModelConfig) -> dict[str, str]:
    """The names of a layer's norms of hidden states, by their place in it."""
    if not config.post_norms:
        return {"attention": "input_layernorm", "mlp": "post_attention_layernorm"}
    return {
        "attention": "input_layernorm",
        "post_attention": "post_attention_layernorm",
        "mlp": "pre_feedforward_layernorm",
        "post_mlp": "post_feedforward_layernorm",
    }


def weight_bytes(
    config: ModelConfig, dtype: torch.dtype, device: torch.device | None = None, quantization: Quantization = "none"
) -> int:
    """Bytes that a loaded model takes: all weights, and the float32 tables of rotary positions.

    On CPU (the default) a tied head is a packed copy of the embedding and counts again.
    """
    on_cpu = device is None or device.type == "cpu"
    layer = sum(_elements(shape) for shape in layer_shapes(config).values()) * dtype.itemsize
    if quantization == "fp8":
        layer -= sum(_elements(shape) * dtype.itemsize - _fp8_bytes(shape) for shape in product_shapes(config))
    embedding = config.vocab_size * config.hidden_size
    tables = 1 if config.tie_word_embeddings and not on_cpu else 2
    rest = (config.hidden_size + tables * embedding) * dtype.itemsize
    positions = config.max_model_len * (1 if config.local_rope is None else 2)
    return layer * config.num_layers + rest + positions * config.head_dim * torch.float32.itemsize


def product_shapes(config: ModelConfig) -> tuple[Shape, ...]:
    """The weights of a layer as they are multiplied, those that read the same input stacked."""
    hidden, inner = config.hidden_size, config.intermediate_size
    queries, keys = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    return (queries + 2 * keys, hidden), (hidden, queries), (2 * inner, hidden), (hidden, inner)


def _fp8_bytes(shape: Shape) -> int:
    """Bytes of a quantized weight with its scales."""
    num_outputs, depth = (-(-size // SIDE_MULTIPLE) * SIDE_MULTIPLE for size in shape)
    return num_outputs * (depth + torch.float32.itemsize)


def workspace_bytes(config: ModelConfig, dtype: torch.dtype, num_tokens: int, num_rows: int) -> int:
    """Bytes of activations of a step of `num_tokens` tokens, and of float32 logits of `num_rows` of them.

    Of a layer's products the two widest neighbours live at once, beside the residual and one branch.
    """
    qkv = (config.num_heads + 2 * config.num_kv_heads) * config.head_dim
    widest = max(qkv + config.num_heads * config.head_dim, 3 * config.intermediate_size)
    return num_tokens * (2 * config.hidden_size + widest) * dtype.itemsize + num_rows * config.vocab_size * 4


def kv_block_bytes(config: ModelConfig, block_size: int, dtype: torch.dtype) -> int:
    """Bytes of one block of `block_size` slots: K and V of all layers."""
    return 2 * config.num_layers * config.num_kv_heads * block_size * config.head_dim * dtype.itemsize


def _elements(shape: Shape) -> int:
    count = 1
    for size in shape:
        count *= size
    return count
