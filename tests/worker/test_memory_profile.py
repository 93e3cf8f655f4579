"""What is measured of a GPU's memory, on one that only counts; and the steps that are measured, on a CPU."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
import torch
from structlog.testing import capture_logs

from tercet.errors import StartupError
from tercet.sections import WorkerSettings
from worker.budget import Budget, Room, Usage, plan_budget
from worker.engine import build_within, warm_up
from worker.kv_cache import KVCache
from worker.layout import Layout
from worker.memory_profile import enough_memory, keep_within, measure, run_largest_steps
from worker.model.config import ModelConfig
from worker.model.decoder import Model
from worker.model.tensors import kv_block_bytes
from worker.ops.attention import AttentionBatch
from worker.weights.loader import random_model

CPU = torch.device("cpu")
CONFIG = ModelConfig(
    family="llama", vocab_size=64, hidden_size=32, intermediate_size=48, num_layers=2, num_heads=4, num_kv_heads=2,
    head_dim=16, rms_norm_eps=1e-5, max_position=64, max_model_len=64,
)  # fmt: skip


@dataclass
class Counted:
    """Memory that somebody holds until the last reference is gone."""

    memory: CountingMemory
    size: int

    def __del__(self) -> None:
        self.memory.tensors -= self.size


@dataclass
class CountingMemory:
    """The DeviceMemory of nothing: `tensors` live in what the allocator has `reserved`."""

    tensors: int = 0
    reserved: int = 0
    most: int = 0
    driver: int = 0  # taken by no tensor
    total: int = 10_000
    limits: list[int] = field(default_factory=list)  # of what the allocator may hold

    def tensor(self, size: int) -> Counted:
        self.tensors += size
        self.reserved = max(self.reserved, self.tensors)
        self.most = max(self.most, self.reserved)
        return Counted(self, size)

    def taken(self) -> int:
        return self.reserved + self.driver

    def held(self) -> int:
        return self.reserved

    def peak(self) -> int:
        return self.most

    def settle(self) -> None:
        self.reserved = self.most = self.tensors

    def free(self) -> int:
        return self.total - self.taken()

    def limit(self, size: int, more: int) -> None:
        self.limits.append(max(size - (self.taken() - self.held()), self.held() + more))


def test_everything_is_counted_once_and_fragments_have_a_fourth_of_a_step() -> None:
    memory = CountingMemory()
    kept: list[Counted] = []
    weights = memory.tensor(1000)
    memory.tensor(300)  # what loading took in passing

    def run_steps() -> None:
        activations = memory.tensor(200)
        kept.append(memory.tensor(30))  # cuBLAS's memory
        memory.driver += 50  # kernels
        del activations

    def capture() -> object:
        memory.tensor(500)  # each size once before it is captured
        memory.driver += 7
        return memory.tensor(80)

    assert measure(memory, run_steps, capture) == Usage(weights=1000, workspace=250, graphs=87, libraries=87)
    assert (weights.size, memory.reserved) == (1000, 1030)


def test_without_captured_steps_none_are_counted() -> None:
    memory = CountingMemory(driver=5)
    assert measure(memory, lambda: memory.tensor(8), None) == Usage(0, 10, 0, 5)


def test_memory_that_others_give_back_meanwhile_is_not_less_than_none() -> None:
    memory = CountingMemory()

    def run_steps() -> None:
        memory.driver -= 1000

    assert measure(memory, run_steps, lambda: None) == Usage(0, 0, 0, 0)


def budget(room: int, workspace: int) -> Budget:
    return Budget(Usage(0, workspace), 64, 16, 10, 40, 0, Room(room, ""))


def test_a_worker_is_held_to_its_budget() -> None:
    memory = CountingMemory(tensors=700, driver=100)
    keep_within(memory, budget(room=1000, workspace=200))
    assert memory.limits == [900]


def test_a_neighbour_that_starts_meanwhile_takes_no_memory_of_the_steps() -> None:
    memory = CountingMemory(tensors=700, driver=600)
    keep_within(memory, budget(room=1000, workspace=200))
    assert memory.limits == [900]


def test_a_worker_that_kept_more_than_planned_is_told_of_and_may_compute() -> None:
    memory = CountingMemory(tensors=700, driver=200)
    with capture_logs() as events:
        keep_within(memory, budget(room=1000, workspace=200))
    assert memory.limits == [900]
    assert [event["event"] for event in events if event["log_level"] == "warning"] == ["memory_beyond_budget"]


def test_a_worker_without_memory_for_its_steps_does_not_start() -> None:
    memory = CountingMemory(tensors=700, driver=100, total=999)
    with pytest.raises(StartupError, match=r"not enough memory: a step needs .* lower worker\.gpu_memory_utilization"):
        keep_within(memory, budget(room=1000, workspace=200))
    assert memory.limits == []


def cuda_layout(room: int, block_size: int = 16) -> Layout:
    """As if the CPU were a GPU of so many bytes."""
    block_bytes = kv_block_bytes(CONFIG, block_size, torch.float32)
    planned = plan_budget(
        usage=Usage(0, 0), room=Room(room, "all of it"), kv_cache_memory=0, kv_block_bytes=block_bytes,
        block_size=block_size, max_model_len=CONFIG.max_model_len,
    )  # fmt: skip
    return Layout(CONFIG, CPU, torch.float32, torch.float32, planned)


def test_a_cache_takes_what_is_measured_to_be_left() -> None:
    layout = cuda_layout(100_000)
    block_bytes = layout.budget.kv_block_bytes
    memory = CountingMemory(tensors=30_000, total=1 << 30)
    model = random_model(CONFIG, torch.float32, CPU, seed=0)
    settings = WorkerSettings(device="cuda", max_num_seqs=4, max_num_batched_tokens=32)

    class Loading(Model):
        def forward(self, *args):  # type: ignore[no-untyped-def]
            memory.driver = 10_000  # libraries, for good
            return super().forward(*args)

    executor, built = build_within(memory, Loading(CONFIG, model.weights), layout, settings)
    assert built.budget.usage == Usage(weights=30_000, workspace=0, graphs=0, libraries=10_000)
    assert built.budget.num_blocks == 60_000 // block_bytes
    assert memory.limits == [90_000]
    executor.start()
    try:
        warm_up(executor, built)
    finally:
        executor.stop()
    with pytest.raises(StartupError, match=r"libraries 0 MiB.*\(all of it\)"):
        build_within(memory, model, cuda_layout(30_000 + 4 * block_bytes), settings)


class Shapes(Model):
    """Notes what it is asked to compute."""

    def __init__(self, model: Model) -> None:
        super().__init__(model.config, model.weights)
        self.seen: list[tuple[int, int]] = []
        self.contexts: list[list[int]] = []

    def forward(self, token_ids, positions, kv, batch: AttentionBatch, logit_rows):  # type: ignore[no-untyped-def]
        self.seen.append((len(token_ids), len(logit_rows)))
        self.contexts.append(batch.context_lens.tolist())
        counts = batch.query_starts.diff()
        assert int(counts.sum()) == len(token_ids)
        assert bool((counts <= batch.context_lens).all())
        assert batch.total_context is not None
        assert sum(self.contexts[-1]) <= max(batch.total_context, len(token_ids))
        return super().forward(token_ids, positions, kv, batch, logit_rows)


@pytest.mark.parametrize(
    ("num_tokens", "num_rows", "cache_tokens", "seen"),
    [
        (24, 5, 1000, [(5, 5), (24, 5)]),
        (24, 5, 1, [(5, 5), (24, 5)]),
        (8, 8, 1000, [(8, 8)]),
        (4, 9, 1000, [(4, 4)]),  # no step has more rows than tokens
        (500, 2, 10_000, [(2, 2), (128, 2)]),  # nor more tokens than fit into its sequences
        (1, 1, 1, [(1, 1)]),
    ],
)
def test_the_largest_steps_are_computed(
    num_tokens: int, num_rows: int, cache_tokens: int, seen: list[tuple[int, int]]
) -> None:
    model = Shapes(random_model(CONFIG, torch.float32, CPU, seed=0))
    kv_cache = KVCache(CONFIG, 1, 16, torch.float32, CPU)
    run_largest_steps(model, kv_cache, num_tokens, num_rows, cache_tokens)
    assert model.seen == seen
    if cache_tokens >= 1000:
        # As long as they may be, although there is one block.
        assert model.contexts[0] == [CONFIG.max_model_len] * seen[0][1]


@pytest.mark.parametrize(
    "error", [torch.OutOfMemoryError("CUDA out of memory. Tried\nto"), RuntimeError("cudaErrorMemory: out of memory")]
)
def test_memory_that_is_refused_is_an_error_that_names_settings(error: RuntimeError) -> None:
    with (
        pytest.raises(StartupError, match=r"^not enough memory for the weights: .*worker\.kv_cache_memory") as caught,
        enough_memory("the weights"),
    ):
        raise error
    assert "\n" not in str(caught.value)
    with pytest.raises(RuntimeError, match="misaligned"), enough_memory("the weights"):
        raise RuntimeError("misaligned address")


def test_a_device_that_fails_at_the_start_is_an_error_that_says_where_to_look() -> None:
    with (
        capture_logs() as events,
        pytest.raises(StartupError, match=r"failed while the weights were made: no kernel image.*TERCET_CUDA_ARCHS"),
        enough_memory("the weights"),
    ):
        raise RuntimeError("no kernel image is available for execution on the device\nmore")
    assert [event["event"] for event in events] == ["device_failed"]
