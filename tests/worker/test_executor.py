"""The executor: plans, revocation, releases and faults, with a model that remembers only what its KV cache holds."""

from __future__ import annotations

import queue
import random
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.worker.eager_graphs import eager_graph_steps
from tests.worker.recall_model import CONFIG, RecallModel, continuation
from worker.executor import Executor
from worker.host_steps import HostSteps
from worker.kv_cache import KVCache
from worker.messages import (
    Attach,
    BlockCounts,
    Chunk,
    Detach,
    EndReason,
    Event,
    NewSequence,
    Plan,
    PlanDone,
    Release,
    ReleaseCause,
    Released,
    StepResult,
)
from worker.steps import Steps


class Bench:
    """An executor on its own thread, and what it says."""

    def __init__(
        self, num_blocks: int = 64, block_size: int = 8, model: RecallModel | None = None, captured: int | None = None
    ) -> None:
        """`captured` is the seed of a device that computes runs by itself; None: the host computes each step."""
        self.model = model or RecallModel()
        self.num_blocks = num_blocks
        kv_cache = KVCache(CONFIG, num_blocks, block_size, torch.float32, torch.device("cpu"))
        steps: Steps = HostSteps(self.model, kv_cache)  # type: ignore[arg-type]
        if captured is not None:
            steps = eager_graph_steps(self.model, kv_cache, random.Random(captured))  # type: ignore[arg-type]
        self.executor = Executor(steps, kv_cache, check_every_step=True)
        self.events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self.executor.submit(Attach(self.events.put))
        self.executor.start()

    def submit(self, *commands: Any) -> None:
        for command in commands:
            self.executor.submit(command)

    def until_done(self, plan_seq: int) -> list[Event]:
        """Events up to the end of a plan."""
        seen: list[Event] = []
        while True:
            event = self.events.get(timeout=20)
            seen.append(event)
            if isinstance(event, PlanDone) and event.plan_seq == plan_seq:
                return seen

    def counts(self) -> BlockCounts:
        """The pool now, asked through a release of nobody."""
        self.submit(Release((10**9,), ReleaseCause.CANCEL))
        while not isinstance(event := self.events.get(timeout=20), Released) or event.sequence_id != 10**9:
            pass
        return event.blocks


@pytest.fixture(params=[None, 1], ids=["host", "captured"])
def bench(request: pytest.FixtureRequest) -> Iterator[Bench]:
    made = Bench(captured=request.param)
    yield made
    made.executor.stop()


def used_soon(bench: Bench, count: int) -> bool:
    """Whether `count` blocks are in use within some seconds; the pool is read from outside its thread."""
    pool = bench.executor._kv_cache.pool
    for _ in range(400):
        if pool.num_used == count:
            return True
        time.sleep(0.05)
    return False


def tokens_of(events: list[Event], sequence_id: int) -> list[int]:
    out = []
    for event in events:
        if isinstance(event, StepResult):
            out += [t for s, t in zip(event.sequence_ids, event.token_ids, strict=True) if s == sequence_id]
    return out


def test_a_prompt_in_one_chunk_then_decode_in_the_same_plan(bench: Bench) -> None:
    bench.submit(NewSequence(1, (3, 1, 4, 1, 5), 13), Plan(1, 8, (Chunk(1, 99),), (1,)))
    events = bench.until_done(1)
    assert tokens_of(events, 1) == continuation([3, 1, 4, 1, 5], 8)
    steps = [event for event in events if isinstance(event, StepResult)]
    assert [step.step for step in steps] == list(range(8))
    assert steps[0].prefills[0].num_computed == 5
    (ended,) = steps[-1].ended
    assert (ended.reason, ended.blocks_used, ended.blocks_freed) == (EndReason.LENGTH, 2, 2)
    done = events[-1]
    assert done == PlanDone(1, 8, False, BlockCounts(63, 1, 0), tuple(step.step_us for step in steps))


def test_a_plan_ends_early_when_nothing_is_left(bench: Bench) -> None:
    bench.submit(NewSequence(1, (1, 2), 4), Plan(1, 32, (Chunk(1, 2),), (1,)))
    done = bench.until_done(1)[-1]
    assert isinstance(done, PlanDone)
    assert (done.steps_run, done.revoked) == (2, False)


def test_a_sequence_that_did_not_join_does_not_decode(bench: Bench) -> None:
    bench.submit(NewSequence(1, (1, 2, 3), 10), Plan(1, 4, (Chunk(1, 3),)))
    assert tokens_of(bench.until_done(1), 1) == continuation([1, 2, 3], 1)
    bench.submit(Plan(2, 2, (), (1,)))
    assert tokens_of(bench.until_done(2), 1) == continuation([1, 2, 3], 3)[1:]


def test_stop_token_ends_it_and_beats_length(bench: Bench) -> None:
    expected = continuation([9, 9], 6)
    stop = expected[-1]
    length = 2 + expected.index(stop) + 1
    bench.submit(NewSequence(1, (9, 9), length, frozenset({stop})), Plan(1, 32, (Chunk(1, 2),), (1,)))
    events = bench.until_done(1)
    (ended,) = [ended for event in events if isinstance(event, StepResult) for ended in event.ended]
    assert (ended.reason, ended.stop_token_id) == (EndReason.STOP, stop)
    assert tokens_of(events, 1) == expected[: expected.index(stop) + 1]


