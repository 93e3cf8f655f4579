"""Traces of a mesh of real processes, as a collector gets them over OTLP: whole trees, with ids, times and facts, and
without a word of any text."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import grpc
import pytest

from tercet.client import AsyncClient, Delta
from tercet.errors import RequestError
from tercet.v1 import inference_pb2 as pb
from tercet.v1 import inference_pb2_grpc

from ..tracing.otlp_receiver import KINDS, Received, Receiver, values
from .conftest import ROOT, Mesh, free_port, wait_until

pytestmark = pytest.mark.e2e

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
SECRET = "xylophone zebra"
# Clocks of several processes, read one after the other on a busy machine.
SLACK_NS = 50_000_000


@dataclass(frozen=True)
class Traced:
    """A mesh of which everything is traced, and what was said in it."""

    mesh: Mesh
    receiver: Receiver
    http_port: int
    said: list[str]
    logs: Path


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Traced]:
    receiver, http_port = Receiver(), free_port()
    settings = {
        "TERCET_TRACES_ENDPOINT": receiver.endpoint,
        "TERCET_TRACES_SAMPLE_RATIO": "1",
        "TERCET_GATEWAY_HTTP_PORT": str(http_port),
    }
    logs = tmp_path_factory.mktemp("traced")
    mesh = Mesh(logs, settings)
    try:
        mesh.start()
        yield Traced(mesh, receiver, http_port, [SECRET], logs)
    finally:
        mesh.stop()
        receiver.stop()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    made = Receiver()
    yield made
    made.stop()


async def stream(mesh: Mesh, metadata: tuple[tuple[str, str], ...], **fields: Any) -> list[Any]:
    """The events of one Generate."""
    async with grpc.aio.insecure_channel(mesh.address) as channel:
        request = pb.GenerateRequest(
            stop=pb.StopConditions(max_tokens=fields.pop("max_tokens", 8), ignore_eos=True), **fields
        )
        return [each async for each in inference_pb2_grpc.InferenceStub(channel).Generate(request, metadata=metadata)]


def by_name(spans: list[Received]) -> dict[str, Received]:
    """The spans of a trace of one request with one output."""
    found = {each.name: each for each in spans}
    assert len(found) == len(spans), [each.name for each in spans]
    return found


def check_tree(spans: dict[str, Received], root: str, *, left: bool = False) -> None:
    """Who is whose child, and that children lie within their parents; but what a client has left goes on for a step."""
    parents = {
        "tokenize": root, "admission": root, "stream": root, "schedule": root, "queue": "schedule",
        "sequence": "schedule", "prefill": "sequence", "decode": "sequence",
    }  # fmt: skip
    assert spans.keys() == {root, *parents}
    for name, parent in parents.items():
        inner, outer = spans[name].span, spans[parent].span
        assert spans[name].parent == spans[parent].id, name
        assert outer.start_time_unix_nano - SLACK_NS <= inner.start_time_unix_nano <= inner.end_time_unix_nano
        if not (left and name == "schedule"):
            assert inner.end_time_unix_nano <= outer.end_time_unix_nano + SLACK_NS, name
    assert spans["prefill"].span.end_time_unix_nano == spans["decode"].span.start_time_unix_nano
    assert {name: each.service for name, each in spans.items()} == {
        root: "tercet-gateway", "tokenize": "tercet-gateway", "admission": "tercet-gateway", "stream": "tercet-gateway",
        "schedule": "tercet-scheduler", "queue": "tercet-scheduler",
        "sequence": "tercet-worker", "prefill": "tercet-worker", "decode": "tercet-worker",
    }  # fmt: skip
    assert len({each.resource["service.instance.id"] for each in spans.values()}) == 3


def root_of(spans: dict[str, Received], operation: str) -> str:
    """The name of the span of the whole request."""
    (name,) = (name for name in spans if name.startswith(f"{operation} "))
    return name


async def test_a_request_is_one_trace_through_all_three_services(traced: Traced) -> None:
    mesh, receiver = traced.mesh, traced.receiver
    parent = (("traceparent", f"00-{TRACE}-{SPAN}-01"), ("tracestate", "vendor=word"))
    events = await stream(mesh, parent, prompt=f"Say {SECRET}", request_id="mine", traffic_class="batch")
    finished = events[-1].finished
    traced.said.append("".join(each.delta.text for each in events if each.HasField("delta")))
    await asyncio.to_thread(wait_until, lambda: len(receiver.trace(TRACE)) == 9, "all spans of it are there")
    spans = by_name(receiver.trace(TRACE))
    root_name = root_of(spans, "text_completion")
    root = spans[root_name]
    check_tree(spans, root_name)
    assert (root.parent, root.span.kind, root.failed) == (SPAN, KINDS.SPAN_KIND_SERVER, False)
    assert {each.span.trace_state for each in spans.values()} == {"vendor=word"}
    facts = root.attributes
    assert facts["gen_ai.request.model"] == root_name.split(" ", 1)[1] == facts["gen_ai.response.model"]
    assert facts["gen_ai.usage.input_tokens"] == finished.usage.prompt_tokens
    assert facts["gen_ai.usage.output_tokens"] == finished.usage.completion_tokens == 8
    assert facts["gen_ai.response.finish_reasons"] == ["length"]
    assert (facts["tercet.class"], facts["tercet.outcome"]) == ("batch", "completed")
    assert facts["tercet.request.id"] == facts["gen_ai.response.id"] == "mine"
    assert (facts["tercet.input_bucket"], facts["tercet.output_bucket"]) == ("1-128", "1-128")
    assert spans["schedule"].attributes["tercet.outcome"] == "LENGTH"
    worker = spans["sequence"]
    assert (worker.attributes["tercet.tokens"], worker.attributes["tercet.outcome"]) == (8, "length")
    assert worker.resource["tercet.parallel.tensor"] == 1
    assert worker.resource["tercet.model.revision"] == facts["tercet.model.revision"]
    assert worker.resource["tercet.quantization"] == "none"
    plans = [values(event.attributes) for event in worker.span.events if event.name == "plan"]
    assert sum(plan["tercet.tokens"] for plan in plans) == 8
    assert sum(plan["tercet.prefill_tokens"] for plan in plans) == worker.attributes["tercet.prefill_tokens"] > 0
    (line,) = mesh.records("gateway", "request_ended", request_id="mine")
    assert (line["trace_id"], line["traffic_class"], line["completion_tokens"]) == (TRACE, "batch", 8)


async def test_over_http_each_output_is_a_sequence_of_the_trace(traced: Traced) -> None:
    mesh, receiver = traced.mesh, traced.receiver
    body = {"messages": [{"role": "user", "content": f"Repeat {SECRET}"}], "max_tokens": 4, "n": 2}
    async with aiohttp.ClientSession() as session:
        url, headers = f"http://127.0.0.1:{traced.http_port}/v1/chat/completions", {"x-request-id": "over-http"}
        answer = await session.post(url, json=body, headers=headers)
        assert answer.status == 200, await answer.text()
        traced.said.append((await answer.json())["choices"][0]["message"]["content"])

    def lines() -> list[dict[str, Any]]:
        return mesh.records("gateway", "request_ended", request_id="over-http")

    await asyncio.to_thread(wait_until, lambda: bool(lines()), "its line is in the log")
    trace_id = lines()[0]["trace_id"]
    # The prompt was computed for the first output.
    names = sorted(["tokenize", "admission", "stream", "schedule", "queue", *["sequence", "decode"] * 2, "prefill"])
    enough = len(names) + 1
    await asyncio.to_thread(wait_until, lambda: len(receiver.trace(trace_id)) == enough, "all of its spans are there")
    spans = receiver.trace(trace_id)
    (root,) = (each for each in spans if each.name.startswith("chat "))
    assert root.parent == ""
    assert sorted(each.name for each in spans if each is not root) == names
    sequences = [each for each in spans if each.name == "sequence"]
    leader, fork = sorted(sequences, key=lambda each: len(each.span.links))
    assert [bytes(link.span_id).hex() for link in fork.span.links] == [leader.id]


async def test_what_fails_is_an_error_and_what_is_cancelled_is_none(traced: Traced) -> None:
    mesh, receiver = traced.mesh, traced.receiver
    async with AsyncClient(mesh.address) as client:
        for options in ({"model": "nobody"}, {"max_tokens": 10**6}):
            with pytest.raises(RequestError):
                await client.generate(f"Say {SECRET}", request_id="refused", **options).answer()  # type: ignore[arg-type]
        async with client.generate(f"Say {SECRET}", max_tokens=4000, ignore_eos=True, request_id="left") as running:
            async for event in running:
                if isinstance(event, Delta):
                    break

    def refused() -> list[Received]:
        return receiver.spans(lambda each: each.attributes.get("tercet.outcome") == "refused")

    await asyncio.to_thread(wait_until, lambda: len(refused()) == 2, "refusals are there")
    assert {each.attributes["error.type"] for each in refused()} == {"MODEL_NOT_FOUND", "PROMPT_TOO_LONG"}
    assert all(each.failed for each in refused())

    def left() -> dict[str, Received]:
        found = receiver.spans(lambda each: each.attributes.get("gen_ai.response.id") == "left")
        return by_name(receiver.trace(found[0].trace_id)) if found else {}

    await asyncio.to_thread(wait_until, lambda: len(left()) == 9, "what its client has left is there")
    spans = left()
    root_name = root_of(spans, "text_completion")
    check_tree(spans, root_name, left=True)
    facts = spans[root_name].attributes
    assert (facts["tercet.outcome"], facts["tercet.reason"]) == ("cancelled", "client")
    assert spans["schedule"].attributes["tercet.reason"] == "CLIENT"
    assert spans["sequence"].attributes["tercet.outcome"] == "cancel"
    assert not any(each.failed for each in spans.values())


async def test_no_word_of_any_text_is_in_spans_or_logs(traced: Traced) -> None:
    """Of all that was said before: the tests of this file run in their order."""
    if len(traced.said) < 3:
        pytest.skip("nothing was said yet")
    written = traced.receiver.bytes + b"".join(each.read_bytes() for each in traced.logs.glob("*.log"))
    assert b"text_completion" in written
    assert b"request_ended" in written
    for text in (*traced.said, *SECRET.split()):
        assert text.strip()
        assert text.encode() not in written
        assert json.dumps(text)[1:-1].encode() not in written


# What is there only where it is asked for, or happens.
RARE = {
    "tercet.content.retention_days", "tercet.events_left_out", "tercet.forecast_ms", "tercet.waited_for", "error.type",
    "gen_ai.input.messages", "gen_ai.output.messages", "gen_ai.client.inference.operation.details",
}  # fmt: skip


async def test_every_attribute_is_on_the_page_and_every_name_there_is_one(traced: Traced) -> None:
    """Of all spans that came before: the tests of this file run in their order."""
    spans = traced.receiver.spans()
    if len(spans) < 28:
        pytest.skip("not all of it has happened yet")
    found = {name for each in spans for name in (*each.attributes, *each.resource)}
    found |= {
        item.key for each in spans for event in each.span.events if event.name == "plan" for item in event.attributes
    }
    page = (ROOT / "docs" / "tracing.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`((?:tercet|gen_ai|service|host|process|error)\.[a-z_.]+)`", page))
    named -= {"tercet.v1"}
    assert found - named == set()
    assert named - found - RARE == set()


async def test_collectors_that_are_dead_or_slow_harm_nobody(own_mesh: Callable[..., Mesh], receiver: Receiver) -> None:
    receiver.delay_s = 30.0
    mesh = own_mesh(TERCET_TRACES_SAMPLE_RATIO="1", TERCET_TRACES_MAX_WAITING_SPANS="40")
    mesh.set(TERCET_TRACES_ENDPOINT=f"http://127.0.0.1:{free_port()}")
    mesh.start("worker", "gateway")
    mesh.set(TERCET_TRACES_ENDPOINT=receiver.endpoint)
    await asyncio.to_thread(mesh.start, "scheduler")
    await asyncio.gather(*(stream(mesh, (), prompt="Once", max_tokens=3) for _ in range(40)))
    await asyncio.to_thread(wait_until, lambda: receiver.num_calls > 0, "the slow one has something to do")
    began = time.monotonic()
    assert set(mesh.stop().values()) == {0}
    # Each waits for its collector for 2 s at most.
    assert time.monotonic() - began < 60
    for name in ("gateway", "scheduler", "worker"):
        dropped = mesh.records(name, "spans_dropped")
        assert sum(line["spans"] for line in dropped) >= 40, name
        assert len(dropped) <= 3
    assert "Traceback" not in mesh.logs()
