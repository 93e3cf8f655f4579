"""Requests for more than one output, over a real connection, with a scripted scheduler behind them."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import Any

import grpc
import grpc.aio
import pytest
import structlog
from google.rpc import error_details_pb2, status_pb2

from gateway.stream import ON_THEIR_WAY
from tercet.mesh.v1 import scheduler_pb2, sequence_pb2
from tercet.v1 import inference_pb2 as pb

STOP, LENGTH = pb.FINISH_REASON_STOP, pb.FINISH_REASON_LENGTH


def request(n: int, **fields: Any) -> pb.GenerateRequest:
    return pb.GenerateRequest(prompt="hello", sampling=pb.SamplingParams(n=n, seed=5), **fields)


async def stream(gateway: Any, asked: pb.GenerateRequest) -> tuple[dict[int, str], dict[int, list[int]], pb.Finished]:
    """Text and ids of each output, and the end, of a stream that keeps its contract."""
    events = [event async for event in gateway.inference.Generate(asked)]
    kinds = [event.WhichOneof("event") for event in events]
    assert kinds == ["accepted", *["delta"] * (len(kinds) - 2), "finished"]
    texts: dict[int, str] = defaultdict(str)
    ids: dict[int, list[int]] = defaultdict(list)
    for seq, event in enumerate(events[1:-1]):
        delta = event.delta
        assert (delta.seq, delta.token_offset) == (seq, len(ids[delta.output_index]))
        assert delta.token_ids
        texts[delta.output_index] += delta.text
        ids[delta.output_index] += delta.token_ids
    finished = events[-1].finished
    assert [end.output_index for end in finished.outputs] == list(range(asked.sampling.n))
    assert finished.usage.completion_tokens == sum(map(len, ids.values()))
    return texts, ids, finished


async def failure_of(call: Any) -> tuple[grpc.StatusCode, str]:
    """Code and reason of a stream that does not end well."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        while await call.read() is not grpc.aio.EOF:
            pass
    info = error_details_pb2.ErrorInfo()
    status = status_pb2.Status.FromString(dict(caught.value.trailing_metadata())["grpc-status-details-bin"])
    assert status.details[0].Unpack(info)
    return caught.value.code(), info.reason


async def test_one_submit_and_as_many_outputs_streamed_and_at_once(gateway: Any, scheduler: Any, model: Any) -> None:
    ids = model.tokenizer.encode("ab cd ef", add_bos=False)

    async def play(sequence: Any) -> None:
        # The second is one token shorter than the first, and so on; they end one after the other.
        for index, output in reversed(list(enumerate(sequence.outputs))):
            await output.tokens(*ids[: len(ids) - index])
            await output.end(sequence_pb2.END_REASON_LENGTH)

    scheduler.play = play
    texts, token_ids, finished = await stream(gateway, request(3))
    assert texts == {0: "ab cd ef", 1: "ab cd e", 2: "ab cd "}
    assert token_ids == {index: ids[: len(ids) - index] for index in range(3)}
    assert list(finished.outputs) == [pb.OutputEnd(output_index=index, reason=LENGTH) for index in range(3)]
    # Blocks of all, what the prompt found in the cache once.
    usage = finished.usage
    assert (usage.cached_tokens, usage.kv_blocks_used, usage.kv_blocks_freed, usage.incomplete) == (3, 15, 12, False)
    assert [(sequence.submit.n, sequence.submit.sampling.seed) for sequence in scheduler.sequences] == [(3, 5)]
    once = await gateway.inference.GenerateOnce(request(3))
    assert [(output.text, list(output.token_ids)) for output in once.outputs] == [
        (texts[index], token_ids[index]) for index in range(3)
    ]
    assert [output.end for output in once.outputs] == list(finished.outputs)
    assert once.usage == usage


async def test_as_many_as_are_allowed(gateway: Any) -> None:
    once = await gateway.inference.GenerateOnce(request(128))
    assert [output.text for output in once.outputs] == ["hello"] * 128
    assert once.usage.kv_blocks_used == 128 * 5


