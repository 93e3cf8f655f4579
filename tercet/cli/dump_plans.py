"""``tercet dump-plans``: the plan log of a running mesh, as a file."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import BinaryIO

import click

from tercet.cli.asking import CONTROL_TIMEOUT_S, run_async
from tercet.cli.connection import client_options
from tercet.cli.root import EXIT_REQUEST, Failure
from tercet.client import AsyncClient
from tercet.errors import DeadlineError


async def fetch(client: AsyncClient, file: BinaryIO, silence_s: float = CONTROL_TIMEOUT_S) -> int:
    """Writes the plan log to `file`; returns its bytes. Raises errors.RequestError, DeadlineError if nothing comes for
    `silence_s` seconds."""
    written = 0
    async with client:
        parts = client.dump_plan_log()
        try:
            while (part := await _next(parts, silence_s)) is not None:
                written += file.write(part)
        finally:
            await parts.aclose()
    file.flush()
    return written


async def _next(parts: AsyncIterator[bytes], silence_s: float) -> bytes | None:
    try:
        return await asyncio.wait_for(anext(parts), silence_s)
    except StopAsyncIteration:
        return None
    except asyncio.TimeoutError:
        raise DeadlineError(f"the plan log stopped coming: nothing for {silence_s:g} s") from None


@contextlib.contextmanager
def whole_file(path: Path) -> Iterator[BinaryIO]:
    """A file that is there when the block has ended well, and otherwise is as it was. Raises Failure."""
    # A pipe or a device is written to, not replaced.
    part = path.with_name(f"{path.name}.part") if path.is_file() or not path.exists() else path
    try:
        with open(part, "wb") as file:
            yield file
        if part is not path:
            os.replace(part, path)
    except OSError as error:
        raise Failure(f"cannot write {path}: {error.strerror}", EXIT_REQUEST) from error
    finally:
        if part is not path:
            with contextlib.suppress(OSError):
                part.unlink()


@click.command()
@client_options
@click.argument("file", type=click.Path(path_type=Path, allow_dash=True))
def dump_plans(client: AsyncClient, file: Path) -> None:
    """Write what the scheduler planned lately, and why, to FILE (- for standard output).

    It holds times, counts and request ids, no tokens and no text. `tercet replay-plans FILE` reads it. How far back it
    goes is the setting scheduler.plan_log_rounds.
    """
    if str(file) == "-":
        run_async(fetch(client, sys.stdout.buffer))
        return
    with whole_file(file) as out:
        written = run_async(fetch(client, out))
    click.echo(f"{file}: {written:,} bytes", err=True)
