"""Parts of the contract that both edges translate: failures and enums between protos and plain values."""

from __future__ import annotations

from enum import IntEnum
from typing import TypeVar

from tercet import errors
from tercet.mesh.v1 import sequence_pb2

from .events import Sampling

Kind = TypeVar("Kind", bound=IntEnum)


def enum_value(kind: type[Kind], number: int) -> Kind:
    """A number of the wire; one that this version does not know is UNSPECIFIED (0)."""
    try:
        return kind(number)
    except ValueError:
        return kind(0)


def failure_to_proto(error: errors.RequestError) -> sequence_pb2.Failure:
    retry = None if error.retry_after_s is None else round(error.retry_after_s * 1000)
    return sequence_pb2.Failure(
        reason=error.reason, message=error.message, metadata=error.metadata, retry_after_ms=retry
    )


def failure_from_proto(failure: sequence_pb2.Failure) -> errors.RequestError:
    retry = failure.retry_after_ms / 1000 if failure.HasField("retry_after_ms") else None
    return errors.from_reason(failure.reason, failure.message, dict(failure.metadata), retry)


def sampling_to_proto(sampling: Sampling) -> sequence_pb2.Sampling:
    return sequence_pb2.Sampling(
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        min_p=sampling.min_p,
        seed=sampling.seed,
    )


def sampling_from_proto(sampling: sequence_pb2.Sampling) -> Sampling:
    return Sampling(
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        min_p=sampling.min_p,
        seed=sampling.seed,
    )
