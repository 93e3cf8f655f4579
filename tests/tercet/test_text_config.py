"""The part of a config.json that is about text."""

from __future__ import annotations

from typing import Any

import pytest

from tercet.errors import ModelError
from tercet.text_config import text_fields
from worker.weights.hf_config import parse_hf_config

# As it is published.
GEMMA_3_4B: dict[str, Any] = {
    "architectures": ["Gemma3ForConditionalGeneration"],
    "eos_token_id": [1, 106],
    "model_type": "gemma3",
    "text_config": {
        "hidden_size": 2560,
        "intermediate_size": 10240,
        "model_type": "gemma3_text",
        "num_hidden_layers": 34,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
        "sliding_window": 1024,
    },
    "vision_config": {"hidden_size": 1152, "vocab_size": 9},
}


def test_what_a_model_with_pictures_leaves_out() -> None:
    config = parse_hf_config(text_fields(GEMMA_3_4B, "config.json"))
    assert (config.vocab_size, config.hidden_size, config.num_layers) == (262_208, 2560, 34)
    assert (config.num_heads, config.num_kv_heads, config.head_dim) == (8, 4, 256)
    assert (config.max_position, config.sliding_window, config.rope.factor) == (131_072, 1024, 8.0)
    assert config.tie_word_embeddings


def test_a_model_of_text_alone_is_what_it_says() -> None:
    values = {"architectures": ["LlamaForCausalLM"], "vocab_size": 7, "text_config": {"vocab_size": 9}}
    assert text_fields(values, "config.json").get("vocab_size") == 7
    assert text_fields({"vocab_size": 8}, "config.json").get("vocab_size") == 8


@pytest.mark.parametrize("text", [None, "gemma", []])
def test_a_part_that_is_not_there_is_named(text: Any) -> None:
    with pytest.raises(ModelError, match=r"text_config in config\.json is"):
        text_fields({**GEMMA_3_4B, "text_config": text}, "config.json")


def test_what_is_said_of_the_whole_holds_for_its_part() -> None:
    values = {**GEMMA_3_4B, "quantization_config": {"quant_method": "awq"}}
    with pytest.raises(ModelError, match="quantization_config"):
        parse_hf_config(text_fields(values, "config.json"))
