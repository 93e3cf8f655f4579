"""Steps on a GPU: captured ones beside those that are computed operation by operation, for a tiny model in float32."""

from __future__ import annotations

import queue
import random
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
import torch

from tests.worker.cuda import needs_cuda, needs_two_gpus
from tests.worker.stepped_executor import ended_of, tokens_of
from worker.executor import Executor
from worker.graph_steps import GraphSteps, capture_steps
from worker.host_steps import HostSteps
from worker.kv_cache import KVCache
from worker.messages import (
    Attach,
    Chunk,
    Event,
    Fork,
    NewSequence,
    Plan,
    PlanDone,
    Release,
    ReleaseCause,
    Released,
    Resume,
    Sampling,
    StepResult,
)
from worker.model.config import ModelConfig
from worker.model.decoder import Model
from worker.steps import Steps
from worker.swap_space import SwapSpace
from worker.weights.loader import random_model

pytestmark = needs_cuda

CONFIG = ModelConfig(
    family="llama",
    vocab_size=1000,
    hidden_size=128,
    intermediate_size=192,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_dim=64,
    rms_norm_eps=1e-5,
    max_position=2048,
    max_model_len=2048,
)
BLOCK_SIZE = 16
NUM_BLOCKS = 256
MAX_NUM_SEQS = 40
CUDA = torch.device("cuda")


@dataclass(frozen=True, slots=True)
class Device:
    """A model on the GPU, and both ways to compute its steps."""

    model: Model
    kv_cache: KVCache
    swap_space: SwapSpace
    graphs: GraphSteps
    host: HostSteps


def make_device(dtype: torch.dtype, device: torch.device = CUDA) -> Device:
    model = random_model(CONFIG, dtype, device, seed=0)
    kv_cache = KVCache(CONFIG, NUM_BLOCKS, BLOCK_SIZE, dtype, device)
    for tensor in kv_cache.blocks.tensors:
        tensor.fill_(float("nan"))
    graphs = capture_steps(model, kv_cache, MAX_NUM_SEQS, NUM_BLOCKS * BLOCK_SIZE)
    return Device(model, kv_cache, SwapSpace(kv_cache, 200), graphs, HostSteps(model, kv_cache))


@pytest.fixture(scope="module")
def device() -> Device:
    return make_device(torch.float32)


class Bench:
    """An executor that is stepped by hand, and what it says."""

    def __init__(self, device: Device, steps: Steps) -> None:
        self.executor = Executor(steps, device.kv_cache, device.swap_space, check_every_step=True)
        self.events: list[Event] = []
        self.plan_seq = 0
        self.executor.submit(Attach(self.events.append))

    def plan(self, num_steps: int, chunks: dict[int, int], revoke: bool = False) -> Plan:
        self.plan_seq += 1
        return Plan(
            self.plan_seq, num_steps, tuple(Chunk(key, count) for key, count in chunks.items()), tuple(chunks),
            self.plan_seq - 1 if revoke else 0,
        )  # fmt: skip

    def run(self, *commands: NewSequence | Plan | Release | Resume) -> None:
        """Obeys, and steps until there is no plan."""
        for command in commands:
            self.executor.submit(command)
        self.executor.obey()
        while self.executor._plans or self.executor._works:
            self.executor.step()
            self.executor.obey()


def alone(device: Device, spec: NewSequence) -> list[int]:
    """Its tokens, step by step on the host, with nothing beside it."""
    bench = Bench(device, device.host)
    bench.run(spec, bench.plan(4096, {spec.sequence_id: len(spec.token_ids)}))
    assert spec.sequence_id in ended_of(bench.events)
    return tokens_of(bench.events, spec.sequence_id)


def random_sequence(rng: random.Random, sequence_id: int) -> NewSequence:
    prompt = tuple(rng.randrange(CONFIG.vocab_size) for _ in range(rng.choice([1, 2, 15, 16, 17, 40, 100, 300])))
    sampling = Sampling(
        temperature=rng.choice([0.0, 0.7, 1.0]), top_p=rng.choice([1.0, 0.9]), top_k=rng.choice([0, 5]),
        min_p=rng.choice([0.0, 0.05]), seed=rng.getrandbits(64),
    )  # fmt: skip
    # More than a row has places for, at times.
    stops = frozenset(rng.sample(range(CONFIG.vocab_size), rng.choice([0, 1, 8, 60])))
    return NewSequence(sequence_id, prompt, len(prompt) + rng.choice([1, 2, 15, 40, 70]), stops, sampling)


