"""Typed errors as the statuses of calls."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NoReturn

import grpc.aio
from google.rpc import status_pb2

from tercet import error_status, errors


async def abort(context: grpc.aio.ServicerContext, error: errors.RequestError) -> NoReturn:
    """Ends a call with the status of a typed error. Never returns."""
    status = error_status.to_status(error)
    trailers = [("grpc-status-details-bin", status.SerializeToString())]
    if error.retry_after_s is not None:
        trailers.append(("grpc-retry-pushback-ms", str(max(0, int(error.retry_after_s * 1000)))))
    await context.abort(error.code, status.message, tuple(trailers))
    raise AssertionError("context.abort returned")


def typed_error(trailers: Iterable[tuple[str, str | bytes]] | None) -> errors.RequestError | None:
    """The error that `abort` put into the trailers of a call; None if there is none."""
    for key, value in trailers or ():
        if key == "grpc-status-details-bin" and isinstance(value, bytes):
            return error_status.from_status(status_pb2.Status.FromString(value))
    return None
