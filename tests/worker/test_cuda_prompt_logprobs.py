"""Logprobs of prompts on a GPU: in chunks, beside runs of captured steps, against one pass over the whole prompt."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
import torch

from tests.worker.cuda import needs_cuda
from tests.worker.stepped_executor import steps_of, tokens_of
from tests.worker.test_cuda_steps import BLOCK_SIZE, CONFIG, CUDA, NUM_BLOCKS, Bench, Device, alone, make_device
from worker.kv_cache import KVCache
from worker.messages import NewSequence, Sampling
from worker.ops.attention import AttentionBatch

pytestmark = needs_cuda
NUM_TOP = 5


@pytest.fixture(scope="module")
def device() -> Device:
    return make_device(torch.float32)


def at_once(device: Device, prompt: Sequence[int]) -> torch.Tensor:
    """Logprobs [T - 1, V] behind each token of a prompt but the last."""
    kv_cache = KVCache(CONFIG, NUM_BLOCKS, BLOCK_SIZE, torch.float32, CUDA)
    num_tokens = len(prompt)
    num_blocks = -(-num_tokens // BLOCK_SIZE)
    batch = AttentionBatch(
        query_starts=torch.tensor([0, num_tokens], dtype=torch.int32, device=CUDA),
        context_lens=torch.tensor([num_tokens], dtype=torch.int32, device=CUDA),
        block_tables=torch.arange(num_blocks, dtype=torch.int32, device=CUDA)[None].contiguous(),
        slots=torch.arange(num_tokens, device=CUDA),
        total_context=num_tokens,
    )
    positions = torch.arange(num_tokens, device=CUDA)
    token_ids = torch.tensor(prompt, device=CUDA)
    logits = device.model.forward(token_ids, positions, kv_cache.layers, batch, positions)
    return logits.double().log_softmax(dim=1)[:-1].cpu()


@pytest.mark.parametrize("chunk", [7, 64, 1000])
def test_each_place_once_beside_what_decodes(device: Device, chunk: int) -> None:
    rng = random.Random(chunk)
    prompt = tuple(rng.randrange(CONFIG.vocab_size) for _ in range(300))
    neighbour = NewSequence(1, (3, 1, 4, 1, 5), 400, sampling=Sampling(0.8, seed=3))
    asking = NewSequence(2, prompt, len(prompt) + 9, sampling=Sampling(num_prompt_logprobs=NUM_TOP))
    bench = Bench(device, device.graphs)
    # The prefix is there, and of no use.
    bench.run(NewSequence(3, prompt, len(prompt) + 1), bench.plan(1, {3: len(prompt)}))
    bench.run(neighbour, bench.plan(5, {1: 5}), asking)
    for _ in range(-(-len(prompt) // chunk)):
        bench.run(bench.plan(3, {2: chunk}))
    bench.run(bench.plan(400, {}))
    parts = [part for step in steps_of(bench.events) for part in step.prompt_logprobs]
    assert {part.sequence_id for part in parts} == {2}
    assert [part.first for part in parts] == [1 + sum(len(p.logprobs) for p in parts[:i]) for i in range(len(parts))]
    want = at_once(device, prompt)
    own = want.gather(1, torch.tensor(prompt)[1:, None])[:, 0]
    found = torch.tensor([each for part in parts for each in part.logprobs], dtype=torch.float64)
    torch.testing.assert_close(found, own, atol=1e-4, rtol=1e-4)
    tops = torch.tensor([each for part in parts for each in part.top_logprobs], dtype=torch.float64)
    torch.testing.assert_close(tops.view(-1, NUM_TOP), want.topk(NUM_TOP, dim=1).values, atol=1e-4, rtol=1e-4)
    assert tokens_of(bench.events, 1) == alone(device, neighbour)
    assert tokens_of(bench.events, 2) == alone(device, NewSequence(2, prompt, len(prompt) + 9))
