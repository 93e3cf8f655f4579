"""The forward pass shared by all families: a loop over layers of products and norms around paged attention.

Knows no files, no block pool, no sampling. Dim letters: T tokens in the batch, R rows with logits, H query heads,
G KV heads, D head size, N blocks, S slots per block, V vocabulary, E hidden size, I intermediate size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor

from ..ops.activation import Activation
from ..ops.attention import AttentionBatch, paged_attention
from ..ops.heads import place_heads
from ..ops.linear import Linear
from ..ops.norm import rms_norm
from ..ops.quantize import rms_norm_quantized
from .config import ModelConfig, RopeConfig
from .rope import cos_sin_table

X = TypeVar("X")


class Projection(Protocol[X]):
    """A product of a layer. X is how it reads rows: as tensors (`Linear`), or quantized (`Fp8Linear`)."""

    def __call__(self, x: X, /) -> Tensor:
        """x [T, K] -> [T, N_out]."""

    def gated(self, x: X, activation: Activation, /) -> X:
        """x [T, K] -> activation(the first half of the outputs) * the second, [T, N_out / 2]."""


@dataclass(frozen=True, slots=True)
class Layer:
    """The weights of one layer. Projections that read the same input are one product; all read rows of one kind."""

    attention_norm: Tensor  # [E]
    qkv: Projection[Any]  # [(H + 2G) * D, E]: q, k, v
    q_norm: Tensor | None  # [D]
    k_norm: Tensor | None  # [D]
    output: Projection[Any]  # [E, H * D]
    post_attention_norm: Tensor | None  # [E]
    mlp_norm: Tensor  # [E]
    gate_up: Projection[Any]  # [2I, E]: gate, up
    down: Projection[Any]  # [E, I]
    post_mlp_norm: Tensor | None  # [E]


@dataclass(frozen=True, slots=True)
class Weights:
    """All weights of a model, on one device and of one dtype, but for projections that are `quantized`.

    A tied `head` is a Linear over `embedding`. On CPU it packs a second copy of the table: the packed order serves
    products, the plain one look-ups, and neither can do the other's work at speed.
    """

    embedding: Tensor  # [V, E]
    layers: tuple[Layer, ...]
    norm: Tensor  # [E]
    head: Linear  # [V, E]
    quantized: bool = False


class Model:
    """A decoder with weights. Holds no state of any sequence: the caller owns the KV cache."""

    def __init__(self, config: ModelConfig, weights: Weights) -> None:
        """Builds the tables of rotary positions for `config.max_model_len` tokens beside the weights."""
        self.config = config
        self.weights = weights
        self.dtype = weights.embedding.dtype
        self.device = weights.embedding.device
        self.cos_sin = self._table(config.rope)
        self.local_cos_sin = None if config.local_rope is None else self._table(config.local_rope)
        # As models were trained: the factor has the rounding of the embeddings.
        self._embedding_scale = torch.tensor(config.embedding_scale, dtype=self.dtype).item()
        # Of each layer, whether it is a local one, and its window.
        self._layers = tuple(zip(config.sliding_layers or (False,) * config.num_layers, config.windows, strict=True))
        # Float64 models exist to be exact: their logits are summed in float64 and rounded once.
        self._logits_dtype = torch.float64 if self.dtype == torch.float64 else torch.float32

    def _table(self, rope: RopeConfig) -> Tensor:
        config = self.config
        return cos_sin_table(rope, config.head_dim, config.max_model_len, self.device, config.rotary_dim)

    def forward(
        self,
        token_ids: Tensor,
        positions: Tensor,
        kv: Sequence[tuple[Tensor, Tensor]],
        batch: AttentionBatch,
        logit_rows: Tensor,
    ) -> Tensor:
        """One step: writes the KV of all T tokens, returns the logits of R of them.

        token_ids, positions int64 [T]; kv, one (k, v) of [N, G, S, D] per layer, mutated at `batch.slots`; logit_rows
        int64 [R] -> float32 [R, V]. All on the model's device; ids below V and positions below `max_model_len` are the
        caller's duty.
        """
        return self.logits(self.states(token_ids, positions, kv, batch, logit_rows))

    @torch.inference_mode()
    def logits(self, states: Tensor) -> Tensor:
        """What `states` makes, [R, E] -> float32 [R, V]."""
        logits = self.weights.head(states, out_dtype=self._logits_dtype)
        cap = self.config.logit_softcap
        return logits.float() if cap is None else logits.div_(cap).tanh_().mul_(cap).float()

    @torch.inference_mode()
    def states(
        self,
        token_ids: Tensor,
        positions: Tensor,
        kv: Sequence[tuple[Tensor, Tensor]],
        batch: AttentionBatch,
        logit_rows: Tensor,
    ) -> Tensor:
        """`forward` without its last product, whose result is many times as large: [R, E]."""
        config, weights = self.config, self.weights
        eps, scale, cap, slots = config.rms_norm_eps, config.attention_scale, config.attention_softcap, batch.slots
        local_cos_sin = self.cos_sin if self.local_cos_sin is None else self.local_cos_sin
        # In the form the projections read; the last one feeds the head, which is never quantized.
        norm: Any = rms_norm_quantized if weights.quantized else rms_norm
        num_tokens = len(token_ids)
        heads = (config.num_heads, config.num_kv_heads, config.num_kv_heads)
        packed_heads = (num_tokens, sum(heads), config.head_dim)
        flat_heads = (num_tokens, config.num_heads * config.head_dim)

        residual = weights.embedding.index_select(0, token_ids)  # [T, E]
        if self._embedding_scale != 1.0:
            residual.mul_(self._embedding_scale)
        branch: Tensor | None = None  # [T, E], what the layer before adds to the residual
        for layer, (k_cache, v_cache), (is_local, window) in zip(weights.layers, kv, self._layers, strict=True):
            if branch is None:
                x = norm(residual, layer.attention_norm, eps)
            else:
                x = norm(branch, layer.attention_norm, eps, residual)
            q, k, v = layer.qkv(x).view(packed_heads).split_with_sizes(heads, dim=1)  # [T, H, D], [T, G, D], [T, G, D]
            norms = None if layer.q_norm is None or layer.k_norm is None else (layer.q_norm, layer.k_norm)
            cos_sin = local_cos_sin if is_local else self.cos_sin
            q = place_heads(q, k, v, norms, eps, positions, cos_sin, k_cache, v_cache, slots)
            attended = paged_attention(q, k_cache, v_cache, batch, scale, window=window, softcap=cap)  # [T, H, D]
            branch = layer.output(attended.view(flat_heads))
            if layer.post_attention_norm is not None:
                branch = rms_norm(branch, layer.post_attention_norm, eps)
            x = norm(branch, layer.mlp_norm, eps, residual)
            branch = layer.down(layer.gate_up.gated(x, config.activation))
            if layer.post_mlp_norm is not None:
                branch = rms_norm(branch, layer.post_mlp_norm, eps)

        residual = residual.index_select(0, logit_rows)  # [R, E]
        if branch is None:
            return rms_norm(residual, weights.norm, eps)
        return rms_norm(branch.index_select(0, logit_rows), weights.norm, eps, residual)
