"""What the machine by itself adds to gaps: a process that only sleeps, a few milliseconds at a time.

    python -m bench.timer --ms 2

It begins when it has written a line, ends when its standard input does, and then writes how long each sleep took from
the end of the one before, in seconds, as one JSON list.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import threading
import time
from collections.abc import AsyncIterator

import click


@contextlib.asynccontextmanager
async def timer_gaps(ms: float) -> AsyncIterator[list[float]]:
    """Such a process while the scope lasts; the list has its gaps in seconds after that."""
    command = (sys.executable, "-m", "bench.timer", "--ms", str(ms))
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe, limit=1 << 26)
    assert process.stdin is not None
    assert process.stdout is not None
    gaps: list[float] = []
    try:
        await process.stdout.readline()
        yield gaps
        process.stdin.close()
        gaps += json.loads(await process.stdout.readline())
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


def sleep_gaps(seconds: float, stopped: threading.Event) -> list[float]:
    """From the end of each sleep to that of the next, until stopped. What is late is not made up for."""
    gaps: list[float] = []
    last = due = time.monotonic()
    while not stopped.is_set():
        due = max(due + seconds, time.monotonic())
        time.sleep(max(0.0, due - time.monotonic()))
        now = time.monotonic()
        gaps.append(now - last)
        last = now
    return gaps


@click.command()
@click.option("--ms", type=click.FloatRange(min=0.1), default=2.0, show_default=True, help="how long it sleeps")
def main(ms: float) -> None:
    """Until standard input ends."""
    stopped = threading.Event()

    def wait() -> None:
        sys.stdin.read()
        stopped.set()

    threading.Thread(target=wait, daemon=True).start()
    print(flush=True)
    print(json.dumps(sleep_gaps(ms / 1e3, stopped)), flush=True)


if __name__ == "__main__":
    main()
