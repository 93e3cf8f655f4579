"""Clients that go away and read slowly, on a clock that jumps."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from tercet.acceptance.faults import FaultsSeen, commit, deeds, wrong_ends
from tercet.acceptance.spec import FaultsSpec
from tercet.ledger.row import Cancellation, Cancelled
from tercet.load.ask import Ask
from tercet.load.prompts import RandomTokens
from tercet.load.record import ServerSample
from tercet.load.target import AnswerError
from tests.load.scripted import Script, Scripted
from tests.load.virtual_time import run_virtual

SPEC = FaultsSpec(requests=2, prompt_tokens=8, max_tokens=9, slow_tokens_per_s=4.0, settle_s=5.0, timeout_s=60.0)
AT_ONCE = tuple(index for index, deed in enumerate(deeds(SPEC)) if deed.leaves_after == 0)
MIDWAY = tuple(index for index, deed in enumerate(deeds(SPEC)) if deed.leaves_after)
LEAVE = (*AT_ONCE, *MIDWAY)


class Server(Scripted):
    """`used` are its blocks, by what runs."""

    def __init__(self, script: Callable[[Ask], Script], used: Callable[[int], int] | None) -> None:
        super().__init__(script)
        self._used = used

    async def look(self) -> ServerSample | None:
        if self._used is None:
            return None
        return ServerSample(0, self.running, self._used(self.running), 0, 0, None, ())


class Told:
    """Cancels of the requests that leave, each after so many seconds; None: never told."""

    def __init__(self, freed_s: Sequence[float | None] | None) -> None:
        self._freed_s = freed_s

    async def cancellations(self) -> Sequence[Cancelled] | None:
        if self._freed_s is None:
            return None
        return [
            Cancelled(f"r-{index}", "", "", cancelled(freed_s))
            for index, freed_s in zip((*LEAVE, 99), self._freed_s, strict=False)
            if freed_s is not None
        ]


def cancelled(freed_s: float) -> Cancellation:
    return Cancellation(
        output_index=None, origin="client", cancelled_at=0.0, states=("DECODE",), release_s=0.0, freed_s=freed_s,
        done_s=freed_s, blocks_freed=1, wasted_tokens=0, wasted_gpu_s=0.0,
    )  # fmt: skip


def seen_by(
    script: Callable[[Ask], Script] = lambda ask: Script(),
    used: Callable[[int], int] | None = lambda running: 3 * running,
    freed_s: Sequence[float | None] | None = (0.1, 0.2, 0.3, 0.4, 9.0),
    spec: FaultsSpec = SPEC,
) -> tuple[Server, FaultsSeen, float]:
    """The server, what was seen, and how long it took."""
    server = Server(script, used)

    async def run(loop: Any) -> FaultsSeen:
        return await commit(server, spec, RandomTokens(range(100)), Told(freed_s), loop.time)

    took: list[float] = []

    async def timed(loop: Any) -> FaultsSeen:
        seen = await run(loop)
        took.append(loop.time())
        return seen

    return server, run_virtual(timed), took[0]


def test_each_client_does_what_it_is_there_for() -> None:
    server, seen, took = seen_by()
    assert len(server.asked) == 8
    assert server.left == 4
    assert not wrong_ends(seen).wrong
    assert wrong_ends(seen).looked_at == 8
    assert sorted(seen.freed_ms) == pytest.approx([100, 200, 300, 400])
    assert seen.left is not None
    assert seen.left.kv_used == 0
    # A slow reader needs so long for its tokens.
    assert 9 / 4 <= took < 5


def test_who_leaves_early_does_not_wait_for_a_server_that_says_nothing() -> None:
    server, seen, took = seen_by(lambda ask: Script(first_s=None if ask.index in AT_ONCE else 0.1), freed_s=None)
    assert not wrong_ends(seen).wrong
    assert server.left == 4
    assert took < 5


def test_a_block_that_does_not_come_back_is_seen_when_the_server_had_its_time() -> None:
    _, seen, took = seen_by(used=lambda running: 1)
    assert seen.left is not None
    assert seen.left.kv_used == 1
    assert took >= SPEC.settle_s


def test_cancels_that_are_not_told_are_waited_for() -> None:
    _, seen, took = seen_by(freed_s=(0.1, None, 0.3, 0.4))
    assert sorted(seen.freed_ms) == pytest.approx([100, 300, 400])
    assert took >= SPEC.settle_s


def test_a_server_that_tells_nothing_keeps_nobody_waiting() -> None:
    _, seen, took = seen_by(used=None, freed_s=None)
    assert (seen.left, seen.freed_ms) == (None, ())
    assert took < 5


@pytest.mark.parametrize(
    ("error", "wrong"),
    [
        (AnswerError("QUEUE_FULL", "", refused=True), 8),
        (AnswerError("SLOW_CONSUMER", ""), 2),
        (AnswerError("WORKER_LOST", ""), 4),
    ],
)
def test_losses_and_refusals_for_good_are_wrong_ends(error: AnswerError, wrong: int) -> None:
    def script(ask: Ask) -> Script:
        return Script(error=error, error_after=0 if error.refused else 6)

    _, seen, _ = seen_by(script, freed_s=None)
    # Those who leave have left by then.
    assert len(wrong_ends(seen).wrong) == wrong


def test_who_is_refused_for_now_asks_again() -> None:
    asked: set[int] = set()

    def script(ask: Ask) -> Script:
        refusal = None if ask.index in asked else AnswerError("QUEUE_FULL", "", refused=True, retry_after_s=2.0)
        asked.add(ask.index)
        return Script(error=refusal)

    server, seen, took = seen_by(script)
    assert not wrong_ends(seen).wrong
    assert len(server.asked) == 16
    assert took >= 2


def test_an_answer_that_is_over_before_its_client_leaves_is_told() -> None:
    spec = dataclasses.replace(SPEC, max_tokens=4)

    class Short(Server):
        async def stream(self, ask: Ask) -> Any:
            async for event in super().stream(dataclasses.replace(ask, max_tokens=0 if ask.index in MIDWAY else 4)):
                yield event

    async def run(loop: Any) -> FaultsSeen:
        server = Short(lambda ask: Script(), lambda running: 0)
        return await commit(server, spec, RandomTokens(range(100)), Told(None), loop.time)

    assert len(wrong_ends(run_virtual(run)).wrong) == 2