async def test_without_n_class_or_priority_one_output_of_the_default(gateway: Any, scheduler: Any) -> None:
    await gateway.inference.GenerateOnce(pb.GenerateRequest(prompt="x"))
    await gateway.inference.GenerateOnce(request(2, traffic_class="batch", priority=-100))
    submits = [sequence.submit for sequence in scheduler.sequences]
    assert [(each.n, each.traffic_class, each.priority) for each in submits] == [(1, "", 0), (2, "batch", -100)]


async def test_best_of_that_equals_n_asks_for_nothing_more(gateway: Any) -> None:
    once = await gateway.inference.GenerateOnce(
        pb.GenerateRequest(prompt="hello", sampling=pb.SamplingParams(n=2, best_of=2))
    )
    assert [output.text for output in once.outputs] == ["hello"] * 2


async def test_a_stop_string_ends_its_own_output_and_no_other(gateway: Any, scheduler: Any, model: Any) -> None:
    async def play(sequence: Any) -> None:
        first, second = sequence.outputs
        await second.tokens(*model.tokenizer.encode("one END two", add_bos=False))
        await second.stopped.wait()
        await first.tokens(*model.tokenizer.encode("on and on", add_bos=False))
        await first.end(sequence_pb2.END_REASON_LENGTH)

    scheduler.play = play
    asked = request(2, stop=pb.StopConditions(strings=["END"]))
    with structlog.testing.capture_logs() as logs:
        texts, ids, finished = await stream(gateway, asked)
    assert texts == {0: "on and on", 1: "one "}
    assert model.tokenizer.decode(ids[1]) == "one END"
    assert list(finished.outputs) == [
        pb.OutputEnd(output_index=0, reason=LENGTH), pb.OutputEnd(output_index=1, reason=STOP, stop_string="END"),
    ]  # fmt: skip
    assert (finished.usage.kv_blocks_used, finished.usage.incomplete) == (10, False)
    first, second = scheduler.sequences[0].outputs
    assert (first.stop_reason, second.stop_reason) == (None, sequence_pb2.CANCEL_REASON_STOP_STRING)
    assert first.cancel_reason is None
    events = {event["event"]: event for event in logs}
    assert events["stop_sent"]["output_index"] == events["stop_done"]["output_index"] == 1
    assert events["stop_done"]["blocks_freed"] == 4
    assert (events["request_ended"]["outputs"], events["request_ended"]["reason"]) == (2, "length,stop")


async def test_all_stopped_in_one_step(gateway: Any, scheduler: Any, model: Any) -> None:
    async def play(sequence: Any) -> None:
        ids = model.tokenizer.encode("aX", add_bos=False)
        columns = [(each.sequence_id, token) for token in ids for each in sequence.outputs]
        batch = scheduler_pb2.TokenBatch(sequence_ids=[s for s, _ in columns], token_ids=[t for _, t in columns])
        await scheduler.send(scheduler_pb2.SchedulerMessage(tokens=batch))

    scheduler.play = play
    texts, _, finished = await stream(gateway, request(3, stop=pb.StopConditions(strings=["X"])))
    assert texts == {0: "a", 1: "a", 2: "a"}
    assert (finished.usage.kv_blocks_used, finished.usage.incomplete) == (15, False)


async def test_one_output_that_fails_ends_the_request_and_cancels_the_rest(gateway: Any, scheduler: Any) -> None:
    async def play(sequence: Any) -> None:
        for output in sequence.outputs:
            await output.tokens(5)
        failure = sequence_pb2.Failure(reason="ENGINE_FAULT", message="the device broke")
        await sequence.outputs[1].end(sequence_pb2.END_REASON_FAILED, failure=failure)
        await sequence.cancelled.wait()

    scheduler.play = play
    found = await failure_of(gateway.inference.Generate(request(3)))
    assert found == (grpc.StatusCode.INTERNAL, "ENGINE_FAULT")
    await scheduler.sequences[0].cancelled.wait()
    assert scheduler.sequences[0].cancel_reason == sequence_pb2.CANCEL_REASON_FAULT


