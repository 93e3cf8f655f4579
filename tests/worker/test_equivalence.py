"""The executor with real models: whatever the chunks, the batch and the prefix cache, the reference's greedy tokens."""

from __future__ import annotations

import queue
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
import torch

from tercet.model_source import ModelFormat, ModelSource
from tests.worker.models import CASES, random_prompts, reference_greedy, save_tiny
from tests.worker.smollm2 import COUNT, SmolLM2
from worker.executor import Executor
from worker.host_steps import HostSteps
from worker.kv_cache import KVCache
from worker.messages import Attach, Chunk, Event, NewSequence, Plan, PlanDone, StepResult
from worker.model.decoder import Model
from worker.weights.loader import load_model

CPU = torch.device("cpu")
BLOCK_SIZE = 16
CHUNKS = (1, 7, 64)


class Runs:
    """An executor that keeps its prefix cache between runs."""

    def __init__(self, model: Model) -> None:
        kv_cache = KVCache(model.config, 256, BLOCK_SIZE, torch.float32, CPU)
        self._executor = Executor(HostSteps(model, kv_cache), kv_cache, check_every_step=True)
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._executor.submit(Attach(self._events.put))
        self._executor.start()
        self._plan_seq = 0

    def together(
        self, prompts: Mapping[int, Sequence[int]], count: int, chunk: int
    ) -> tuple[dict[int, list[int]], dict[int, int]]:
        """`count` greedy tokens of each sequence, all in one batch, prefilled `chunk` tokens of each a step; and how
        many tokens of each prompt were in the cache."""
        for sequence_id, prompt in prompts.items():
            self._executor.submit(NewSequence(sequence_id, tuple(prompt), len(prompt) + count))
        out: dict[int, list[int]] = {sequence_id: [] for sequence_id in prompts}
        num_cached: dict[int, int] = {}
        left = set(prompts)
        while left:
            self._plan_seq += 1
            chunks = tuple(Chunk(sequence_id, chunk) for sequence_id in left)
            self._executor.submit(Plan(self._plan_seq, 4, chunks, tuple(left)))
            while not (isinstance(event := self._events.get(timeout=120), PlanDone)):
                if isinstance(event, StepResult):
                    for sequence_id, token_id in zip(event.sequence_ids, event.token_ids, strict=True):
                        out[sequence_id].append(token_id)
                    num_cached |= {item.sequence_id: item.num_cached for item in event.prefills}
                    left -= {ended.sequence_id for ended in event.ended}
        return out, num_cached

    def one_by_one(
        self, prompts: Mapping[int, Sequence[int]], count: int, chunk: int
    ) -> tuple[dict[int, list[int]], dict[int, int]]:
        """The same, each sequence alone."""
        out: dict[int, list[int]] = {}
        num_cached: dict[int, int] = {}
        for sequence_id, prompt in prompts.items():
            tokens, cached = self.together({sequence_id: prompt}, count, chunk)
            out |= tokens
            num_cached |= cached
        return out, num_cached

    def stop(self) -> None:
        """Ends the executor."""
        self._executor.stop()


def check(
    model: Model,
    prompts: Mapping[int, Sequence[int]],
    expected: Mapping[int, Sequence[int]],
    chunk: int,
    alone: int = COUNT,
) -> None:
    """All together on an empty cache, each alone with hits; each alone on an empty cache, all together with hits.
    `alone` is how many tokens each gets alone."""
    # Whole blocks, but never the last token, which has to be computed.
    hits = {sequence_id: (len(prompt) - 1) // BLOCK_SIZE * BLOCK_SIZE for sequence_id, prompt in prompts.items()}
    misses = dict.fromkeys(prompts, 0)
    # Alone with nothing in the cache is the same again for a prompt of less than a block.
    long = {sequence_id: prompt for sequence_id, prompt in prompts.items() if hits[sequence_id]}
    assert len(long) > 1
    runs = Runs(model)
    assert runs.together(prompts, COUNT, chunk) == (expected, misses)
    beginnings = {key: expected[key][:alone] for key in prompts}
    assert runs.one_by_one(long, alone, chunk) == (
        {key: beginnings[key] for key in long},
        {key: hits[key] for key in long},
    )
    runs.stop()
    runs = Runs(model)
    assert runs.one_by_one(prompts, alone, chunk) == (beginnings, misses)
    assert runs.together(prompts, COUNT, chunk) == (expected, hits)
    runs.stop()


@pytest.mark.parametrize(
    "case", ["llama", "mistral", "qwen2", "qwen3", "mistral-window", "gemma2", "gemma3", "phi3-window-tied"]
)
def test_tiny_models(tmp_path: Path, case: str) -> None:
    family, settings = CASES[case]
    reference = save_tiny(tmp_path, family, **settings)
    model = load_model(ModelSource(ModelFormat.HUGGING_FACE, tmp_path), torch.float32, CPU)
    prompts = dict(enumerate(random_prompts([1, 5, 17, 64, 90])))
    expected = {index: reference_greedy(reference, prompt, COUNT) for index, prompt in prompts.items()}
    for chunk in CHUNKS:
        check(model, prompts, expected, chunk)


@pytest.mark.model
@pytest.mark.parametrize("chunk", CHUNKS)
def test_the_embedded_model(smollm2: SmolLM2, chunk: int) -> None:
    # Behind the prompt it is all one in which chunks that came: each alone to the end once, else to its next block.
    alone = COUNT if chunk == max(CHUNKS) else BLOCK_SIZE + 1
    check(smollm2.model, smollm2.prompts, smollm2.chosen, chunk, alone)
