"""How a gRPC call ends whose handler did not answer."""

from __future__ import annotations

import asyncio
from typing import NoReturn

import grpc
import structlog

from tercet import errors, rpc
from tercet.refusal_lines import RefusalLines

from .generation import Generation
from .unexpected import engine_fault

_refusals = RefusalLines(structlog.get_logger(), "calls_refused")


async def end_call(error: BaseException, context: grpc.aio.ServicerContext, generation: Generation | None) -> NoReturn:
    """Ends a call whose handler raised `error`: with a typed status, or, if the call is over, by raising it again."""
    if isinstance(error, asyncio.CancelledError) and generation is not None and generation.stream is not None:
        # Interrupted in a write: the stream says why. If it does not, the client went away.
        error = generation.stream.error or error
    if not isinstance(error, errors.RequestError):
        if isinstance(error, grpc.aio.BaseError) or not isinstance(error, Exception):
            try:
                raise error
            finally:
                # Otherwise each refers to the other, the error and this frame, and all that the call had waits for the
                # garbage collector.
                del error
        error = engine_fault(error)
    if generation is not None:
        # Before the status goes out: to a client that does not read, that can take for ever.
        generation.close(error)
    else:
        _refusals.tell("call_refused", reason=error.reason, field=error.metadata.get("field"))
    # The request keeps its error, which would keep the frames that it came through, and these the request.
    error.__traceback__ = None
    await rpc.abort(context, error)