@pytest.mark.parametrize("reason", [sequence_pb2.END_REASON_FAILED, sequence_pb2.END_REASON_CANCELLED])
async def test_all_outputs_that_fail_together_are_one_failure(gateway: Any, scheduler: Any, reason: int) -> None:
    async def play(sequence: Any) -> None:
        for output in sequence.outputs:
            failure = sequence_pb2.Failure(reason="DEADLINE_PASSED", message="too late")
            await output.end(reason, failure=failure)

    scheduler.play = play
    for _ in range(2):
        found = await failure_of(gateway.inference.Generate(request(3, request_id="again")))
        assert found == (grpc.StatusCode.DEADLINE_EXCEEDED, "DEADLINE_PASSED")
    if reason == sequence_pb2.END_REASON_CANCELLED:
        # The scheduler ends the others by itself.
        assert scheduler.sequences[0].cancel_reason is None
    scheduler.play = scheduler.echo
    assert (await gateway.inference.GenerateOnce(request(1))).outputs[0].text == "hello"


async def test_a_client_that_leaves_cancels_all_its_outputs_once(gateway: Any, scheduler: Any, until: Any) -> None:
    async def play(sequence: Any) -> None:
        await sequence.outputs[0].end(sequence_pb2.END_REASON_LENGTH)
        while not sequence.cancelled.is_set():
            await sequence.outputs[1].tokens(5)
            await asyncio.sleep(0.001)

    scheduler.play = play
    with structlog.testing.capture_logs() as logs:
        call = gateway.inference.Generate(request(2))
        for _ in range(4):
            await call.read()
        call.cancel()
        await scheduler.sequences[0].cancelled.wait()

        async def done() -> bool:
            return any(event["event"] == "cancel_done" for event in logs)

        await until(done)
    assert scheduler.sequences[0].cancel_reason == sequence_pb2.CANCEL_REASON_CLIENT
    assert [event["event"] for event in logs].count("cancel_sent") == 1
    (ended,) = [event for event in logs if event["event"] == "request_ended"]
    assert (ended["outcome"], ended["reason"]) == ("cancelled", "client")


async def test_the_bound_of_unread_tokens_is_the_requests(scheduler: Any, make_gateway: Any, stop_gateway: Any) -> None:
    gateway = await make_gateway(scheduler.port, max_stream_tokens=64)
    await gateway.until_ready()

    async def play(sequence: Any) -> None:
        # None of them alone is too much.
        columns = [each.sequence_id for each in sequence.outputs for _ in range(17 + ON_THEIR_WAY)]
        batch = scheduler_pb2.TokenBatch(sequence_ids=columns, token_ids=[5] * len(columns))
        await scheduler.send(scheduler_pb2.SchedulerMessage(tokens=batch))
        await sequence.cancelled.wait()

    scheduler.play = play
    found = await failure_of(gateway.inference.Generate(request(4)))
    assert found == (grpc.StatusCode.RESOURCE_EXHAUSTED, "SLOW_CONSUMER")
    await scheduler.sequences[0].cancelled.wait()
    assert scheduler.sequences[0].cancel_reason == sequence_pb2.CANCEL_REASON_SLOW_CONSUMER
    await stop_gateway(gateway)


async def test_a_scheduler_that_makes_too_few_fails_that_request_alone(gateway: Any, scheduler: Any) -> None:
    scheduler.play = lambda sequence: sequence.cancelled.wait()
    beside = gateway.inference.Generate(request(1))
    await beside.read()
    scheduler.most_outputs = 1
    found = await failure_of(gateway.inference.Generate(request(2)))
    assert found == (grpc.StatusCode.INTERNAL, "ENGINE_FAULT")
    await scheduler.sequences[1].cancelled.wait()
    assert scheduler.sequences[1].cancel_reason == sequence_pb2.CANCEL_REASON_FAULT
    assert scheduler.sequences[0].cancel_reason is None
    beside.cancel()


async def test_scheduler_lost_while_some_outputs_have_ended(gateway: Any, scheduler: Any) -> None:
    async def play(sequence: Any) -> None:
        await sequence.outputs[0].tokens(5)
        await sequence.outputs[0].end(sequence_pb2.END_REASON_LENGTH)
        await sequence.cancelled.wait()

    scheduler.play = play
    call = gateway.inference.Generate(request(2))
    assert [(await call.read()).WhichOneof("event") for _ in range(2)] == ["accepted", "delta"]
    await scheduler.stop()
    assert await failure_of(call) == (grpc.StatusCode.UNAVAILABLE, "SCHEDULER_LOST")
