"""Handing what is made to a client's connection, which may take it late or never."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

from tercet.errors import RequestError, SlowConsumerError
from tercet.patience import within

from ..stream import Stream
from ..unexpected import engine_fault


async def deliver(writing: Awaitable[object], stream: Stream, limit_s: float) -> None:
    """Waits for a write, which a client that does not read blocks, out of reach of everything else that may end the
    request: if that fails meanwhile, it is given up.

    Raises the error of a request that failed, and SlowConsumerError after `limit_s` seconds.
    """
    task = asyncio.current_task()
    assert task is not None
    stream.interrupt = task.cancel
    try:
        await within(limit_s, writing)
    except asyncio.TimeoutError:
        slow = SlowConsumerError(
            f"the client read nothing for {limit_s:g} s", metadata={"stream_stall_seconds": f"{limit_s:g}"}
        )
        raise stream.error or slow from None
    except asyncio.CancelledError:
        if stream.error is not None:
            raise stream.error from None
        raise
    finally:
        stream.interrupt = None


def typed_end(error: BaseException, *, request_id: str) -> RequestError | None:
    """What the client is told of what its handler raised; None if the call is over, and nobody is there to be told."""
    if isinstance(error, RequestError):
        return error
    if not isinstance(error, Exception):
        return None
    return engine_fault(error, request_id=request_id)
