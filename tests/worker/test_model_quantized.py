"""A decoder whose products are in 8 bits: its logits are near the others, and its bytes are those foreseen."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import Tensor

from tests.worker.models import PagedRunner, random_prompts
from worker.model.config import ModelConfig, RopeConfig
from worker.model.decoder import Model
from worker.model.tensors import weight_bytes
from worker.ops.linear_fp8 import Fp8Linear
from worker.weights.loader import random_model

CPU = torch.device("cpu")
TINY = ModelConfig(
    family="qwen2",
    vocab_size=97,
    hidden_size=64,
    intermediate_size=96,
    num_layers=3,
    num_heads=4,
    num_kv_heads=2,
    head_dim=16,
    rms_norm_eps=1e-6,
    max_position=256,
    max_model_len=256,
    qkv_bias=True,
)
ODD = dataclasses.replace(TINY, hidden_size=40, intermediate_size=56, num_heads=5, num_kv_heads=5, head_dim=8)
GEMMA = dataclasses.replace(
    TINY,
    qkv_bias=False,
    sliding_window=20,
    sliding_layers=(True, False, True),
    local_rope=RopeConfig(theta=1000.0),
    activation="gelu_tanh",
    post_norms=True,
    fused_projections=True,
    embedding_scale=8.0,
    attention_softcap=50.0,
    logit_softcap=30.0,
)


def tensors(model: Model) -> list[Tensor]:
    """All that a model keeps, once; the head's copy on a CPU is beside them."""
    weights = model.weights
    kept = [weights.embedding, weights.norm, model.cos_sin]
    kept += [] if model.local_cos_sin is None else [model.local_cos_sin]
    for layer in weights.layers:
        norms = (layer.attention_norm, layer.post_attention_norm, layer.mlp_norm, layer.post_mlp_norm)
        kept += [norm for norm in norms if norm is not None]
        for product in (layer.qkv, layer.output, layer.gate_up, layer.down):
            assert isinstance(product, Fp8Linear)
            kept += [product._weight, product._scales] + ([] if product._bias is None else [product._bias])
    return kept


@pytest.mark.parametrize("config", [TINY, ODD, GEMMA])
def test_logits_are_near_those_without(config: ModelConfig) -> None:
    exact = random_model(config, torch.bfloat16, CPU, seed=1)
    quantized = random_model(config, torch.bfloat16, CPU, seed=1, quantization="fp8")
    prompts = dict(enumerate(random_prompts((30, 50), vocab_size=config.vocab_size)))
    want = PagedRunner(exact).prefill(prompts, 16)
    got = PagedRunner(quantized).prefill(prompts, 16)
    for sequence, logits in want.items():
        error = (got[sequence] - logits).square().mean().sqrt() / logits.std()
        # Norms behind a branch lift what is small, its errors too.
        assert 0 < error < (0.15 if config.post_norms else 0.1)
    assert PagedRunner(quantized).greedy(prompts, 4) == PagedRunner(quantized).greedy(prompts, 4)


@pytest.mark.parametrize("config", [TINY, GEMMA, dataclasses.replace(TINY, hidden_size=80, tie_word_embeddings=True)])
def test_its_bytes_are_foreseen(config: ModelConfig) -> None:
    model = random_model(config, torch.bfloat16, CPU, seed=0, quantization="fp8")
    kept = sum(tensor.numel() * tensor.element_size() for tensor in tensors(model))
    head = config.vocab_size * config.hidden_size * 2
    assert weight_bytes(config, torch.bfloat16, CPU, "fp8") == kept + head
    on_gpu = weight_bytes(config, torch.bfloat16, torch.device("cuda"), "fp8")
    assert on_gpu == (kept if config.tie_word_embeddings else kept + head)
    assert on_gpu < weight_bytes(config, torch.bfloat16, torch.device("cuda"))


def test_quantizing_takes_bfloat16() -> None:
    with pytest.raises(ValueError, match="weight must be bfloat16"):
        random_model(TINY, torch.float32, CPU, seed=0, quantization="fp8")
