"""What a scheduler is told on one stream: cancels that follow each other go as one message."""

from __future__ import annotations

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from gateway.outgoing import MOST_CANCELS, Outgoing, merged
from tercet.mesh.v1 import scheduler_pb2 as pb


def cancel(key: int) -> pb.GatewayMessage:
    return pb.GatewayMessage(cancel=pb.Cancel(request_key=key))


def pause(key: int) -> pb.GatewayMessage:
    return pb.GatewayMessage(pause=pb.Pause(request_key=key))


def said(messages: list[pb.GatewayMessage]) -> list[tuple[str, int]]:
    """What they say, in order."""
    out: list[tuple[str, int]] = []
    for message in messages:
        kind = message.WhichOneof("message")
        if kind == "cancels":
            assert 1 <= len(message.cancels.cancels) <= MOST_CANCELS
            out += [("cancel", each.request_key) for each in message.cancels.cancels]
        else:
            assert kind is not None
            out.append((kind, getattr(message, kind).request_key))
    return out


runs = st.lists(st.tuples(st.booleans(), st.integers(1, 2 * MOST_CANCELS + 3)), max_size=5)


@given(runs)
def test_merging_loses_nothing_and_keeps_the_order(given_runs: list[tuple[bool, int]]) -> None:
    messages = [(cancel if each else pause)(key) for each, count in given_runs for key in range(count)]
    out = merged(messages)
    assert said(out) == said(messages)
    full = sum(count // MOST_CANCELS + 1 for each, count in given_runs if each)
    assert len([each for each in out if each.WhichOneof("message") != "pause"]) <= full


async def test_a_scheduler_that_does_not_know_it_gets_each_by_itself() -> None:
    outgoing = Outgoing()
    for key in range(3):
        outgoing.put(cancel(key))
    assert [each.WhichOneof("message") for each in await outgoing.take()] == ["cancel"] * 3
    outgoing.takes_cancels = True
    for key in range(3):
        outgoing.put(cancel(key))
    assert [each.WhichOneof("message") for each in await outgoing.take()] == ["cancels"]


async def test_who_takes_waits_for_the_first_message() -> None:
    outgoing = Outgoing()
    taking = asyncio.create_task(outgoing.take())
    await asyncio.sleep(0)
    assert not taking.done()
    outgoing.put(pause(1))
    outgoing.put(pause(2))
    assert said(await taking) == [("pause", 1), ("pause", 2)]
    assert len(outgoing) == 0
