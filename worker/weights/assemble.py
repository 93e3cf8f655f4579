"""Builds a model from a source of tensors, one tensor at a time. Knows no file format."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tercet.sections import Quantization

from ..model.config import ModelConfig
from ..model.decoder import Layer, Model, Projection, Weights
from ..model.tensors import EMBEDDING, HEAD, NORM, Shape, layer_norms, layer_tensor, tensor_shapes
from ..ops.linear import Linear
from ..ops.linear_fp8 import Fp8Linear
from .tensor_source import TensorSource, check_tensors

Progress = Callable[[str], None]

_REPORTS = 10


def assemble(
    config: ModelConfig,
    source: TensorSource,
    dtype: torch.dtype,
    device: torch.device,
    progress: Progress | None = None,
    quantization: Quantization = "none",
) -> Model:
    """Reads all weights to `dtype` on `device`. Needs memory for them and one product's tensors more.

    With `quantization` the layers' products are quantized as they are read; `dtype` must be bfloat16 then. `progress`
    is told a line at the start and after about every tenth of the layers. Raises ModelError.
    """
    shapes = tensor_shapes(config)
    check_tensors(source, shapes)
    reader = _Reader(source, shapes, dtype, device)
    report = progress or (lambda _line: None)
    report(f"reading {config.num_layers} layers from {source.origin}")
    embedding = reader.tensor(EMBEDDING)
    every = max(1, config.num_layers // _REPORTS)
    projection = Fp8Linear if quantization == "fp8" else Linear
    layers = []
    for index in range(config.num_layers):
        layers.append(_layer(config, reader, index, projection))
        if (index + 1) % every == 0 or index + 1 == config.num_layers:
            report(f"read layer {index + 1} of {config.num_layers}")
    head = Linear(embedding if config.tie_word_embeddings else reader.tensor(HEAD))
    weights = Weights(embedding, tuple(layers), reader.tensor(NORM), head, quantized=quantization != "none")
    return Model(config, weights)


def _layer(
    config: ModelConfig, reader: _Reader, index: int, projection: Callable[[Tensor, Tensor | None], Projection[Any]]
) -> Layer:
    def tensor(part: str) -> Tensor:
        return reader.tensor(layer_tensor(index, f"{part}.weight"))

    def linear(*parts: str, bias: bool) -> Projection[Any]:
        names = [layer_tensor(index, part) for part in parts]
        weight = reader.tensor(*(f"{name}.weight" for name in names))
        return projection(weight, reader.tensor(*(f"{name}.bias" for name in names)) if bias else None)

    norms = layer_norms(config)
    qkv, gate_up = ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"], ["mlp.gate_proj", "mlp.up_proj"]
    if config.fused_projections:
        qkv, gate_up = ["self_attn.qkv_proj"], ["mlp.gate_up_proj"]
    return Layer(
        attention_norm=tensor(norms["attention"]),
        qkv=linear(*qkv, bias=config.qkv_bias),
        q_norm=tensor("self_attn.q_norm") if config.qk_norm else None,
        k_norm=tensor("self_attn.k_norm") if config.qk_norm else None,
        output=linear("self_attn.o_proj", bias=config.output_bias),
        post_attention_norm=tensor(norms["post_attention"]) if config.post_norms else None,
        mlp_norm=tensor(norms["mlp"]),
        gate_up=linear(*gate_up, bias=config.mlp_bias),
        down=linear("mlp.down_proj", bias=config.mlp_bias),
        post_mlp_norm=tensor(norms["post_mlp"]) if config.post_norms else None,
    )


class _Reader:
    """Tensors of the run's dtype and device, those of one product stacked."""

    def __init__(
        self, source: TensorSource, shapes: dict[str, Shape], dtype: torch.dtype, device: torch.device
    ) -> None:
        self._source = source
        self._shapes = shapes
        self._dtype = dtype
        self._device = device

    def tensor(self, *names: str) -> Tensor:
        """The tensors `names` on top of each other. Copies into place, so that no part is held twice."""
        sizes = [self._shapes[name] for name in names]
        rows = sum(size[0] for size in sizes)
        out = torch.empty((rows, *sizes[0][1:]), dtype=self._dtype, device=self._device)
        begin = 0
        for name, size in zip(names, sizes, strict=True):
            out[begin : begin + size[0]].copy_(self._source.read(name))
            begin += size[0]
        return out
