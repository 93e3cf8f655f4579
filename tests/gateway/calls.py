"""Calls of a gateway, and what holds for all of them."""

from __future__ import annotations

from typing import Any

import grpc
import grpc.aio
import pytest
from google.rpc import error_details_pb2, status_pb2

from tercet.v1 import inference_pb2 as pb


def failure_of(error: grpc.aio.AioRpcError) -> tuple[grpc.StatusCode, str, dict[str, str]]:
    """Code, reason and metadata of a typed status; every detail type at most once, one ErrorInfo."""
    trailers = dict(error.trailing_metadata())
    status = status_pb2.Status.FromString(trailers["grpc-status-details-bin"])
    types = [detail.type_url for detail in status.details]
    assert len(set(types)) == len(types)
    info = error_details_pb2.ErrorInfo()
    assert status.details[0].Unpack(info)
    return error.code(), info.reason, dict(info.metadata)


async def refused(gateway: Any, request: pb.GenerateRequest) -> tuple[grpc.StatusCode, str, dict[str, str]]:
    """The failure of a request that must not start, the same for both calls."""
    found = []
    for call in (gateway.inference.GenerateOnce(request), gateway.inference.Generate(request)):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            if isinstance(call, grpc.aio.UnaryUnaryCall):
                await call
            else:
                await call.read()
        assert len(await call.initial_metadata()) == 0
        found.append(failure_of(caught.value))
    assert found[0] == found[1]
    return found[0]


def check_events(events: list[pb.GenerateEvent]) -> tuple[str, list[int], pb.Finished]:
    """The contract of every stream that ends well; gives its text, its token ids and its end."""
    kinds = [event.WhichOneof("event") for event in events]
    assert kinds == ["accepted", *["delta"] * (len(kinds) - 2), "finished"]
    text, token_ids = "", []
    for seq, event in enumerate(events[1:-1]):
        assert event.delta.seq == seq
        assert event.delta.token_offset == len(token_ids)
        assert event.delta.token_ids
        text += event.delta.text
        token_ids += event.delta.token_ids
    finished = events[-1].finished
    assert finished.usage.completion_tokens == len(token_ids)
    return text, token_ids, finished


async def stream(gateway: Any, request: pb.GenerateRequest) -> list[pb.GenerateEvent]:
    return [event async for event in gateway.inference.Generate(request)]
