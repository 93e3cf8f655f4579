"""Writing to a client that may not read."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc.aio

from .errors import SlowConsumerError
from .patience import within


async def write(context: grpc.aio.ServicerContext, message: Any, limit_s: float, *, first: bool) -> None:
    """Hands a message to the client's connection; `first` is the first one of a call. Raises SlowConsumerError if the
    client does not take it within `limit_s` seconds. The core keeps it all the same until the client reads or leaves,
    and the status of the call behind it: whoever aborts the call waits as long."""
    try:
        await within(limit_s, _write(context, message, first=first))
    except asyncio.TimeoutError:
        raise SlowConsumerError(
            f"the client read nothing for {limit_s:g} s", metadata={"stream_stall_seconds": f"{limit_s:g}"}
        ) from None


async def _write(context: grpc.aio.ServicerContext, message: Any, *, first: bool) -> None:
    if first:
        # Otherwise the message takes them along; and when its write is left, grpc sends them again with the status,
        # fails at it, and the client never hears that the call is over.
        await context.send_initial_metadata(())
    await context.write(message)