@pytest.mark.parametrize("seed", range(8))
def test_each_sequence_gets_its_own_text(device: Device, seed: int) -> None:
    rng = random.Random(seed)
    specs = [random_sequence(rng, number) for number in range(rng.choice([1, 5, 20, 40]))]
    bench = Bench(device, device.graphs)
    waiting, live, missing = list(specs), set[int](), dict[int, int]()
    cancelled: set[int] = set()
    while waiting or live:
        for spec in [waiting.pop() for _ in range(min(len(waiting), rng.randint(0, 12)))]:
            bench.executor.submit(spec)
            live.add(spec.sequence_id)
            missing[spec.sequence_id] = len(spec.token_ids)
        for _ in range(rng.randint(1, 3)):
            chunks = {key: min(count, rng.choice([1, 7, 64, 1500])) for key, count in missing.items()}
            missing = {key: count - chunks[key] for key, count in missing.items() if count > chunks[key]}
            bench.executor.submit(bench.plan(rng.randint(1, 12), chunks, revoke=rng.random() < 0.2))
            bench.executor.obey()
            for _ in range(rng.randint(0, 6)):
                bench.executor.step()
        if live and rng.random() < 0.1:
            key = rng.choice(sorted(live))
            missing.pop(key, None)
            cancelled.add(key)
            bench.executor.submit(Release((key,), ReleaseCause.CANCEL))
        if not missing:
            bench.run()
        # A chunk of a plan that was revoked is to be asked for again.
        lengths = {spec.sequence_id: len(spec.token_ids) for spec in specs}
        live -= ended_of(bench.events).keys() | cancelled
        missing = {key: lengths[key] for key in live if not tokens_of(bench.events, key)}
    bench.run()
    for spec in specs:
        got, expected = tokens_of(bench.events, spec.sequence_id), alone(device, spec)
        assert got == (expected[: len(got)] if spec.sequence_id in cancelled else expected)
    assert device.kv_cache.counts().used == 0


def test_forks_and_swaps(device: Device) -> None:
    rng = random.Random(1)
    forks = tuple(Fork(number, rng.getrandbits(64)) for number in range(2, 8))
    prompt = tuple(range(50, 85))
    leader = NewSequence(1, prompt, 80, sampling=Sampling(temperature=1.0, seed=3), forks=forks)
    bench = Bench(device, device.graphs)
    bench.run(leader, bench.plan(7, {1: 35}))
    bench.run(Release((1, 4), ReleaseCause.SWAP), bench.plan(5, {}))
    bench.run(Resume((1, 4)))
    bench.run(Plan(9, 64, (), (1, 4)))
    for number, seed in ((1, 3), *((fork.sequence_id, fork.seed) for fork in forks)):
        expected = alone(device, NewSequence(number, prompt, 80, sampling=Sampling(temperature=1.0, seed=seed)))
        assert tokens_of(bench.events, number) == expected


