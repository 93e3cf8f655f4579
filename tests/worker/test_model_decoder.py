"""The decoder of every family against transformers, in float32, over a paged cache."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tercet.model_source import resolve_model
from tests.worker.models import (
    CASES,
    PagedRunner,
    random_prompts,
    reference_greedy,
    reference_logits,
    save_tiny,
    tiny_reference,
)
from worker.model.config import ModelConfig
from worker.model.decoder import Model
from worker.model.tensors import tensor_shapes
from worker.ops.attention import AttentionBatch
from worker.weights.assemble import assemble
from worker.weights.loader import load_config, load_model, random_model

CPU = torch.device("cpu")
LENGTHS = (1, 7, 30, 64, 131)

TINY = ModelConfig(
    family="qwen3",
    vocab_size=97,
    hidden_size=32,
    intermediate_size=48,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_dim=16,
    rms_norm_eps=1e-6,
    max_position=128,
    max_model_len=128,
    qk_norm=True,
)


@pytest.fixture(scope="module", params=CASES)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Model]:
    """A transformers model, and ours read from its checkpoint; one of them in shards."""
    family, settings = CASES[request.param]
    directory = tmp_path_factory.mktemp(request.param)
    shard = "60KB" if request.param == "qwen2" else "1GB"
    reference = save_tiny(directory, family, max_shard_size=shard, **settings)
    assert (directory / "model.safetensors.index.json").exists() == (shard == "60KB")
    return reference, load_model(resolve_model(str(directory)), torch.float32, CPU)


@pytest.mark.parametrize("chunk", [1, 7, 64])
def test_logits_equal_the_reference_for_every_chunking(pair: tuple[Any, Model], chunk: int) -> None:
    reference, model = pair
    prompts = dict(enumerate(random_prompts(LENGTHS)))
    together = PagedRunner(model).prefill(prompts, chunk)
    for sequence, prompt in prompts.items():
        expected = reference_logits(reference, prompt)
        alone = PagedRunner(model, block_size=8).prefill({sequence: prompt}, chunk)[sequence]
        assert together[sequence].dtype == torch.float32
        torch.testing.assert_close(together[sequence], expected, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(alone, expected, rtol=1e-4, atol=1e-4)


def test_greedy_tokens_equal_the_reference(pair: tuple[Any, Model]) -> None:
    reference, model = pair
    prompts = dict(enumerate(random_prompts(LENGTHS, seed=1)))
    expected = {sequence: reference_greedy(reference, prompt, 24) for sequence, prompt in prompts.items()}
    assert len({tuple(tokens) for tokens in expected.values()}) == len(prompts)
    assert PagedRunner(model).greedy(prompts, 24, chunk=7) == expected
    assert {s: PagedRunner(model).greedy({s: prompt}, 24)[s] for s, prompt in prompts.items()} == expected


def test_prefill_and_decode_mix_in_one_step(pair: tuple[Any, Model]) -> None:
    reference, model = pair
    first, second = random_prompts((20, 33), seed=2)
    runner = PagedRunner(model)
    runner.step({0: first[:-1]})
    mixed = runner.step({1: second, 0: first[-1:]})
    torch.testing.assert_close(mixed[0], reference_logits(reference, first)[-1:], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(mixed[1], reference_logits(reference, second), rtol=1e-4, atol=1e-4)


def test_only_the_asked_rows_have_logits() -> None:
    model = random_model(TINY, torch.float32, CPU, seed=0)
    (prompt,) = random_prompts((12,), vocab_size=TINY.vocab_size)
    full = PagedRunner(model).step({0: prompt})[0]
    kv = PagedRunner(model).kv
    count = len(prompt)
    batch = AttentionBatch(
        query_starts=torch.tensor([0, count], dtype=torch.int32),
        context_lens=torch.tensor([count], dtype=torch.int32),
        block_tables=torch.tensor([[3]], dtype=torch.int32),
        slots=torch.arange(48, 48 + count),
    )
    for rows in ([11, 2], [5], []):
        logits = model.forward(
            torch.tensor(prompt), torch.arange(count), kv, batch, torch.tensor(rows, dtype=torch.int64)
        )
        assert logits.shape == (len(rows), TINY.vocab_size)
        torch.testing.assert_close(logits, full[rows], rtol=0, atol=1e-6)


def test_float64_is_exact_to_float32_for_every_chunking() -> None:
    model = random_model(TINY, torch.float64, CPU, seed=3)
    (prompt,) = random_prompts((40,), vocab_size=TINY.vocab_size)
    whole = PagedRunner(model).prefill({0: prompt}, 40)[0]
    parts = PagedRunner(model).prefill({0: prompt}, 3)[0]
    assert whole.dtype == torch.float32
    torch.testing.assert_close(whole, parts, rtol=2e-7, atol=1e-9)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_logits_are_bitwise_the_same_in_every_batch_and_chunking(dtype: torch.dtype) -> None:
    model = random_model(TINY, dtype, CPU, seed=1)
    prompts = dict(enumerate(random_prompts((3, 17, 50, 90), vocab_size=TINY.vocab_size)))
    alone = {s: PagedRunner(model).prefill({s: prompt}, 1)[s] for s, prompt in prompts.items()}
    for chunk in (5, 64):
        together = PagedRunner(model, seed=chunk).prefill(prompts, chunk)
        assert all(torch.equal(together[sequence], alone[sequence]) for sequence in prompts)


class ZeroTensors:
    """A TensorSource of zeros, read from the CPU as checkpoints are."""

    origin = "zeros"

    def shapes(self) -> dict[str, tuple[int, ...]]:
        return tensor_shapes(TINY)

    def stored_name(self, name: str) -> str:
        return name

    def read(self, name: str) -> torch.Tensor:
        return torch.zeros(tensor_shapes(TINY)[name])


def test_every_tensor_of_a_pass_is_on_the_models_device() -> None:
    """Torch refuses to mix its meta device with the CPU, and the C++ kernels could not run on it."""
    device = torch.device("meta")
    model = assemble(TINY, ZeroTensors(), torch.bfloat16, device)
    kv = PagedRunner(model).kv
    batch = AttentionBatch(
        # The twin of paged attention reads these two on the host.
        query_starts=torch.tensor([0, 5], dtype=torch.int32),
        context_lens=torch.tensor([5], dtype=torch.int32),
        block_tables=torch.tensor([[2]], dtype=torch.int32, device=device),
        slots=torch.arange(32, 37, device=device),
    )
    positions = torch.arange(5, device=device)
    logits = model.forward(positions, positions, kv, batch, torch.tensor([4], device=device))
    assert (logits.device, logits.shape, logits.dtype) == (device, (1, TINY.vocab_size), torch.float32)
    model.cos_sin = model.cos_sin.new_zeros(model.cos_sin.shape, device="cpu")
    with pytest.raises(ValueError, match="one device"):
        model.forward(positions, positions, kv, batch, torch.tensor([4], device=device))


def test_a_seed_gives_the_same_model_and_another_another() -> None:
    (prompt,) = random_prompts((9,), vocab_size=TINY.vocab_size)
    logits = [
        PagedRunner(random_model(TINY, torch.bfloat16, CPU, seed)).prefill({0: prompt}, 9)[0] for seed in (5, 5, 6)
    ]
    assert torch.equal(logits[0], logits[1])
    assert not torch.equal(logits[0], logits[2])


def test_bfloat16_stays_near_float32(tmp_path: Path) -> None:
    save_tiny(tmp_path, "llama", tie_word_embeddings=True)
    source = resolve_model(str(tmp_path))
    (prompt,) = random_prompts((50,))
    exact = PagedRunner(load_model(source, torch.float32, CPU)).prefill({0: prompt}, 50)[0]
    rounded = PagedRunner(load_model(source, torch.bfloat16, CPU)).prefill({0: prompt}, 50)[0]
    cosine = torch.nn.functional.cosine_similarity(exact, rounded, dim=-1)
    assert cosine.min() > 0.99


def test_a_shorter_served_length_changes_nothing_within_it(tmp_path: Path) -> None:
    save_tiny(tmp_path, "qwen3", head_dim=32)
    source = resolve_model(str(tmp_path))
    (prompt,) = random_prompts((60,))
    short = load_model(source, torch.float32, CPU, max_model_len=64)
    assert (short.config.max_position, short.config.max_model_len) == (256, 64)
    assert len(short.cos_sin) == 64
    full = load_model(source, torch.float32, CPU)
    assert torch.equal(PagedRunner(short).prefill({0: prompt}, 60)[0], PagedRunner(full).prefill({0: prompt}, 60)[0])


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("case", CASES)
def test_cuda_equals_the_reference(case: str, tmp_path: Path) -> None:
    family, settings = CASES[case]
    reference = save_tiny(tmp_path, family, **settings)
    model = load_model(resolve_model(str(tmp_path)), torch.float32, torch.device("cuda"))
    (prompt,) = random_prompts((70,))
    logits = PagedRunner(model).prefill({0: prompt}, 33)[0]
    torch.testing.assert_close(logits.cpu(), reference_logits(reference, prompt), rtol=1e-3, atol=1e-3)


def test_the_configuration_comes_without_weights(tmp_path: Path) -> None:
    tiny_reference("llama").config.save_pretrained(tmp_path)
    config = load_config(resolve_model(str(tmp_path)))
    assert (config.num_layers, config.hidden_size, config.vocab_size) == (2, 64, 211)
