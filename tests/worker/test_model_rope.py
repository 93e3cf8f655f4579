"""Rotary tables against transformers, and against the definition where that is a line."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, Phi3Config
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding
from transformers.models.phi3.modeling_phi3 import Phi3RotaryEmbedding

from tercet.model_fields import Fields
from worker.model.config import RopeConfig
from worker.model.rope import cos_sin_table, inverse_frequencies, yarn_attention_factor
from worker.weights.hf_config import parse_hf_config

CPU = torch.device("cpu")
LENGTH = 4096
HEAD_DIM = 64

SCALINGS: dict[str, dict[str, Any]] = {
    "default": {},
    "default-wide": {"rope_theta": 1e6},
    "linear": {"rope_type": "linear", "factor": 3.0},
    "llama3": {
        "rope_type": "llama3",
        "rope_theta": 500000.0,
        "factor": 32.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 512,
    },
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024},
    "yarn-betas": {
        "rope_type": "yarn",
        "factor": 8.0,
        "beta_fast": 16.0,
        "beta_slow": 2.0,
        "truncate": False,
        "original_max_position_embeddings": 512,
    },
    "yarn-mscale": {
        "rope_type": "yarn",
        "factor": 40.0,
        "mscale": 0.7,
        "mscale_all_dim": 1.3,
        "original_max_position_embeddings": 512,
    },
    "yarn-attention-factor": {
        "rope_type": "yarn",
        "factor": 4.0,
        "attention_factor": 0.9,
        "original_max_position_embeddings": 1024,
    },
}


@pytest.mark.parametrize("scaling", SCALINGS)
def test_tables_equal_the_reference(scaling: str) -> None:
    parameters = {"rope_type": "default", "rope_theta": 10000.0, **SCALINGS[scaling]}
    config = LlamaConfig(
        hidden_size=2 * HEAD_DIM,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=LENGTH,
        rope_parameters=dict(parameters),
        architectures=["LlamaForCausalLM"],
    )
    cos, sin = LlamaRotaryEmbedding(config)(torch.zeros(1), torch.arange(LENGTH)[None])
    rope = parse_hf_config(Fields(config.to_dict(), "config.json")).rope
    table = cos_sin_table(rope, HEAD_DIM, LENGTH, CPU)
    assert table.shape == (LENGTH, HEAD_DIM)
    assert table.dtype == torch.float32
    # Float32 rounding of a frequency grows with the position.
    torch.testing.assert_close(table[:, : HEAD_DIM // 2], cos[0, :, : HEAD_DIM // 2], rtol=0, atol=LENGTH * 2e-7)
    torch.testing.assert_close(table[:, HEAD_DIM // 2 :], sin[0, :, : HEAD_DIM // 2], rtol=0, atol=LENGTH * 2e-7)


def test_what_does_not_turn_stands_behind_what_does() -> None:
    rope = RopeConfig(attention_factor=2.0)
    table, turning = cos_sin_table(rope, 16, 9, CPU, rotary_dim=12), cos_sin_table(rope, 12, 9, CPU)
    for half in (0, 1):
        part = table[:, 8 * half : 8 * (half + 1)]
        assert torch.equal(part[:, :6], turning[:, 6 * half : 6 * (half + 1)])
        # Neither turned nor scaled.
        assert part[:, 6:].unique().tolist() == [1.0 - half]


def test_the_first_position_turns_nothing_and_the_second_by_one_radian() -> None:
    table = cos_sin_table(RopeConfig(), 8, 2, CPU)
    assert table[0].tolist() == [1.0] * 4 + [0.0] * 4
    assert table[1, 0].item() == pytest.approx(math.cos(1.0))
    assert table[1, 4].item() == pytest.approx(math.sin(1.0))


def test_divisors_divide_the_frequencies() -> None:
    plain = inverse_frequencies(RopeConfig(), 8, 100)
    divided = inverse_frequencies(RopeConfig(divisors=(1.0, 2.0, 4.0, 8.0)), 8, 100)
    torch.testing.assert_close(divided * torch.tensor([1.0, 2.0, 4.0, 8.0]), plain)


def test_yarn_does_not_scale_what_it_does_not_stretch() -> None:
    assert yarn_attention_factor(1.0) == 1.0
    assert yarn_attention_factor(0.5) == 1.0
    assert yarn_attention_factor(math.e**10) == pytest.approx(2.0)


@pytest.mark.parametrize("length", [512, 513, 4096])
def test_longrope_equals_the_reference_of_a_text_of_the_served_length(length: int) -> None:
    factors = {
        name: [1.0 + step * i for i in range(32)] for name, step in (("short_factor", 0.01), ("long_factor", 0.7))
    }
    values: dict[str, Any] = {
        "hidden_size": 256, "num_attention_heads": 4, "max_position_embeddings": 4096,
        "original_max_position_embeddings": 512, "rope_scaling": {"rope_type": "longrope", **factors},
    }  # fmt: skip
    reference = Phi3RotaryEmbedding(Phi3Config(**values, pad_token_id=None))
    cos, sin = reference(torch.zeros(1), torch.arange(length)[None])
    more = {"architectures": ["Phi3ForCausalLM"], "intermediate_size": 8, "num_hidden_layers": 1, "vocab_size": 8}
    rope = parse_hf_config(Fields({**values, **more}, "config.json")).rope
    table = cos_sin_table(rope, HEAD_DIM, length, CPU)
    torch.testing.assert_close(table, torch.cat((cos[0, :, :32], sin[0, :, :32]), dim=-1), rtol=0, atol=1e-6)
