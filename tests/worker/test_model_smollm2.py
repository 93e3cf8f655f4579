"""The embedded model, read from its GGUF file by us and by transformers: the same greedy tokens in float32."""

from __future__ import annotations

import pytest
import torch
from gguf import GGUFReader

from tests.worker.models import PagedRunner, reference_greedy, reference_logits
from tests.worker.smollm2 import COUNT, PROMPTS, SmolLM2
from worker.model.tensors import kv_block_bytes, weight_bytes
from worker.weights.loader import load_config, load_model

pytestmark = pytest.mark.model


@pytest.mark.parametrize("index", range(len(PROMPTS)), ids=repr)
def test_every_token_is_the_one_the_reference_would_choose(smollm2: SmolLM2, index: int) -> None:
    assert len(smollm2.greedy[index]) == COUNT
    assert smollm2.greedy[index] == smollm2.chosen[index]


@pytest.mark.parametrize("index", [0, 5])
def test_a_generation_of_the_reference_is_the_same(smollm2: SmolLM2, index: int) -> None:
    assert reference_greedy(smollm2.reference, smollm2.prompts[index], COUNT) == smollm2.greedy[index]


def test_logits_equal_the_reference(smollm2: SmolLM2) -> None:
    logits = PagedRunner(smollm2.model).prefill(smollm2.prompts, chunk=64)
    for index, prompt in smollm2.prompts.items():
        torch.testing.assert_close(logits[index], reference_logits(smollm2.reference, prompt), rtol=1e-3, atol=1e-3)


def test_it_knows_the_capital_of_france_in_bfloat16(smollm2: SmolLM2) -> None:
    lines: list[str] = []
    model = load_model(smollm2.source, torch.bfloat16, torch.device("cpu"), lines.append)
    tokens = PagedRunner(model).greedy({0: smollm2.prompts[0]}, 1)[0]
    vocabulary = GGUFReader(smollm2.source.path).fields["tokenizer.ggml.tokens"]
    assert vocabulary.contents(tokens[0]) == "ĠParis"
    assert lines[0].startswith("reading 30 layers")
    assert lines[-1] == "read layer 30 of 30"


def test_its_size_is_known_before_it_is_loaded(smollm2: SmolLM2) -> None:
    config = load_config(smollm2.source)
    parameters = 134_515_008
    embedding = config.vocab_size * config.hidden_size
    positions = 8192 * 64 * 4
    assert weight_bytes(config, torch.bfloat16, torch.device("cuda")) == 2 * parameters + positions
    assert weight_bytes(config, torch.bfloat16) == 2 * (parameters + embedding) + positions
    assert kv_block_bytes(config, 16, torch.bfloat16) == 2 * 30 * 3 * 16 * 64 * 2
