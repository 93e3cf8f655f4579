"""Many HTTP clients that leave in one moment."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gateway.generation import Generation

from ..loop_turns import Turns

CLIENTS = 200
# That are seen to in one turn of the event loop, as the gateway says.
FEW = 4
BODY = b'{"model": "bytes", "prompt": "x", "stream": true}'
HEAD = b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
REQUEST = b"%bcontent-length: %d\r\n\r\n%b" % (HEAD, len(BODY), BODY)


async def test_they_are_seen_to_a_few_at_a_time(
    gateway: Any, http_port: int, scheduler: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    scheduler.play = lambda sequence: sequence.cancelled.wait()
    connections = [await asyncio.open_connection("127.0.0.1", http_port) for _ in range(CLIENTS)]
    for _, writer in connections:
        writer.write(REQUEST)
    while len(scheduler.sequences) < CLIENTS:  # noqa: ASYNC110 - a plain list
        await asyncio.sleep(0.01)
    turns = Turns()
    monkeypatch.setattr(Generation, "close", turns.counted("ends", Generation.close))
    for _, writer in connections:
        writer.transport.abort()
    await asyncio.gather(*(sequence.cancelled.wait() for sequence in scheduler.sequences))
    turns.stop()
    # What is left of the ration of one turn, and that of the next, may be between two of ours.
    assert 0 < turns.most["ends"] <= 2 * FEW
