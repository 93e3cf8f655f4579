"""Typed errors of one request inside the mesh: RequestError to tercet.mesh.v1.Failure and back."""

from __future__ import annotations

from tercet import errors
from tercet.mesh.v1 import sequence_pb2


def failure_to_proto(error: errors.RequestError) -> sequence_pb2.Failure:
    """The message of a typed error."""
    return sequence_pb2.Failure(
        reason=error.reason, message=error.message, metadata=error.metadata, retry_after_ms=error.retry_after_ms
    )


def failure_from_proto(failure: sequence_pb2.Failure) -> errors.RequestError:
    """The typed error that a peer sent; one this version does not know is an EngineFaultError."""
    retry = failure.retry_after_ms / 1000 if failure.HasField("retry_after_ms") else None
    return errors.from_reason(failure.reason, failure.message, dict(failure.metadata), retry)
