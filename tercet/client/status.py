"""Statuses of calls as typed errors, whichever of gRPC's two kinds of client has them."""

from __future__ import annotations

from typing import Any

import grpc

from tercet import errors
from tercet.call_status import typed_error


def to_error(call: Any, address: str) -> errors.RequestError:
    """The typed error of a call that failed at `address`: the gateway's own, or one for what gRPC says by itself. The
    metadata of those have gRPC's `code`, where it says more than the error's own."""
    typed = typed_error(call.trailing_metadata())
    if typed is not None:
        return typed
    text = call.details() or ""
    code = call.code()
    if code is grpc.StatusCode.UNAVAILABLE:
        return errors.GatewayLostError(f"no gateway answers at {address}: {text}")
    if code is grpc.StatusCode.UNIMPLEMENTED:
        return errors.GatewayLostError(f"{address} answers, but is not a gateway: {text}", metadata={"code": code.name})
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return errors.DeadlineError("the deadline of the call passed")
    if code is grpc.StatusCode.CANCELLED:
        # Who cancels here hears nothing of it: this is gRPC at the other end, which stops, or is flooded, and has not
        # begun the call.
        return errors.GatewayLostError(f"{address} turned the call away: {text}")
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED:
        # Of gRPC itself, which says so of nothing but messages and metadata that are too large.
        return errors.InvalidFieldError(f"the request is too large: {text}")
    if code is grpc.StatusCode.INVALID_ARGUMENT:
        return errors.InvalidFieldError(text)
    return errors.EngineFaultError(text or code.name, metadata={"code": code.name})
