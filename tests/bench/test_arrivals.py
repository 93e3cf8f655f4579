"""An open-loop client: what it sends, when, and what it notes of each answer."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import AsyncIterator
from typing import Any

import pytest

from bench.arrivals import failure, greedy, lag, over, send, tpot, ttft
from bench.offer import FIRST_TOKEN, Offer
from bench.overload_mesh import under_load
from scheduler.simulator.workload import Flow, Lengths
from scheduler.traffic_class import CLASSES
from tercet import errors
from tercet.load.exchange import Exchange
from tercet.load.grpc_target import GrpcTarget
from tercet.rpc import Server, abort
from tercet.v1 import inference_pb2 as pb
from tercet.v1 import inference_pb2_grpc

# What a prompt begins with says what becomes of it.
REFUSE, FAIL, HANG = 1, 2, 3


class Gateway(inference_pb2_grpc.InferenceServicer):
    """Answers at once, unless the class or the first token says otherwise."""

    def __init__(self) -> None:
        self.requests: list[pb.GenerateRequest] = []
        self.address = ""

    async def Generate(self, request: pb.GenerateRequest, context: Any) -> AsyncIterator[pb.GenerateEvent]:
        self.requests.append(request)
        first = request.token_ids.ids[0]
        if first == REFUSE or request.traffic_class == "rag":
            await abort(context, errors.QueueFullError("full up", retry_after_s=1.5))
        yield pb.GenerateEvent(accepted=pb.Accepted(request_id="r"))
        if first == FAIL:
            await abort(context, errors.EngineFaultError("broken"))
        if first == HANG or request.traffic_class == "batch":
            await asyncio.Event().wait()
        for _ in range(request.stop.max_tokens):
            yield pb.GenerateEvent(delta=pb.Delta(text="x", token_ids=[9]))
        yield pb.GenerateEvent(finished=pb.Finished(outputs=[pb.OutputEnd(reason=pb.FINISH_REASON_LENGTH)]))


@pytest.fixture
async def gateway() -> AsyncIterator[Gateway]:
    served, server = Gateway(), Server()
    inference_pb2_grpc.add_InferenceServicer_to_server(served, server.grpc_server)
    port = await server.start("127.0.0.1", 0, [], key="gateway.port")
    served.address = f"127.0.0.1:{port}"
    yield served
    await server.stop(0)


async def test_each_is_sent_when_it_is_due_whatever_became_of_the_others(gateway: Gateway) -> None:
    asks = [
        greedy(0.0, (HANG,), 2),
        greedy(0.05, (REFUSE,), 2, traffic_class="batch"),
        greedy(0.05, (FAIL,), 2),
        greedy(0.1, (9, 9), 3, timeout_s=60.0),
    ]
    async with GrpcTarget(gateway.address) as target:
        hung, refused, failed, done = await send(target, asks, patience_s=0.5)
    assert [request.stop.max_tokens for request in gateway.requests] == [2, 2, 2, 3]
    assert all(request.stop.ignore_eos for request in gateway.requests)
    for asked, seen in zip(asks, (hung, refused, failed, done), strict=True):
        assert seen.ask is asked
        assert (asked.due_s or 0.0) - 1e-5 <= (seen.sent_s or 0.0) <= (seen.end_s or 0.0)
        assert over(seen) >= 0.0
    assert (hung.begun is not None, hung.ended, hung.broken_off, hung.error) == (True, None, True, None)
    assert hung.end_s is not None
    assert hung.end_s >= 0.6
    assert (refused.begun, refused.ended, refused.broken_off) == (None, None, False)
    error = failure(refused)
    assert error is not None
    assert (error.reason, error.retry_after_s) == ("QUEUE_FULL", 1.5)
    assert (failed.begun is not None, failed.ended) == (True, None)
    assert isinstance(failure(failed), errors.EngineFaultError)
    assert (done.ended is not None, failure(done), done.tokens, len(done.moments)) == (True, None, 3, 3)
    assert 0.0 <= ttft(done) <= over(done)


def test_times_of_one_and_lags_of_all() -> None:
    seen = Exchange(greedy(1.0, (9,), 3), 1.0, 1.25, array("d", (2.25, 2.5, 3.25)), tokens=3, end_s=3.5)
    assert (ttft(seen), tpot(seen), over(seen)) == (1.0, 0.5, 2.25)
    assert tpot(Exchange(greedy(0.0, (9,), 1), 0.0, 0.0, array("d", (2.0,)), tokens=1)) == 0.0
    prompt = Exchange(greedy(1.0, (9,), 3), 1.0, 1.0)
    assert lag([seen, prompt]) == {"p50": 0.0, "p99": 250.0, "max": 250.0}


def test_an_offer_is_the_same_at_any_rate_and_says_how_long_answers_are() -> None:
    flow = Flow("chat", Lengths(20, 0.5), Lengths(10, 0.5, 30), traffic_class="interactive", deadline_s=4.0)
    offer = Offer((flow,), 1.0, 7, 4096)
    once = [ask for _, ask in offer.asks(float("inf"), 50)]
    slow = [ask for _, ask in offer.asks(10.0, 50)]
    assert [(ask.prompt, ask.max_tokens) for ask in once] == [(ask.prompt, ask.max_tokens) for ask in slow]
    assert {ask.due_s for ask in once} == {0.0}
    assert slow[-1].due_s == pytest.approx(5.0, rel=0.5)
    assert all(1 <= ask.max_tokens <= 30 for ask in once)
    assert all(FIRST_TOKEN <= token < FIRST_TOKEN + 256 for ask in once for token in ask.prompt)
    assert {(ask.principal.traffic_class, ask.timeout_s) for ask in once} == {("interactive", 4.0)}


async def test_what_became_of_each_flow_is_counted_once(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bench.overload_mesh.PATIENCE_S", 2.0)
    flows = [
        Flow(name, Lengths(5), Lengths(4), traffic_class=traffic_class)
        for name, traffic_class in (("chat", "interactive"), ("retrieval", "rag"), ("summaries", "batch"))
    ]
    async with GrpcTarget(gateway.address) as target:
        run = await under_load(target, Offer(flows, 0.5, 1, 4096), 200.0, CLASSES)
    chat, retrieval, summaries = run["flows"].values()
    assert chat["offered"] + retrieval["offered"] + summaries["offered"] == 100
    assert chat["offered"] == chat["accepted"] == chat["completed"] == chat["qualified"] > 10
    assert 0 < chat["qualified_per_second"] < 200
    assert retrieval["refused"] == {"QUEUE_FULL": retrieval["offered"]}
    assert retrieval["refused_with_retry"] == retrieval["offered"] > 10
    assert retrieval["accepted"] == retrieval["qualified"] == 0
    # Their first tokens never came: they have waited for as long as they did.
    assert summaries["accepted"] == summaries["cancelled"] == summaries["offered"] > 10
    assert summaries["ttft_ms"]["p50"] > 200
    assert run["refusal_ms"]["p50"] <= run["refusal_ms"]["p99"]
    assert run["client_lag_ms"]["max"] >= 0