def test_a_newer_plan_revokes_at_a_step_boundary(bench: Bench) -> None:
    bench.submit(NewSequence(1, (1,), 3000), NewSequence(2, (2,), 5))
    bench.submit(Plan(1, 10_000, (Chunk(1, 1),), (1,)), Plan(2, 10_000))
    bench.submit(Plan(3, 3, (Chunk(2, 1),), (2,), revoke_through=2))
    events = bench.until_done(3)
    done = {event.plan_seq: event for event in events if isinstance(event, PlanDone)}
    assert done[1].revoked
    assert done[2].revoked
    assert done[2].steps_run == 0
    assert not done[3].revoked
    assert tokens_of(events, 2) == continuation([2], 3)
    mine = tokens_of(events, 1)
    assert mine == continuation([1], len(mine))


def test_release_frees_blocks_and_answers_every_id(bench: Bench) -> None:
    bench.submit(NewSequence(1, tuple(range(20)), 3000), Plan(1, 10_000, (Chunk(1, 20),), (1,)))
    bench.submit(Release((1, 77), ReleaseCause.CANCEL), Release((1,), ReleaseCause.PREEMPT))
    released = [event for event in bench.until_done(1) if isinstance(event, Released)]
    assert [(event.sequence_id, event.found) for event in released] == [(1, True), (77, False), (1, False)]
    assert bench.counts().used == 0


def test_a_preempted_sequence_comes_back_with_the_same_text(bench: Bench) -> None:
    prompt = list(range(19))
    expected = continuation(prompt, 12)
    bench.submit(NewSequence(1, tuple(prompt), 31), Plan(1, 5, (Chunk(1, 19),), (1,)))
    first = tokens_of(bench.until_done(1), 1)
    bench.submit(Release((1,), ReleaseCause.PREEMPT))
    bench.submit(NewSequence(1, tuple(prompt + first), 31), Plan(2, 32, (Chunk(1, 99),), (1,)))
    events = bench.until_done(2)
    assert first + tokens_of(events, 1) == expected
    progress = next(event for event in events if isinstance(event, StepResult)).prefills[0]
    assert progress.num_cached == 16


def test_a_prefix_hit_completes_a_prefill_before_its_later_chunks(bench: Bench) -> None:
    prompt = tuple(range(40, 73))
    bench.submit(NewSequence(1, prompt, 36), Plan(1, 8, (Chunk(1, 99),), (1,)))
    bench.until_done(1)
    computed = bench.model.tokens_computed
    bench.submit(NewSequence(2, prompt, 36), Plan(2, 1, (Chunk(2, 8),), (2,)), Plan(3, 1, (Chunk(2, 8),), (2,)))
    events = bench.until_done(3)
    assert tokens_of(events, 2) == continuation(list(prompt), 3)[:2]
    assert bench.model.tokens_computed == computed + 2


def test_other_salts_share_nothing(bench: Bench) -> None:
    prompt = tuple(range(33))
    for plan_seq, salt in enumerate((b"a", b"b", b"a"), 1):
        bench.submit(NewSequence(plan_seq, prompt, 35, prefix_salt=salt))
        bench.submit(Plan(plan_seq, 8, (Chunk(plan_seq, 99),), (plan_seq,)))
        events = bench.until_done(plan_seq)
        progress = next(event for event in events if isinstance(event, StepResult)).prefills[0]
        assert progress.num_cached == (32 if plan_seq == 3 else 0)


def test_a_device_fault_ends_the_batch_typed_and_the_worker_goes_on() -> None:
    bench = Bench(model=RecallModel(fail_on=13))
    bench.submit(NewSequence(1, (13,), 5), Plan(1, 3, (Chunk(1, 1),), (1,)))
    (ended,) = [e for event in bench.until_done(1) if isinstance(event, StepResult) for e in event.ended]
    assert ended.reason is EndReason.FAILED
    assert ended.failure is not None
    assert ended.failure.reason == "ENGINE_FAULT"
    bench.submit(NewSequence(2, (5,), 4), Plan(2, 9, (Chunk(2, 1),), (2,)))
    assert tokens_of(bench.until_done(2), 2) == continuation([5], 3)
    assert bench.counts().used == 0
    bench.executor.stop()


def test_logits_that_are_not_finite_fail_their_sequence_alone() -> None:
    bench = Bench(model=RecallModel(nan_on=50))
    bench.submit(NewSequence(1, (50,), 5), NewSequence(2, (5,), 5))
    bench.submit(Plan(1, 9, (Chunk(1, 1), Chunk(2, 1)), (1, 2)))
    events = bench.until_done(1)
    ended = {e.sequence_id: e for event in events if isinstance(event, StepResult) for e in event.ended}
    assert ended[1].reason is EndReason.FAILED
    assert ended[2].reason is EndReason.LENGTH
    assert tokens_of(events, 2) == continuation([5], 4)
    # What made the logits so is not found by the next prompt.
    assert bench.counts().used == 0
    bench.executor.stop()


