"""Keys of a terminal, one by one."""

from __future__ import annotations

import asyncio
import os
import pty
import termios
from collections.abc import Iterator

import pytest

from tercet.cli.keys import keys_pressed


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """The other end of a terminal that is standard input."""
    ours, theirs = pty.openpty()
    with os.fdopen(theirs) as stdin:
        monkeypatch.setattr("sys.stdin", stdin)
        yield ours
    os.close(ours)


async def test_keys_come_one_by_one_also_those_pressed_before(terminal: int) -> None:
    pressed: asyncio.Queue[str] = asyncio.Queue()
    before = termios.tcgetattr(terminal)
    os.write(terminal, b"q")
    with keys_pressed(pressed.put_nowait):
        assert await asyncio.wait_for(pressed.get(), 10) == "q"
        os.write(terminal, b"ab")
        assert [await asyncio.wait_for(pressed.get(), 10) for _ in range(2)] == ["a", "b"]
    assert termios.tcgetattr(terminal) == before


async def test_without_a_terminal_there_are_no_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    reading, writing = os.pipe()
    with os.fdopen(reading) as stdin, os.fdopen(writing, "wb"):
        monkeypatch.setattr("sys.stdin", stdin)
        with keys_pressed(lambda key: pytest.fail(key)):
            await asyncio.sleep(0)
