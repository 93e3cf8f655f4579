"""Runs: room, extension, ends, failures; and that captured steps are what computes them."""

from __future__ import annotations

from collections.abc import Sequence as Seq

import pytest
import torch

from tests.worker.captured_bench import CapturedBench, S
from tests.worker.eager_graphs import EagerGraphs
from tests.worker.recall_model import CONFIG, RecallModel, continuation
from tests.worker.stepped_executor import ended_of, steps_of, tokens_of
from worker.executor import Executor
from worker.graph_steps import GraphSteps
from worker.host_steps import HostSteps
from worker.kv_cache import KVCache
from worker.messages import (
    BlockCounts,
    Chunk,
    EndReason,
    NewSequence,
    Plan,
    Release,
    ReleaseCause,
    Released,
)
from worker.steps import DeviceLost, Row


def test_what_is_reserved_ahead_is_told_as_free() -> None:
    bench = CapturedBench()
    bench.obey_all(NewSequence(1, (1,) * S, 40), Plan(1, 32, (Chunk(1, S),), (1,)))
    bench.step(2)
    # Room for 31 tokens behind the first nine, of which one is taken.
    assert bench.kv_cache.pool.num_used == 5
    assert steps_of(bench.events)[-1].blocks == BlockCounts(62, 0, 2)
    bench.step(30)
    assert [step.blocks.used for step in steps_of(bench.events)] == [1] + [2] * 8 + [3] * 8 + [4] * 8 + [5] * 6 + [0]
    assert bench.done() == [(1, 32, False)]
    assert ended_of(bench.events)[1].blocks_used == 5


