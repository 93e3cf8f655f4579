"""A worker's memory on a GPU: what was measured suffices, and no more than was agreed is taken."""

from __future__ import annotations

import queue
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from bench.dummy_model import write_dummy_model
from bench.workload import Shape
from tercet.errors import StartupError
from tercet.model_source import ModelSource, resolve_model
from tercet.sections import MeshConfig, ModelSettings, WorkerSettings
from tests.worker.cuda import needs_cuda
from worker.engine import build_executor, warm_up
from worker.executor import Executor
from worker.layout import Layout, plan_layout
from worker.memory_profile import CudaMemory
from worker.messages import Attach, Chunk, Detach, Event, NewSequence, Plan, StepResult

pytestmark = needs_cuda
GIB = 1 << 30
SHAPE = Shape(
    vocab_size=32_000, hidden_size=1024, intermediate_size=4096, num_layers=4, num_heads=16, num_kv_heads=4,
    head_dim=64, tie_word_embeddings=False,
)  # fmt: skip


@pytest.fixture
def source(tmp_path: Path) -> Iterator[ModelSource]:
    write_dummy_model(SHAPE, tmp_path)
    CudaMemory(torch.device("cuda")).settle()
    yield resolve_model(str(tmp_path), "dummy")
    torch.cuda.set_per_process_memory_fraction(1.0)
    CudaMemory(torch.device("cuda")).settle()


def settings(num_bytes: int, **others: Any) -> WorkerSettings:
    part = num_bytes / torch.cuda.mem_get_info()[1]
    return WorkerSettings(
        device="cuda", gpu_memory_utilization=part, max_num_seqs=64, max_num_batched_tokens=4096,
        **others,
    )  # fmt: skip


def plan(source: ModelSource, worker: WorkerSettings) -> Layout:
    return plan_layout(MeshConfig(model=ModelSettings(model=str(source.path)), worker=worker), source)


def test_a_worker_fills_its_part_and_stays_within(source: ModelSource) -> None:
    worker = settings(6 * GIB)
    estimated = plan(source, worker)
    memory = CudaMemory(torch.device("cuda"))
    executor, built = build_executor(estimated, source, worker, lambda line: None)
    executor.start()
    try:
        warm_up(executor, built)
        room = built.budget.room
        assert room is not None
        assert room.size <= 6 * GIB
        assert memory.taken() <= room.size
        # Nothing worth a hundredth is left unused.
        assert built.budget.usage.total + built.budget.kv_bytes > 0.99 * room.size
        # Estimates are of use: the measured cache is about as large.
        assert built.budget.num_blocks == pytest.approx(estimated.budget.num_blocks, rel=0.15)
        with pytest.raises(torch.OutOfMemoryError):
            torch.empty(2 * GIB, dtype=torch.uint8, device="cuda")
    finally:
        executor.stop()


def prefill(executor: Executor, plan_seq: int, num_tokens: int) -> StepResult:
    """What comes of a prompt that is computed in one step, on a started executor."""
    events: queue.SimpleQueue[Event] = queue.SimpleQueue()
    executor.submit(Attach(events.put))
    executor.submit(NewSequence(plan_seq, (plan_seq,) * num_tokens, num_tokens + 1))
    executor.submit(Plan(plan_seq, 1, (Chunk(plan_seq, num_tokens),), (plan_seq,)))
    while not isinstance(event := events.get(timeout=30), StepResult):
        pass
    executor.submit(Detach(events.put))
    # Read between two steps: nothing of this one is held any more.
    while not executor.idle:
        time.sleep(0.001)
    return event


def test_a_step_that_finds_no_memory_fails_its_sequences_alone(source: ModelSource) -> None:
    worker = settings(6 * GIB)
    executor, built = build_executor(plan(source, worker), source, worker, lambda line: None)
    executor.start()
    try:
        warm_up(executor, built)
        # More tokens than a captured step has.
        assert len(prefill(executor, 1, 2000).token_ids) == 1
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        torch.cuda.set_per_process_memory_fraction(0.001)
        failure = prefill(executor, 2, 2000).ended[0].failure
        assert failure is not None
        assert failure.message == "the step failed: OutOfMemoryError"
        torch.cuda.set_per_process_memory_fraction(1.0)
        assert len(prefill(executor, 3, 2000).token_ids) == 1
        assert executor.alive
    finally:
        executor.stop()


def test_a_cache_that_does_not_fit_is_refused_before_anything_is_loaded(source: ModelSource) -> None:
    with pytest.raises(StartupError, match=r"KV cache 6,144 MiB.*worker\.gpu_memory_utilization"):
        plan(source, settings(6 * GIB, kv_cache_memory=6 * GIB))
    assert plan(source, settings(6 * GIB, kv_cache_memory=4 * GIB)).budget.kv_bytes == 4 * GIB
    with pytest.raises(StartupError, match=r"KV cache for 4,096 tokens.* raise worker\.gpu_memory_utilization"):
        plan(source, settings(GIB // 4))


def test_a_worker_makes_do_with_what_others_leave(source: ModelSource) -> None:
    free = torch.cuda.mem_get_info()[0]
    held = torch.empty(free - 4 * GIB, dtype=torch.uint8, device="cuda")
    room = plan(source, settings(int(0.9 * torch.cuda.mem_get_info()[1]))).budget.room
    assert room is not None
    assert "others leave" in room.why
    assert room.size < 4 * GIB
    del held
