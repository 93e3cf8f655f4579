"""Anything at all, sent to a real gateway, and bytes of any kind to the services behind it.

Each call is answered with a typed status, nothing is left behind, and all go on.

Each test has so many seconds as FUZZ_SECONDS says: `make check` gives more than `make test`. What it finds hypothesis
makes small and shows.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.message import Message
from google.rpc import error_details_pb2, status_pb2
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tercet.v1 import inference_pb2, models_pb2, operations_pb2

from ..e2e.conftest import Mesh
from ..tercet.raw_http2 import END_HEADERS, GREETING, HEADERS, PREFACE, call_headers, frame, literal
from .random_messages import messages

pytestmark = pytest.mark.e2e

SECONDS = float(os.environ.get("FUZZ_SECONDS", "1"))
# More than any of these calls takes, unless it hangs.
HANG_S = 60.0
FILES = {
    "Inference": inference_pb2.DESCRIPTOR,
    "Models": models_pb2.DESCRIPTOR,
    "Operations": operations_pb2.DESCRIPTOR,
}
METHODS = [method for name, file in FILES.items() for method in file.services_by_name[name].methods]
PATHS = [f"/tercet.v1.{method.containing_service.name}/{method.name}" for method in METHODS]
STREAMED, ONCE, TOKENIZE = PATHS[:3]
# As a varint.
SIZE_8_MB = b"\x80\xa4\xe8\x03"
# Of all services, for what is no message anyway.
ALL_PATHS = [
    *PATHS,
    "/tercet.mesh.v1.Scheduler/Attach",
    "/tercet.mesh.v1.Scheduler/GetFleet",
    "/tercet.mesh.v1.Worker/Attach",
    "/grpc.health.v1.Health/Watch",
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
]
# Of a bug.
NEVER = {grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN, grpc.StatusCode.DATA_LOSS}
# What a call of everything would take too long with.
MOST_TOKENS = 4

# At a time; a whole number of times.
EXAMPLES = settings(max_examples=20, deadline=None, database=None, suppress_health_check=list(HealthCheck))


def fuzz(body: Callable[[st.DataObject], None]) -> None:
    """Calls `body` with other data again and again, for SECONDS."""
    ends_at = time.monotonic() + SECONDS
    while time.monotonic() < ends_at:
        EXAMPLES(given(st.data())(body))()


@pytest.fixture(scope="module")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mesh]:
    running = Mesh(tmp_path_factory.mktemp("fuzz"))
    try:
        running.start()
        yield running
    finally:
        running.stop()


@pytest.fixture(scope="module")
def channel(mesh: Mesh) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(mesh.address) as connected:
        yield connected


@pytest.fixture
def unharmed(mesh: Mesh, channel: grpc.Channel) -> Iterator[None]:
    """After it the mesh is as before: the same processes, nothing running, no bug told, and answers."""
    pids = {name: mesh.pid(name) for name in mesh.ports}
    yield
    mesh.wait_idle(60.0)
    assert {name: mesh.pid(name) for name in mesh.ports} == pids
    for event in ("handler_failed", "gateway_stream_failed", "books_do_not_balance", "executor_died", "step_failed"):
        assert not [record for name in mesh.ports for record in mesh.records(name, event)]
    assert "Traceback" not in mesh.logs()
    request = inference_pb2.GenerateRequest(prompt="Once", stop=inference_pb2.StopConditions(max_tokens=4))
    call = channel.unary_unary(
        ONCE, inference_pb2.GenerateRequest.SerializeToString, inference_pb2.GenerateResult.FromString
    )
    assert call(request, timeout=HANG_S).usage.completion_tokens <= 4


def send(channel: grpc.Channel, index: int, data: bytes) -> None:
    """Makes a call with these bytes, given up after the first events if it streams. Fails for one that hangs, or ends
    in what no client can be blamed for, or without its reason."""
    try:
        if METHODS[index].server_streaming:
            call: Any = channel.unary_stream(PATHS[index])(data, timeout=HANG_S)
            for _ in zip(range(3), call, strict=False):
                pass
            call.cancel()
        else:
            channel.unary_unary(PATHS[index])(data, timeout=HANG_S)
    except grpc.RpcError as error:
        check(PATHS[index], error)


def check(path: str, error: Any) -> None:
    """That a failure is one of the errors that a client may get."""
    code = error.code()
    assert code not in NEVER, f"{path}: {code.name}: {error.details()}"
    trailers = dict(error.trailing_metadata() or ())
    status = status_pb2.Status.FromString(trailers.get("grpc-status-details-bin", b""))
    info = error_details_pb2.ErrorInfo()
    assert status.details, f"{path}: {code.name} without a reason: {error.details()}"
    assert status.details[0].Unpack(info)
    assert info.reason


def shorten(message: Message) -> None:
    """Lets GenerateOnce, which only comes back when all is done, ask for little."""
    if isinstance(message, inference_pb2.GenerateRequest):
        stop = message.stop
        if not stop.HasField("max_tokens") or stop.max_tokens > MOST_TOKENS:
            stop.max_tokens = MOST_TOKENS


def test_random_messages(channel: grpc.Channel, unharmed: None) -> None:
    @fuzz
    def _(data: st.DataObject) -> None:
        index = data.draw(st.integers(0, len(METHODS) - 1))
        message = data.draw(messages(METHODS[index].input_type))
        if not METHODS[index].server_streaming:
            shorten(message)
        send(channel, index, message.SerializeToString())


def test_requests_that_are_nearly_right(channel: grpc.Channel, unharmed: None) -> None:
    """A prompt that could be answered, and one thing beside it that may be wrong."""

    @fuzz
    def _(data: st.DataObject) -> None:
        message = inference_pb2.GenerateRequest(prompt=data.draw(st.text(max_size=60)))
        part = data.draw(st.sampled_from(["sampling", "stop"]))
        getattr(message, part).CopyFrom(data.draw(messages(message.DESCRIPTOR.fields_by_name[part].message_type)))
        shorten(message)
        send(channel, data.draw(st.integers(0, 1)), message.SerializeToString())


def test_bytes_that_are_no_message(channel: grpc.Channel, unharmed: None) -> None:
    """Noise, and messages with a few bytes of noise in them."""

    @fuzz
    def _(data: st.DataObject) -> None:
        index = data.draw(st.integers(0, len(METHODS) - 1))
        text = bytearray(data.draw(messages(METHODS[index].input_type)).SerializeToString())
        for _ in range(data.draw(st.integers(0, 3))):
            at = data.draw(st.integers(0, len(text)))
            text[at : at + data.draw(st.integers(0, 2))] = data.draw(st.binary(max_size=3))
        # Nobody knows what limit of tokens is in there: a stream can be left.
        send(channel, PATHS.index(STREAMED) if PATHS[index] == ONCE else index, bytes(text))


@pytest.mark.parametrize("at_once", [1, 16])
def test_messages_of_millions_of_nothing(channel: grpc.Channel, unharmed: None, mesh: Mesh, at_once: int) -> None:
    """Two bytes make a message within a message: calls of 8 MB that hold four million are refused unparsed."""
    before = resident(mesh.pid("gateway"))
    calls = [(STREAMED, 0x22, 0x0A), (ONCE, 0x2A, 0x42), (ONCE, 0x32, 0x12), (TOKENIZE, 0x1A, 0x0A)]
    started = []
    for _ in range(at_once):
        for path, outer, inner in calls:
            data = bytes([outer]) + SIZE_8_MB + bytes([inner, 0]) * 4_000_000
            started.append((path, channel.unary_unary(path).future(data, timeout=HANG_S)))
    for path, call in started:
        error = call.exception()
        check(path, error)
        assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    # For the bytes, not for what would be made of them, which takes many times as much.
    assert resident(mesh.pid("gateway")) - before < 8_000_000 * (len(started) + 8)


def resident(pid: int) -> int:
    """Bytes that a process has in memory."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