@pytest.mark.parametrize("seed", range(4))
def test_swaps_beside_what_is_computed(device: Device, seed: int) -> None:
    """Blocks leave and come back while others take theirs; nothing is found in the cache, since prompts differ."""
    rng = random.Random(seed)
    lengths = [rng.choice([5, 90, 250]) for _ in range(8)]
    specs = [
        NewSequence(number, tuple(rng.randrange(1000) for _ in range(length)), length + 120)
        for number, length in enumerate(lengths)
    ]
    bench = Bench(device, device.graphs)
    bench.run(*specs, bench.plan(4, {spec.sequence_id: len(spec.token_ids) for spec in specs}))
    away: set[int] = set()
    while (live := {spec.sequence_id for spec in specs} - ended_of(bench.events).keys()) - away or away:
        if leaving := [number for number in live - away if rng.random() < 0.2][:3]:
            bench.executor.submit(Release(tuple(leaving), ReleaseCause.SWAP))
            away.update(leaving)
        if coming := [number for number in away if rng.random() < 0.4]:
            bench.executor.submit(Resume(tuple(coming)))
            away.difference_update(coming)
        # What is free by now is somebody's at once.
        table = device.kv_cache.new_table(b"other")
        bench.executor.obey()
        device.kv_cache.reserve(table, device.kv_cache.counts().free * BLOCK_SIZE // rng.choice([1, 4]))
        for tensor in device.kv_cache.blocks.tensors:
            tensor[torch.tensor(table.blocks(), dtype=torch.int64, device=CUDA)] = float("nan")
        table.release()
        bench.plan_seq += 1
        bench.run(Plan(bench.plan_seq, rng.randint(1, 9), (), tuple(live - away)))
    for spec in specs:
        assert tokens_of(bench.events, spec.sequence_id) == alone(device, spec)
    assert device.kv_cache.counts().used == 0
    assert device.swap_space.num_free == device.swap_space.num_total


@pytest.mark.parametrize("num_steps", [1, 5])
def test_plans_follow_each_other_in_one_run(device: Device, num_steps: int) -> None:
    bench = Bench(device, device.graphs)
    spec = NewSequence(1, (5, 6, 7), 200)
    bench.executor.submit(spec)
    bench.executor.submit(bench.plan(4, {1: 3}))
    bench.executor.submit(bench.plan(6, {}))
    bench.executor.obey()
    bench.executor.step()
    for _ in range(100 // num_steps):
        bench.executor.step()
        bench.executor.submit(bench.plan(num_steps, {}))
        bench.executor.obey()
    bench.run()
    done = [(event.plan_seq, event.steps_run) for event in bench.events if isinstance(event, PlanDone)]
    assert done == [(1, 4), (2, 6), *((number, num_steps) for number in range(3, 3 + 100 // num_steps))]
    got = tokens_of(bench.events, 1)
    assert got == alone(device, spec)[: len(got)]
    bench.run(Release((1,), ReleaseCause.CANCEL))
    assert device.kv_cache.counts().used == 0


def test_more_than_was_captured_is_computed_as_well(device: Device) -> None:
    rng = random.Random(2)
    specs = [
        NewSequence(number, tuple(rng.randrange(1000) for _ in range(60)), 66) for number in range(MAX_NUM_SEQS + 3)
    ]
    bench = Bench(device, device.graphs)
    bench.run(*specs, bench.plan(9, {spec.sequence_id: 60 for spec in specs}))
    for spec in specs[::9]:
        assert tokens_of(bench.events, spec.sequence_id) == alone(device, spec)


@pytest.fixture
def running(device: Device) -> Iterator[tuple[Executor, queue.SimpleQueue[Event]]]:
    # Of its own: an executor that ends closes what computes its steps.
    graphs = capture_steps(device.model, device.kv_cache, MAX_NUM_SEQS, NUM_BLOCKS * BLOCK_SIZE)
    executor = Executor(graphs, device.kv_cache, device.swap_space)
    events: queue.SimpleQueue[Event] = queue.SimpleQueue()
    executor.submit(Attach(events.put))
    executor.start()
    yield executor, events
    executor.stop()
    assert not executor.alive
    assert device.kv_cache.counts().used == 0


def test_commands_stop_a_run_whenever_they_come(
    device: Device, running: tuple[Executor, queue.SimpleQueue[Event]]
) -> None:
    executor, events = running
    rng = random.Random(4)
    specs = {number: NewSequence(number, (number + 1,) * 5, 2000) for number in range(12)}
    expected = {number: alone(device, spec)[:300] for number, spec in specs.items() if number % 4 == 0}
    for spec in specs.values():
        executor.submit(spec)
    executor.submit(Plan(1, 500, tuple(Chunk(number, 5) for number in specs), tuple(specs)))
    got: dict[int, list[int]] = {number: [] for number in specs}
    released, plan_seq = set[int](), 1
    while len(released) < len(specs):
        event = events.get(timeout=20)
        if isinstance(event, StepResult):
            for number, token_id in zip(event.sequence_ids, event.token_ids, strict=True):
                assert number not in released
                got[number].append(token_id)
        if rng.random() < 0.05:
            if rng.random() < 0.3 and sum(map(len, got.values())) > 600:
                number = rng.choice([number for number in specs if number not in released])
                executor.submit(Release((number,), ReleaseCause.CANCEL))
                while not isinstance(event, Released):
                    event = events.get(timeout=20)
                    if isinstance(event, StepResult):
                        for key, token_id in zip(event.sequence_ids, event.token_ids, strict=True):
                            got[key].append(token_id)
                released.add(number)
            else:
                plan_seq += 1
                executor.submit(Plan(plan_seq, 500, revoke_through=plan_seq - 1))
    for number, tokens in expected.items():
        count = min(len(tokens), len(got[number]))
        assert count > 0
        assert got[number][:count] == tokens[:count]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_narrow_dtypes_come_to_an_end(dtype: torch.dtype) -> None:
    device = make_device(dtype)
    bench = Bench(device, device.graphs)
    specs = [NewSequence(number, (number + 1,) * (3 * number + 1), 60 + 3 * number) for number in range(20)]
    bench.run(*specs, bench.plan(100, {spec.sequence_id: 100 for spec in specs}))
    assert all(ended.failure is None for ended in ended_of(bench.events).values())
    # Side by side as well as alone, but for what rounding makes of it.
    same = [tokens_of(bench.events, spec.sequence_id)[0] == alone(device, spec)[0] for spec in specs]
    assert sum(same) >= 15
    assert device.kv_cache.counts().used == 0


@needs_two_gpus
def test_a_worker_on_another_gpu_says_the_same(device: Device) -> None:
    other = make_device(torch.float32, torch.device("cuda:1"))
    executor = Executor(other.graphs, other.kv_cache, other.swap_space)
    events: queue.SimpleQueue[Event] = queue.SimpleQueue()
    executor.start()
    try:
        executor.submit(Attach(events.put))
        rng = random.Random(3)
        specs = [random_sequence(rng, sequence_id) for sequence_id in range(12)]
        seen: list[Event] = []
        for plan_seq, spec in enumerate(specs, 1):
            count = len(spec.token_ids)
            executor.submit(spec)
            # Each revokes the run of those before, which goes on with it.
            joined = tuple(each.sequence_id for each in specs[:plan_seq])
            executor.submit(Plan(plan_seq, 100, (Chunk(spec.sequence_id, count),), joined, plan_seq - 1))
            while len(tokens_of(seen, spec.sequence_id)) < 1:
                seen.append(events.get(timeout=30))
        while not all(spec.sequence_id in ended_of(seen) for spec in specs):
            seen.append(events.get(timeout=30))
    finally:
        executor.stop()
    for spec in specs:
        assert tokens_of(seen, spec.sequence_id) == alone(device, spec)