def test_a_scheduler_that_breaks_its_credits_hurts_one_sequence() -> None:
    bench = Bench(num_blocks=4, block_size=8)
    bench.submit(NewSequence(1, tuple(range(16)), 20), NewSequence(2, tuple(range(60, 85)), 30))
    bench.submit(Plan(1, 9, (Chunk(1, 16), Chunk(2, 25)), (1, 2)))
    events = bench.until_done(1)
    ended = {e.sequence_id: e for event in events if isinstance(event, StepResult) for e in event.ended}
    assert ended[2].reason is EndReason.FAILED
    assert tokens_of(events, 1) == continuation(list(range(16)), 4)
    bench.executor.stop()


def test_a_lost_scheduler_leaves_nothing(bench: Bench) -> None:
    bench.submit(NewSequence(1, tuple(range(20)), 3000), Plan(1, 10_000, (Chunk(1, 20),), (1,)))
    while not isinstance(bench.events.get(timeout=20), StepResult):
        pass
    bench.submit(Detach(bench.events.put))
    assert used_soon(bench, 0)


def test_a_detach_that_comes_late_does_not_touch_the_next_scheduler(bench: Bench) -> None:
    first, second = bench.events.put, queue.SimpleQueue[Event]()
    bench.submit(Attach(second.put), NewSequence(1, (5,), 4), Detach(first), Plan(1, 9, (Chunk(1, 1),), (1,)))
    bench.events = second
    assert tokens_of(bench.until_done(1), 1) == continuation([5], 3)


def test_a_bug_ends_the_executor_and_is_told() -> None:
    died = threading.Event()
    kv_cache = KVCache(CONFIG, 8, 8, torch.float32, torch.device("cpu"))
    executor = Executor(HostSteps(RecallModel(), kv_cache), kv_cache, on_death=died.set)  # type: ignore[arg-type]
    executor.start()
    executor.submit(Attach(lambda _: 1 // 0))  # type: ignore[arg-type, return-value]
    executor.submit(Plan(1, 1))
    assert died.wait(20)
    executor.stop()
    assert not executor.alive


def test_a_fork_writes_into_its_own_copy() -> None:
    kv_cache = KVCache(CONFIG, 4, 8, torch.float32, torch.device("cpu"))
    parent = kv_cache.new_table(b"")
    kv_cache.reserve(parent, 3)
    parent.commit([1, 2, 3])
    k_cache, v_cache = kv_cache.layers[0]
    k_cache[parent.blocks()[0]], v_cache[parent.blocks()[0]] = 7.0, 8.0
    child = parent.fork()
    kv_cache.reserve(child, 4)
    (old,), (new,) = parent.blocks(), child.blocks()
    assert old != new
    assert bool((k_cache[new] == 7.0).all())
    assert bool((v_cache[new] == 8.0).all())
    child.release()
    parent.release()
    kv_cache.check()


def test_unknown_ids_in_a_plan_are_ignored(bench: Bench) -> None:
    bench.submit(Plan(1, 3, (Chunk(5, 10),), (5, 6)))
    assert bench.until_done(1)[-1] == PlanDone(1, 0, False, BlockCounts(64, 0, 0))


@settings(max_examples=40, deadline=None)
@given(
    prompts=st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=40), min_size=1, max_size=6),
    outputs=st.lists(st.integers(1, 12), min_size=6, max_size=6),
    chunk=st.integers(1, 17),
    steps=st.integers(1, 9),
    revoke=st.booleans(),
    captured=st.none() | st.integers(0, 99),
)
def test_any_schedule_gives_each_sequence_its_own_text(
    prompts: list[list[int]], outputs: list[int], chunk: int, steps: int, revoke: bool, captured: int | None
) -> None:
    bench = Bench(num_blocks=128, block_size=8, captured=captured)
    try:
        got: dict[int, list[int]] = {number: [] for number in range(len(prompts))}
        for number, prompt in enumerate(prompts):
            bench.submit(NewSequence(number, tuple(prompt), len(prompt) + outputs[number]))
        live = set(got)
        plan_seq = 0
        while live:
            for _ in range(2):  # two plans in flight
                plan_seq += 1
                chunks = tuple(Chunk(number, chunk) for number in sorted(live))
                bench.submit(Plan(plan_seq, steps, chunks, tuple(live), revoke_through=plan_seq - 1 if revoke else 0))
            for event in bench.until_done(plan_seq):
                if isinstance(event, StepResult):
                    for number, token_id in zip(event.sequence_ids, event.token_ids, strict=True):
                        got[number].append(token_id)
                    live -= {ended.sequence_id for ended in event.ended}
        for number, prompt in enumerate(prompts):
            assert got[number] == continuation(prompt, outputs[number])
        counts = bench.counts()
        assert counts.used == 0
        assert counts.free + counts.cached == 128
    finally:
        bench.executor.stop()
