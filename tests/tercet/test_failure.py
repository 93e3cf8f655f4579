"""Typed errors as they travel inside the mesh."""

from __future__ import annotations

import pytest

from tercet.errors import EngineFaultError, RequestError, request_error_types
from tercet.failure import failure_from_proto, failure_to_proto
from tercet.mesh.v1 import sequence_pb2


@pytest.mark.parametrize("kind", request_error_types().values())
@pytest.mark.parametrize("retry_after_s", [None, 0.0, 1.25])
def test_every_error_comes_back_whole(kind: type[RequestError], retry_after_s: float | None) -> None:
    error = failure_from_proto(failure_to_proto(kind("why", metadata={"a": "b"}, retry_after_s=retry_after_s)))
    assert type(error) is kind
    assert (error.message, error.metadata, error.retry_after_s) == ("why", {"a": "b"}, retry_after_s)


def test_an_unknown_reason_is_a_fault_that_names_it() -> None:
    error = failure_from_proto(sequence_pb2.Failure(reason="FROM_THE_FUTURE", message="why"))
    assert isinstance(error, EngineFaultError)
    assert error.metadata["unknown_reason"] == "FROM_THE_FUTURE"