FRAMES = st.builds(
    frame,
    st.integers(0, 12),
    st.integers(0, 255),
    st.one_of(st.sampled_from([0, 1, 3, 2**31 - 1, 2**32 - 1]), st.integers(0, 2**32 - 1)),
    st.one_of(st.binary(max_size=60), st.sampled_from([call_headers(path.encode()) for path in ALL_PATHS])),
    st.one_of(st.none(), st.integers(0, 2**24 - 1)),
)
NAMES = [b":method", b":path", b":status", b"content-type", b"grpc-timeout", b"grpc-encoding", b"te", b"authorization"]
FIELDS = st.builds(literal, st.sampled_from(NAMES), st.binary(max_size=30))
CALLS = st.builds(
    lambda path, fields: frame(HEADERS, END_HEADERS, 1, call_headers(path.encode()) + b"".join(fields)),
    st.sampled_from(ALL_PATHS),
    st.lists(FIELDS, max_size=3),
)
BYTES = st.one_of(
    st.binary(max_size=200),
    st.builds(lambda noise: PREFACE + noise, st.binary(max_size=200)),
    st.builds(lambda frames: GREETING + b"".join(frames), st.lists(st.one_of(FRAMES, CALLS), max_size=8)),
)


def test_bytes_that_are_no_http2(mesh: Mesh, unharmed: None) -> None:
    @fuzz
    def _(data: st.DataObject) -> None:
        sent = data.draw(BYTES)
        address = ("127.0.0.1", data.draw(st.sampled_from(list(mesh.ports.values()))))
        with socket.create_connection(address, timeout=HANG_S) as connection, contextlib.suppress(ConnectionError):
            connection.sendall(sent)
            connection.shutdown(socket.SHUT_WR)
            # It hears that nothing more comes, and so has to end it.
            while connection.recv(65536):
                pass
