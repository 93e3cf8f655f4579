"""What a gateway makes of its clients' traces, and of those that have none."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import random
import string
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import httpx2
import pytest
import structlog

from gateway.end_line import end_line
from tercet.errors import QueueFullError, WorkerLostError
from tercet.failure import failure_to_proto
from tercet.ledger.row import Outcome, Row
from tercet.mesh.v1 import sequence_pb2
from tercet.ports import free_ports
from tercet.tracing.context import read_context
from tercet.tracing.settings import TracesSettings
from tercet.v1 import inference_pb2 as pb
from tests.tracing.otlp_receiver import Receiver, values

from .conftest import Gateway, config_for, start_gateway, stop_gateway

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
PARENT = f"00-{TRACE}-{SPAN}-01"


class TracedGateway:
    """A gateway over both edges, and the collector behind it."""

    def __init__(self, gateway: Gateway, receiver: Receiver, http: httpx2.AsyncClient) -> None:
        self.gateway = gateway
        self.receiver = receiver
        self.http = http
        self._stopped = False

    async def ask(self, *metadata: tuple[str, str], **fields: Any) -> pb.GenerateResult:
        request = pb.GenerateRequest(**{"prompt": "x", **fields})
        return await self.gateway.inference.GenerateOnce(request, metadata=metadata)

    async def stop(self) -> None:
        """After that the collector has all there is."""
        if not self._stopped:
            self._stopped = True
            await stop_gateway(self.gateway)


@pytest.fixture
async def traced(scheduler: Any, model_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[TracedGateway]:
    receiver, (http_port,) = Receiver(), free_ports(1)
    config = config_for(model_path, scheduler.port, http_port=http_port)
    settings = TracesSettings(**{"endpoint": receiver.endpoint, "sample_ratio": 0.0, **getattr(request, "param", {})})
    gateway = await start_gateway(dataclasses.replace(config, traces=settings))
    await gateway.until_ready()
    async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{http_port}", timeout=30) as http:
        made = TracedGateway(gateway, receiver, http)
        yield made
        await made.stop()
    receiver.stop()


def strange_parents(rng: random.Random, count: int) -> list[str]:
    """Well-formed ones with some characters changed, left out or doubled, and nothing like one."""
    out = ["", "-", PARENT * 20, "00-" + "f" * 200]
    while len(out) < count:
        text = list(PARENT)
        for _ in range(rng.randrange(1, 4)):
            place = rng.randrange(len(text))
            text[place : place + rng.randrange(2)] = rng.choice(["", "-", "g", "0" * 16, *string.printable[:94]])
        out.append("".join(text))
    return out


async def test_no_traceparent_breaks_a_request(traced: TracedGateway, scheduler: Any) -> None:
    rng = random.Random(5)
    parents = strange_parents(rng, 60)
    states = ["", "a=b", "=", ",,,", "x" * 3000, "a=b,c=d", "\x7e"]
    for parent in parents:
        state = rng.choice(states)
        await traced.ask(("traceparent", parent), ("tracestate", state))
        headers = {"traceparent": parent, "tracestate": state}
        answer = await traced.http.post("/v1/completions", json={"model": "bytes", "prompt": "x"}, headers=headers)
        assert answer.status_code == 200
    # Each that is one went down as it is, or as the parent of a span.
    sent = [sequence.submit for sequence in scheduler.sequences]
    assert len(sent) == 2 * len(parents)
    for submit, parent in zip(sent, [each for each in parents for _ in range(2)], strict=True):
        context = read_context(parent.strip())
        assert submit.HasField("trace_context") is (context is not None)
        if context is not None:
            assert submit.trace_context.traceparent[3:35] == context.trace_hex
            assert (submit.trace_context.traceparent == context.traceparent) is not context.sampled
    await traced.stop()
    wanted = [context for parent in parents if (context := read_context(parent.strip())) and context.sampled]
    assert len(traced.receiver.spans(lambda each: each.name.startswith("text_completion "))) == 2 * len(wanted)


@pytest.mark.parametrize("traced", [{"sample_ratio": 1.0}], indirect=True)
async def test_who_is_refused_before_there_is_a_request_has_a_span(traced: TracedGateway) -> None:
    with pytest.raises(grpc.aio.AioRpcError):
        await traced.ask(("traceparent", PARENT), model="nobody", request_id="r")
    answer = await traced.http.post("/v1/completions", json={"model": "bytes", "prompt": 7})
    assert answer.status_code == 400
    await traced.stop()
    first, second = traced.receiver.spans()
    assert (first.name, first.trace_id, first.parent) == ("refused", TRACE, SPAN)
    assert first.attributes["error.type"] == first.attributes["tercet.reason"] == "MODEL_NOT_FOUND"
    assert (second.name, second.parent) == ("refused", "")


@pytest.mark.parametrize("traced", [{"sample_ratio": 1.0}], indirect=True)
async def test_what_the_mesh_does_not_serve_is_an_error_by_its_reason(traced: TracedGateway, scheduler: Any) -> None:
    scheduler.refuse = failure_to_proto(QueueFullError("full"))
    with pytest.raises(grpc.aio.AioRpcError):
        await traced.ask(request_id="refused")
    scheduler.refuse = None

    async def fail(sequence: Any) -> None:
        await sequence.tokens(65, 66)
        failure = failure_to_proto(WorkerLostError("gone"))
        await sequence.end(sequence_pb2.END_REASON_FAILED, failure=failure)

    scheduler.play = fail
    with pytest.raises(grpc.aio.AioRpcError):
        await traced.ask(request_id="lost")
    await traced.stop()
    roots = {
        each.attributes["tercet.request.id"]: each
        for each in traced.receiver.spans()
        if "tercet.outcome" in each.attributes
    }
    told = {name: (each.failed, each.attributes["error.type"]) for name, each in roots.items()}
    assert told == {"refused": (True, "QUEUE_FULL"), "lost": (True, "WORKER_LOST")}
    assert [roots[name].attributes["tercet.outcome"] for name in ("refused", "lost")] == ["refused", "lost"]
    names = {each.name for each in traced.receiver.spans(lambda each: each.trace_id == roots["refused"].trace_id)}
    assert names == {roots["refused"].name, "tokenize", "admission"}


@pytest.mark.parametrize(
    "traced", [{"content": "sampled", "redact": ("x+",), "content_retention_days": 1}], indirect=True
)
async def test_of_a_chat_what_was_said_is_kept_by_role(traced: TracedGateway) -> None:
    body = {
        "model": "bytes",
        "messages": [
            {"role": "system", "content": "be xx"},
            {"role": "user", "content": [{"type": "text", "text": "hi"}]},
        ],
    }
    for flags in ("01", "00"):
        headers = {"traceparent": f"00-{TRACE}-{SPAN}-{flags}"}
        assert (await traced.http.post("/v1/chat/completions", json=body, headers=headers)).status_code == 200
    await traced.stop()
    (root,) = traced.receiver.spans(lambda each: each.name.startswith("chat "))
    (event,) = root.span.events
    said = {each.key: each.value.string_value for each in event.attributes}
    assert '"role": "system", "parts": [{"type": "text", "content": "be [REDACTED]"}]' in said["gen_ai.input.messages"]
    assert '"role": "user", "parts": [{"type": "text", "content": "hi"}]' in said["gen_ai.input.messages"]
    assert '"role": "assistant"' in said["gen_ai.output.messages"]


@pytest.mark.parametrize(
    "traced",
    [{"content": "sampled", "redact": ("zebra", "[0-9]{4}"), "content_retention_days": 7, "content_max_chars": 40}],
    indirect=True,
)
async def test_only_of_sampled_requests_something_is_kept_and_that_is_cut_and_redacted(traced: TracedGateway) -> None:
    said = "xylophone zebra 1234 " * 10
    with structlog.testing.capture_logs() as logs:
        await traced.ask(("traceparent", PARENT), prompt=said)
        await traced.ask(("traceparent", f"00-{'1' * 32}-{SPAN}-00"), prompt="nobody sees xylophones")
        await traced.ask(prompt="nor these")
        await traced.stop()
    (root,) = traced.receiver.spans(lambda each: each.name.startswith("text_completion "))
    (event,) = root.span.events
    content = values(event.attributes)
    assert content["tercet.content.retention_days"] == 7
    (message,) = json.loads(content["gen_ai.input.messages"])
    assert message["parts"][0]["content"] == "xylophone [REDACTED] [REDACTED] xylophone"[:40]
    (answer,) = json.loads(content["gen_ai.output.messages"])
    assert answer["role"] == "assistant"
    for word in (b"zebra", b"1234", b"nobody sees", b"nor these"):
        assert word not in traced.receiver.bytes
    assert {each.trace_id for each in traced.receiver.spans()} == {TRACE}
    # What was not traced has its client's trace in the log all the same.
    assert [line.get("trace_id") for line in logs if line["event"] == "request_ended"] == [TRACE, "1" * 32, None]
    assert "xylophone" not in str(logs)


async def test_the_log_has_one_line_for_each_request_and_none_for_a_token(traced: TracedGateway) -> None:
    with structlog.testing.capture_logs() as logs:
        for number in range(3):
            await traced.ask(("traceparent", PARENT), request_id=f"r{number}", traffic_class="batch")
        await asyncio.sleep(0)
        await traced.stop()
    lines = [each for each in logs if each.get("request_id", "").startswith("r")]
    assert [(each["event"], each["request_id"]) for each in lines] == [("request_ended", f"r{n}") for n in range(3)]
    for each in lines:
        assert (each["trace_id"], each["outcome"], each["slo"]) == (TRACE, "completed", "met")
        assert 0 <= each["ttft_ms"] <= each["total_ms"]
        assert each["completion_tokens"] > 0


def test_a_line_has_what_its_row_has_and_no_more() -> None:
    row = Row(1, "r", "t", "batch", "m", "v", 2, 3.0, Outcome.LOST, "WORKER_LOST", 5, queue_s=0.0015, total_s=None)
    line = end_line(row, key_id="k", client_gone=False, trace_id=None)
    assert (line["queue_ms"], line["total_ms"], line["outcome"], line["outputs"]) == (1.5, None, "lost", 2)
    assert "trace_id" not in line
