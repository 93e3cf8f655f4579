"""The executor with real models: whatever the chunks, the batch and the prefix cache, the reference's greedy tokens."""

from __future__ import annotations

import queue
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
import torch

from tercet.model_source import ModelFormat, ModelSource, resolve_model
from tests.worker.models import CASES, random_prompts, reference_greedy, save_tiny
from worker.executor import Executor
from worker.kv_cache import KVCache
from worker.messages import Attach, Chunk, Event, NewSequence, Plan, PlanDone, StepResult
from worker.model.decoder import Model
from worker.weights.loader import load_model

CPU = torch.device("cpu")
COUNT = 64


class Runs:
    """An executor that keeps its prefix cache between runs."""

    def __init__(self, model: Model) -> None:
        self._executor = Executor(model, KVCache(model.config, 256, 16, torch.float32, CPU), CPU, check_every_step=True)
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._executor.submit(Attach(self._events.put))
        self._executor.start()
        self._plan_seq = 0
        self.num_cached: dict[int, int] = {}

    def greedy(self, prompts: Mapping[int, Sequence[int]], count: int, chunk: int) -> dict[int, list[int]]:
        """`count` tokens of each sequence, all in one batch, prefilled `chunk` tokens of each a step."""
        for sequence_id, prompt in prompts.items():
            self._executor.submit(NewSequence(sequence_id, tuple(prompt), len(prompt) + count))
        out: dict[int, list[int]] = {sequence_id: [] for sequence_id in prompts}
        left = set(prompts)
        while left:
            self._plan_seq += 1
            chunks = tuple(Chunk(sequence_id, chunk) for sequence_id in left)
            self._executor.submit(Plan(self._plan_seq, 4, chunks, tuple(left)))
            while not (isinstance(event := self._events.get(timeout=120), PlanDone)):
                if isinstance(event, StepResult):
                    for sequence_id, token_id in zip(event.sequence_ids, event.token_ids, strict=True):
                        out[sequence_id].append(token_id)
                    self.num_cached |= {item.sequence_id: item.num_cached for item in event.prefills}
                    left -= {ended.sequence_id for ended in event.ended}
        return out

    def stop(self) -> None:
        """Ends the executor."""
        self._executor.stop()


@pytest.mark.parametrize("case", ["llama", "mistral", "qwen2", "qwen3"])
def test_tiny_models(tmp_path: Path, case: str) -> None:
    family, settings = CASES[case]
    reference = save_tiny(tmp_path, family, **settings)
    model = load_model(ModelSource(ModelFormat.HUGGING_FACE, tmp_path), torch.float32, CPU)
    prompts = dict(enumerate(random_prompts([1, 5, 17, 64, 90])))
    expected = {index: reference_greedy(reference, prompt, COUNT) for index, prompt in prompts.items()}
    for chunk in (1, 7, 64):
        runs = Runs(model)
        assert runs.greedy(prompts, COUNT, chunk) == expected
        assert not any(runs.num_cached.values())
        # Again, now with their prefixes in the cache: together, and one alone.
        assert runs.greedy(prompts, COUNT, chunk) == expected
        assert runs.num_cached == {0: 0, 1: 0, 2: 16, 3: 48, 4: 80}
        assert runs.greedy({9: prompts[4]}, COUNT, chunk) == {9: expected[4]}
        runs.stop()


@pytest.mark.model
def test_the_embedded_model() -> None:
    model = load_model(resolve_model("embedded"), torch.float32, CPU)
    prompts = dict(enumerate(random_prompts([40, 7, 33, 18], vocab_size=49152)))
    runs = Runs(model)
    alone = {index: runs.greedy({index: prompt}, COUNT, 64)[index] for index, prompt in prompts.items()}
    assert not any(runs.num_cached.values())
    for chunk in (7, 64):
        assert runs.greedy(prompts, COUNT, chunk) == alone
        assert runs.num_cached == {0: 32, 1: 0, 2: 32, 3: 16}
    runs.stop()
