"""Tensors of a GGUF file under the names and in the row order of Hugging Face, dequantised one at a time."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from gguf import GGMLQuantizationType, quants
from torch import Tensor

from tercet.errors import ModelError

from ..model.config import ModelConfig
from ..model.families import FAMILIES
from ..model.tensors import EMBEDDING, HEAD, NORM, Shape, layer_norms, layer_tensor
from .gguf_file import GgufFile, GgufTensor

ROPE_FREQUENCIES = "rope_freqs.weight"
LONG_FREQUENCIES, SHORT_FREQUENCIES = "rope_factors_long.weight", "rope_factors_short.weight"
# These are part of the configuration.
_FREQUENCIES = (ROPE_FREQUENCIES, LONG_FREQUENCIES, SHORT_FREQUENCIES)

_FLOATS: Mapping[GGMLQuantizationType, torch.dtype] = {
    GGMLQuantizationType.F64: torch.float64,
    GGMLQuantizationType.F32: torch.float32,
    GGMLQuantizationType.F16: torch.float16,
    GGMLQuantizationType.BF16: torch.bfloat16,
}
_QUANTIZED = frozenset(
    GGMLQuantizationType[name]
    for name in ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS")
)

_NAMES = {EMBEDDING: "token_embd.weight", NORM: "output_norm.weight", HEAD: "output.weight"}
_LAYER_NAMES = {
    "self_attn.qkv_proj": "attn_qkv",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_up_proj": "ffn_up",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_NORM_NAMES = {
    "attention": "attn_norm",
    "post_attention": "post_attention_norm",
    "mlp": "ffn_norm",
    "post_mlp": "post_ffw_norm",
}
# Of these a model has the first or the others.
_FUSED = {
    "self_attn.qkv_proj": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "mlp.gate_up_proj": ("mlp.gate_proj", "mlp.up_proj"),
}


def stored_name(name: str) -> str:
    """The GGUF name of a tensor that belongs to no layer."""
    return _NAMES[name]


def stored_layer_name(layer: int, part: str, kind: str) -> str:
    """The GGUF name, such as ``blk.0.attn_q.weight``, of a product of a layer, `part` ``self_attn.q_proj``."""
    return f"blk.{layer}.{_LAYER_NAMES[part]}.{kind}"


def _stored_names(config: ModelConfig) -> dict[str, str]:
    """The GGUF name of every tensor that a model of this shape may have."""
    names = dict(_NAMES)
    left_out = [part for fused, parts in _FUSED.items() for part in (parts if config.fused_projections else (fused,))]
    for layer in range(config.num_layers):
        for kind in ("weight", "bias"):
            for part in _LAYER_NAMES:
                if part not in left_out:
                    names[layer_tensor(layer, f"{part}.{kind}")] = stored_layer_name(layer, part, kind)
        for place, norm in layer_norms(config).items():
            names[layer_tensor(layer, f"{norm}.weight")] = f"blk.{layer}.{_NORM_NAMES[place]}.weight"
    return names


class GgufTensors:
    """A TensorSource over a GGUF file, of which it holds nothing but the directory."""

    def __init__(self, file: GgufFile, config: ModelConfig) -> None:
        self.origin = str(file.path)
        self._file = file
        self._heads: dict[str, int] = {}
        self._stored = _stored_names(config)
        if FAMILIES[config.family].gguf_interleaved:
            for layer in range(config.num_layers):
                for kind in ("weight", "bias"):
                    self._heads[layer_tensor(layer, f"self_attn.q_proj.{kind}")] = config.num_heads
                    self._heads[layer_tensor(layer, f"self_attn.k_proj.{kind}")] = config.num_kv_heads
        known = {stored: name for name, stored in self._stored.items()}
        self._shapes = {
            known.get(tensor.name, tensor.name): tensor.shape
            for tensor in file.tensors.values()
            if tensor.name not in _FREQUENCIES
        }

    def shapes(self) -> Mapping[str, Shape]:
        """The shape of every tensor in the file, dequantised."""
        return self._shapes

    def stored_name(self, name: str) -> str:
        """The GGUF name, such as ``blk.0.attn_q.weight``; a name that no model knows stays as it is."""
        return self._stored.get(name, name)

    def read(self, name: str) -> Tensor:
        """The tensor in its own float type, or float32 if it was quantized. Raises ModelError."""
        tensor = read_tensor(self._file, self._stored[name])
        heads = self._heads.get(name)
        return tensor if heads is None else deinterleave(tensor, heads)


def deinterleave(rows: Tensor, heads: int) -> Tensor:
    """rows [heads * D, ...] with rotary pairs side by side (0 1 | 2 3 ...) → each pair D / 2 apart ("rotate half")."""
    pairs = rows.reshape(heads, rows.shape[0] // heads // 2, 2, *rows.shape[1:])
    return pairs.transpose(1, 2).reshape(rows.shape)


def read_tensor(file: GgufFile, name: str) -> Tensor:
    """A tensor by its stored name, in its own float type, or float32 if it was quantized. Raises ModelError."""
    tensor = file.tensors[name]
    dtype = _FLOATS.get(tensor.type)
    if dtype is None and tensor.type not in _QUANTIZED:
        supported = ", ".join(kind.name for kind in (*_FLOATS, *sorted(_QUANTIZED)))
        raise ModelError(f"model: tensor {name} in {file.path} has the type {tensor.type.name}; supported: {supported}")
    data = _bytes(file, tensor)
    if dtype is not None:
        return torch.from_numpy(data).view(dtype).reshape(tensor.shape)
    rows = data.reshape(*tensor.shape[:-1], -1)
    values = quants.dequantize(rows, tensor.type)  # float32 [..., columns]
    return torch.from_numpy(values).reshape(tensor.shape)


def _bytes(file: GgufFile, tensor: GgufTensor) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    """The stored bytes, uint8. Raises ModelError if the file has gone or shrunk since its directory was read."""
    try:
        data = np.fromfile(file.path, dtype=np.uint8, count=tensor.num_bytes, offset=tensor.offset)
    except OSError as error:
        raise ModelError(f"model: cannot read tensor {tensor.name} in {file.path}: {error}") from error
    if len(data) != tensor.num_bytes:
        raise ModelError(
            f"model: {file.path} is cut short: tensor {tensor.name} has {len(data)} of {tensor.num_bytes} bytes"
        )
    return data
