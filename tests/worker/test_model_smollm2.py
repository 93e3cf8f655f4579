"""The embedded model, read from its GGUF file by us and by transformers: the same greedy tokens in float32."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers
from gguf import GGUFReader, TokenType
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

from tercet.model_source import ModelSource, resolve_model
from tests.worker.models import PagedRunner, reference_greedy, reference_logits
from worker.model.decoder import Model
from worker.model.tensors import kv_block_bytes, weight_bytes
from worker.weights.loader import load_config, load_model

pytestmark = pytest.mark.model

COUNT = 64
PROMPTS = (
    "The capital of France is",
    "Once upon a time, in a small village by the sea,",
    "def fibonacci(n):\n    ",
    "#include <vector>\nint main() {\n    std::vector<int> values = {3, 1, 2};\n    ",
    "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n",
    "中国的首都是",
    "🎉🎂 Happy birthday! 🎈",
    "Der schnelle braune Fuchs springt über",
    '{"name": "Ada", "born": 1815, "languages": [',
    "1, 1, 2, 3, 5, 8, 13, 21, " * 12,
)


@pytest.fixture(scope="module")
def source() -> ModelSource:
    return resolve_model("embedded")


@pytest.fixture(scope="module")
def reference(source: ModelSource) -> Any:
    """As published: HuggingFaceTB/SmolLM2-135M-Instruct. Weights by the GGUF reader of transformers itself."""
    config = transformers.LlamaConfig(
        vocab_size=49152,
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=30,
        num_attention_heads=9,
        num_key_value_heads=3,
        max_position_embeddings=8192,
        rms_norm_eps=1e-5,
        rope_parameters={"rope_type": "default", "rope_theta": 100000.0},
        tie_word_embeddings=True,
    )
    model = transformers.LlamaForCausalLM(config).to(torch.float32).eval()
    weights = load_gguf_checkpoint(str(source.path), return_tensors=True, model_to_load=model)["tensors"]
    outcome = model.load_state_dict(weights, strict=False)
    assert (outcome.missing_keys, outcome.unexpected_keys) in (([], []), (["lm_head.weight"], []))
    return model


@pytest.fixture(scope="module")
def prompts(source: ModelSource) -> dict[int, list[int]]:
    """Token ids of the prompts, by a byte-level BPE built from the file's own vocabulary."""
    fields = GGUFReader(source.path).fields
    tokens = fields["tokenizer.ggml.tokens"].contents()
    merges = [tuple(merge.split(" ")) for merge in fields["tokenizer.ggml.merges"].contents()]
    kinds = fields["tokenizer.ggml.token_type"].contents()
    tokenizer = Tokenizer(models.BPE({token: index for index, token in enumerate(tokens)}, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.add_special_tokens(
        [token for token, kind in zip(tokens, kinds, strict=True) if kind == TokenType.CONTROL]
    )
    return {index: tokenizer.encode(prompt).ids for index, prompt in enumerate(PROMPTS)}


@pytest.fixture(scope="module")
def model(source: ModelSource) -> Model:
    return load_model(source, torch.float32, torch.device("cpu"))


@pytest.fixture(scope="module")
def greedy(model: Model, prompts: dict[int, list[int]]) -> dict[int, list[int]]:
    """Our tokens, all prompts in one batch."""
    return PagedRunner(model, num_blocks=160).greedy(prompts, COUNT, chunk=64)


def test_every_token_is_the_one_the_reference_would_choose(
    greedy: dict[int, list[int]], reference: Any, prompts: dict[int, list[int]]
) -> None:
    """One pass over prompt and answer shows all 64 choices: each follows the same tokens as in a greedy generation."""
    for index, prompt in prompts.items():
        logits = reference_logits(reference, prompt + greedy[index][:-1])
        assert logits[len(prompt) - 1 :].argmax(dim=-1).tolist() == greedy[index], PROMPTS[index]


def test_a_generation_of_the_reference_is_the_same(
    greedy: dict[int, list[int]], reference: Any, prompts: dict[int, list[int]]
) -> None:
    assert reference_greedy(reference, prompts[0], COUNT) == greedy[0]


def test_batches_and_chunks_change_nothing(
    greedy: dict[int, list[int]], model: Model, prompts: dict[int, list[int]]
) -> None:
    assert PagedRunner(model, num_blocks=160).greedy(prompts, COUNT, chunk=7) == greedy
    for index in (0, 6):
        assert PagedRunner(model).greedy({index: prompts[index]}, COUNT, chunk=1)[index] == greedy[index]


def test_logits_equal_the_reference(model: Model, reference: Any, prompts: dict[int, list[int]]) -> None:
    logits = PagedRunner(model).prefill(prompts, chunk=64)
    for index, prompt in prompts.items():
        torch.testing.assert_close(logits[index], reference_logits(reference, prompt), rtol=1e-3, atol=1e-3)


def test_it_knows_the_capital_of_france_in_bfloat16(source: ModelSource, prompts: dict[int, list[int]]) -> None:
    lines: list[str] = []
    model = load_model(source, torch.bfloat16, torch.device("cpu"), lines.append)
    tokens = PagedRunner(model).greedy({0: prompts[0]}, 1)[0]
    vocabulary = GGUFReader(source.path).fields["tokenizer.ggml.tokens"]
    assert vocabulary.contents(tokens[0]) == "ĠParis"
    assert lines[0].startswith("reading 30 layers")
    assert lines[-1] == "read layer 30 of 30"


def test_its_size_is_known_before_it_is_loaded(source: ModelSource) -> None:
    config = load_config(source)
    parameters = 134_515_008
    embedding = config.vocab_size * config.hidden_size
    positions = 8192 * 64 * 4
    assert weight_bytes(config, torch.bfloat16, torch.device("cuda")) == 2 * parameters + positions
    assert weight_bytes(config, torch.bfloat16) == 2 * (parameters + embedding) + positions
    assert kv_block_bytes(config, 16, torch.bfloat16) == 2 * 30 * 3 * 16 * 64 * 2
