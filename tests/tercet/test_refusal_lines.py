"""Lines of refusals: all of few, a count of many, and none is lost."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any

import structlog
from hypothesis import given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from tercet.refusal_lines import MAX_KINDS, RefusalLines

log = structlog.get_logger()


def lines_of(lines: int = 3, seconds: float = 0.02) -> RefusalLines:
    return RefusalLines(log, "calls_refused", lines=lines, seconds=seconds)


def counted(logs: list[Any]) -> Counter[str]:
    found: Counter[str] = Counter()
    for line in logs:
        if line["event"] == "calls_refused":
            found.update({kind: n for kind, n in line.items() if kind not in ("event", "log_level", "seconds")})
        else:
            found[f"{line['tenant']}/{line['reason']}" if line.get("tenant") else line["reason"]] += 1
    return found


async def until(check: Callable[[], bool]) -> None:
    """Waits until a check holds: time has no event."""
    while True:
        if check():
            return
        await asyncio.sleep(0.005)


async def test_few_have_a_line_each_and_the_others_are_counted() -> None:
    refusals = lines_of()
    with capture_logs() as logs:
        for index in range(10):
            refusals.tell("call_refused", reason="TENANT_QUOTA", tenant="flood", request_id=str(index))
        refusals.tell("call_refused", reason="UNAUTHENTICATED")
        assert [line["request_id"] for line in logs] == ["0", "1", "2"]
        await until(lambda: len(logs) == 4)
    assert logs[3] == {
        "event": "calls_refused", "log_level": "info", "seconds": 0.02, "flood/TENANT_QUOTA": 7, "UNAUTHENTICATED": 1,
    }  # fmt: skip


async def test_a_flood_is_counted_until_it_is_over() -> None:
    refusals = lines_of()
    with capture_logs() as logs:
        for _ in range(20):
            for _ in range(20):
                refusals.tell("call_refused", reason="QUEUE_FULL")
            await asyncio.sleep(0.005)
        await until(lambda: counted(logs).total() == 400)
        assert sum(line["event"] == "call_refused" for line in logs) == 3
        await until(lambda: refusals.quiet)
        refusals.tell("call_refused", reason="LATER")
    assert logs[-1]["event"] == "call_refused"
    assert logs[-1]["reason"] == "LATER"


async def test_a_line_names_no_more_than_some() -> None:
    refusals = lines_of(lines=1)
    with capture_logs() as logs:
        for index in range(1 + 2 * MAX_KINDS):
            refusals.tell("call_refused", reason="QUEUE_FULL", tenant=f"t{index}")
        await until(lambda: len(logs) == 2)
    assert len(logs[1]) == MAX_KINDS + 4
    assert logs[1]["others"] == MAX_KINDS


@settings(max_examples=20, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("ab"), st.booleans()), max_size=40))
def test_none_is_lost(refused: list[tuple[str, bool]]) -> None:
    """Nor does a loop that has ended keep the next one's."""
    refusals = lines_of(lines=2, seconds=0.002)

    async def play() -> None:
        for tenant, wait in refused:
            refusals.tell("call_refused", reason="X", tenant=tenant)
            if wait:
                await asyncio.sleep(0.001)
        await until(lambda: counted(logs).total() == len(refused))

    for _ in range(2):
        with capture_logs() as logs:
            asyncio.run(play())
        assert counted(logs) == Counter(f"{tenant}/X" for tenant, _ in refused)
