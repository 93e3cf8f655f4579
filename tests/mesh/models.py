"""Tiny models for whole meshes: fast, exact, and with texts that differ as soon as anything before them does."""

from __future__ import annotations

import functools
import math

import torch
from torch import Tensor

from tests.worker import recall_model
from worker.model.config import ModelConfig
from worker.model.decoder import Model
from worker.ops.attention import AttentionBatch
from worker.weights.assemble import assemble
from worker.weights.random_tensors import RandomTensors

CPU = torch.device("cpu")
MAX_MODEL_LEN = 96
# Weights this much larger than a fresh model's give logits some units apart: no text is a loop of one token.
_SHARPNESS = 15.0

_LLAMA = ModelConfig(
    family="llama",
    vocab_size=64,
    hidden_size=32,
    intermediate_size=48,
    num_layers=2,
    num_heads=2,
    num_kv_heads=1,
    head_dim=16,
    rms_norm_eps=1e-5,
    max_position=MAX_MODEL_LEN,
    max_model_len=MAX_MODEL_LEN,
)
_QWEN3 = ModelConfig(
    family="qwen3",
    vocab_size=61,
    hidden_size=32,
    intermediate_size=40,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_dim=16,
    rms_norm_eps=1e-6,
    max_position=MAX_MODEL_LEN,
    max_model_len=MAX_MODEL_LEN,
    tie_word_embeddings=True,
    qk_norm=True,
)


class _SharpTensors(RandomTensors):
    def read(self, name: str) -> Tensor:
        tensor = super().read(name)
        return tensor if name.endswith("norm.weight") else tensor * _SHARPNESS


class HashModel(recall_model.RecallModel):
    """The recall model with logits that can be sampled from: which row of a table they are is a hash of all that the
    sequence's KV cache holds."""

    _TABLE = torch.randn(
        recall_model.VOCAB_SIZE, recall_model.VOCAB_SIZE, generator=torch.Generator().manual_seed(5)
    ).mul_(3.0)

    def forward(
        self,
        token_ids: Tensor,
        positions: Tensor,
        kv: list[tuple[Tensor, Tensor]],
        batch: AttentionBatch,
        logit_rows: Tensor,
    ) -> Tensor:
        """float32 [R, V]."""
        return self._TABLE[super().forward(token_ids, positions, kv, batch, logit_rows).argmax(dim=1)]


@functools.cache
def model_of(name: str) -> Model | HashModel:
    """hash, llama or qwen3; the same object every time."""
    if name == "hash":
        return HashModel()
    config = {"llama": _LLAMA, "qwen3": _QWEN3}[name]
    return assemble(config, _SharpTensors(config, 3, torch.float32, CPU), torch.float32, CPU)


def poison(layers: list[tuple[Tensor, Tensor]]) -> None:
    """Whoever reads a slot that nobody wrote gets NaN."""
    for caches in layers:
        for cache in caches:
            cache.fill_(math.nan)