def test_a_command_ends_a_run_after_what_was_computed_is_told() -> None:
    for seed in range(6):
        bench = CapturedBench(seed=seed)
        bench.obey_all(NewSequence(1, (1, 2), 60), NewSequence(2, (3,), 60))
        bench.obey_all(Plan(1, 50, (Chunk(1, 2), Chunk(2, 1)), (1, 2)))
        bench.step(7)
        launched = bench.loop.num_launched
        bench.obey_all(Release((2,), ReleaseCause.CANCEL))
        released = next(event for event in bench.events if isinstance(event, Released))
        assert bench.events.index(steps_of(bench.events)[-1]) < bench.events.index(released)
        # Nothing is lost of what was on its way.
        assert len(tokens_of(bench.events, 1)) == len(tokens_of(bench.events, 2)) == launched
        assert released.blocks.used == -(-(1 + launched) // S)
        bench.step(51 - launched)
        assert bench.done() == [(1, 50, False)]
        assert tokens_of(bench.events, 1) == continuation([1, 2], 50)


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """The runs that begin: rows and steps."""
    found: list[tuple[int, int]] = []
    begin = GraphSteps.begin_run

    def noted(self: GraphSteps, rows: Seq[Row], num_steps: int) -> bool:
        found.append((len(rows), num_steps))
        return begin(self, rows, num_steps)

    monkeypatch.setattr(GraphSteps, "begin_run", noted)
    return found


def test_a_run_with_few_rows_left_makes_way_for_a_smaller_one(begun: list[tuple[int, int]]) -> None:
    bench = CapturedBench()
    lengths = {1: 5, 2: 5, 3: 9, 4: 40, 5: 40}
    specs = [NewSequence(number, (number,), 1 + length) for number, length in lengths.items()]
    bench.obey_all(*specs, Plan(1, 20, tuple(Chunk(number, 1) for number in lengths), tuple(lengths)))
    bench.step(8)
    # Three of five go on, for which a smaller graph would do: it gets no longer than it is.
    bench.obey_all(Plan(2, 10))
    while bench.done() != [(1, 20, False), (2, 10, False)]:
        bench.step()
    # And with two of five it ends, with that step or with one that was on its way.
    assert begun in ([(5, 19), (2, 11 + 10)], [(5, 19), (2, 10 + 10)])
    for number, length in lengths.items():
        assert tokens_of(bench.events, number) == continuation([number], min(length, 30))


def test_what_only_adds_does_not_end_a_run(begun: list[tuple[int, int]]) -> None:
    bench = CapturedBench()
    bench.obey_all(NewSequence(1, (5,), 100), Plan(1, 5, (Chunk(1, 1),), (1,)), Plan(2, 6))
    bench.step(3)
    bench.obey_all(NewSequence(2, (6,), 9), Plan(3, 20))
    bench.step(20)
    bench.obey_all(Plan(4, 10))
    bench.step(18)
    assert begun == [(1, 4 + 6)]
    assert bench.done() == [(1, 5, False), (2, 6, False), (3, 20, False), (4, 10, False)]
    assert [(step.plan_seq, step.step) for step in steps_of(bench.events)][4:12] == [
        (1, 4), *((2, number) for number in range(6)), (3, 0),
    ]  # fmt: skip
    assert tokens_of(bench.events, 1) == continuation([5], 41)
    # Chunks change what decodes: that takes a run of its own.
    bench.obey_all(Plan(5, 9, (Chunk(2, 1),), (2,)))
    bench.step(9)
    assert begun == [(1, 10), (2, 8)]
    assert tokens_of(bench.events, 2) == continuation([6], 8)


@pytest.mark.parametrize("num_stops", [1, 8, 30])
def test_stop_ids_that_the_device_has_no_place_for(num_stops: int) -> None:
    expected = continuation([9, 9], 20)
    # The one that comes is the largest of them, and comes late.
    token_id = max(expected[3:])
    at = expected.index(token_id)
    unused = [token for token in range(token_id) if token not in expected]
    stops = frozenset([token_id, *unused[: num_stops - 1]])
    bench = CapturedBench()
    bench.obey_all(NewSequence(1, (9, 9), 40, stops), NewSequence(2, (4,), 31))
    bench.obey_all(Plan(1, 64, (Chunk(1, 2), Chunk(2, 1)), (1, 2)))
    bench.step(32)
    assert ended_of(bench.events)[1].reason is EndReason.STOP
    assert tokens_of(bench.events, 1) == expected[: at + 1]
    assert tokens_of(bench.events, 2) == continuation([4], 30)
    assert bench.kv_cache.counts().used == 0


def test_a_pool_without_room_ahead_is_stepped_one_by_one() -> None:
    bench = CapturedBench(num_blocks=4)
    bench.obey_all(
        NewSequence(1, (1,) * 7, 33), NewSequence(2, (2,) * 7, 15), Plan(1, 40, (Chunk(1, 7), Chunk(2, 7)), (1, 2))
    )
    bench.step(28)
    # 26 tokens of the one do not fit beside the other, and do when that has ended.
    assert tokens_of(bench.events, 1) == continuation([1] * 7, 26)
    assert tokens_of(bench.events, 2) == continuation([2] * 7, 8)
    assert all(ended.failure is None for ended in ended_of(bench.events).values())


def test_a_run_that_cannot_be_longer_keeps_nothing_of_the_try() -> None:
    bench = CapturedBench(num_blocks=6)
    bench.obey_all(NewSequence(1, (1,) * 7, 60), NewSequence(2, (2,) * 7, 20))
    bench.obey_all(Plan(1, 9, (Chunk(1, 7), Chunk(2, 7)), (1, 2)))
    bench.step(2)
    assert bench.kv_cache.pool.num_free == 2
    # Both would go to the first row, and the second needs one, too.
    bench.obey_all(Plan(2, 10))
    assert bench.kv_cache.pool.num_free == 2
    bench.step(18)
    assert tokens_of(bench.events, 1) == continuation([1] * 7, 19)
    assert tokens_of(bench.events, 2) == continuation([2] * 7, 13)
    assert all(ended.failure is None for ended in ended_of(bench.events).values())


def test_more_rows_or_context_than_captured_go_to_the_host() -> None:
    bench = CapturedBench(num_blocks=200, max_rows=8)
    specs = [NewSequence(number, (number,), 30) for number in range(9)]
    bench.obey_all(*specs, Plan(1, 20, tuple(Chunk(number, 1) for number in range(9)), tuple(range(9))))
    bench.step(20)
    assert bench.loop.num_launched == 0
    for number in range(9):
        assert tokens_of(bench.events, number) == continuation([number], 20)


def test_a_step_that_fails_ends_its_sequences_and_the_next_run_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    prompt = [3, 1, 4]
    bad = continuation(prompt, 5)[-1]
    bench = CapturedBench()
    # Without a graph: a captured step that fails leaves nothing to go on with.
    monkeypatch.setattr(EagerGraphs, "find_run", lambda *_: None)
    monkeypatch.setattr(EagerGraphs, "find_mixed", lambda *_: None)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    bench.model.fail_on = bad
    bench.obey_all(NewSequence(1, tuple(prompt), 60), Plan(1, 30, (Chunk(1, 3),), (1,)))
    bench.step(8)
    ended = ended_of(bench.events)[1]
    assert ended.failure is not None
    assert ended.failure.message == "the step failed: RuntimeError"
    assert tokens_of(bench.events, 1) == continuation(prompt, 5)
    assert bench.kv_cache.counts().used == 0
    other = next(start for start in range(90) if bad not in [start, *continuation([start], 9)])
    bench.obey_all(NewSequence(2, (other,), 10), Plan(2, 30, (Chunk(2, 1),), (2,)))
    bench.step(12)
    assert tokens_of(bench.events, 2) == continuation([other], 9)


def test_a_captured_step_that_fails_ends_the_executor() -> None:
    bench = CapturedBench()
    bench.model.fail_on = continuation([3], 2)[-1]
    bench.obey_all(NewSequence(1, (3,), 60), Plan(1, 30, (Chunk(1, 1),), (1,)))
    with pytest.raises(DeviceLost, match="device fault"):
        bench.step(3)


class LostSteps(HostSteps):
    """A device that is gone."""

    def begin_step(self, rows: Seq[Row]) -> bool:
        raise DeviceLost("gone")


def test_a_device_that_is_lost_ends_the_executor() -> None:
    kv_cache = KVCache(CONFIG, 8, S, torch.float32, torch.device("cpu"))
    steps = LostSteps(RecallModel(), kv_cache)  # type: ignore[arg-type]
    executor = Executor(steps, kv_cache)
    executor.submit(NewSequence(1, (1,), 5))
    executor.submit(Plan(1, 1, (Chunk(1, 1),), (1,)))
    executor.obey()
    with pytest.raises(DeviceLost, match="gone"):
        executor.step()
