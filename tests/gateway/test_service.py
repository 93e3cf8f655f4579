"""The public services over a real connection, with a scripted scheduler behind them."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import grpc
import grpc.aio
import pytest
import structlog
from grpc_health.v1 import health_pb2, health_pb2_grpc

from gateway.prefix_salt import prefix_salt
from tercet.mesh.v1 import sequence_pb2
from tercet.v1 import inference_pb2 as pb
from tercet.v1 import models_pb2, operations_pb2
from tests.gateway.calls import check_events, failure_of, refused, stream

STOP, LENGTH = pb.FINISH_REASON_STOP, pb.FINISH_REASON_LENGTH


async def test_stream_and_once_agree(gateway: Any, scheduler: Any, model: Any) -> None:
    request = pb.GenerateRequest(prompt="hello, 世界 🙂", request_id="mine", sampling=pb.SamplingParams(seed=5))
    events = await stream(gateway, request)
    text, token_ids, finished = check_events(events)
    assert text == "hello, 世界 🙂"
    assert token_ids == [*model.tokenizer.encode(request.prompt, add_bos=False), 261]
    accepted = events[0].accepted
    assert (accepted.request_id, accepted.model, accepted.seed) == ("mine", "bytes", 5)
    assert accepted.model_revision == model.revision
    assert (accepted.queue_position, accepted.prompt_tokens) == (2, len(token_ids) - 1)
    assert finished.outputs[0] == pb.OutputEnd(reason=STOP)
    assert (finished.usage.cached_tokens, finished.usage.kv_blocks_used, finished.usage.kv_blocks_freed) == (3, 5, 4)
    assert finished.timings.queue_seconds == pytest.approx(0.002)
    times = finished.timings
    assert 0 < times.admission_seconds <= times.time_to_first_token_seconds <= times.total_seconds
    once = await gateway.inference.GenerateOnce(request)
    assert (once.outputs[0].text, list(once.outputs[0].token_ids), once.outputs[0].end) == (
        text, token_ids, finished.outputs[0],
    )  # fmt: skip
    assert once.usage == finished.usage
    assert (once.request_id, once.model, once.seed, once.model_revision) == ("mine", "bytes", 5, model.revision)
    assert scheduler.sequences[0].submit.sampling == scheduler.sequences[1].submit.sampling


async def test_submit_has_every_parameter_resolved(gateway: Any, scheduler: Any, model: Any) -> None:
    await stream(gateway, pb.GenerateRequest(prompt="hello"))
    submit = scheduler.sequences[0].submit
    assert (submit.model, submit.model_revision) == ("bytes", model.revision)
    assert submit.request_id.startswith("req-")
    assert (submit.sampling.temperature, submit.sampling.top_k, submit.sampling.top_p) == (0.5, 7, 1.0)
    assert (submit.max_tokens, submit.max_tokens_open) == (256 - 1, True)
    assert list(submit.stop_token_ids) == [261]
    assert not submit.HasField("deadline_ms")
    request = pb.GenerateRequest(
        model="alias",
        token_ids=pb.TokenIds(ids=[1, 2]),
        sampling=pb.SamplingParams(temperature=0, top_p=0.5, top_k=3, min_p=0.25, seed=2**64 - 1),
        stop=pb.StopConditions(max_tokens=2, token_ids=[9, 9], ignore_eos=True),
    )
    _, token_ids, finished = check_events([event async for event in gateway.inference.Generate(request, timeout=60)])
    submit = scheduler.sequences[1].submit
    assert submit.sampling == sequence_pb2.Sampling(temperature=0, top_p=0.5, top_k=3, min_p=0.25, seed=2**64 - 1)
    assert (list(submit.prompt_token_ids), submit.max_tokens, list(submit.stop_token_ids)) == ([1, 2], 2, [9])
    assert not submit.max_tokens_open
    assert 0 < submit.deadline_ms <= 61_000  # gRPC rounds timeouts up on the wire
    assert token_ids == [1, 2]
    assert finished.outputs[0] == pb.OutputEnd(reason=LENGTH)


async def test_penalties_are_resolved_and_absent_where_nothing_is_asked(gateway: Any, scheduler: Any) -> None:
    await stream(gateway, pb.GenerateRequest(prompt="hello"))
    neutral = pb.SamplingParams(repetition_penalty=1, frequency_penalty=0, presence_penalty=0)
    await stream(gateway, pb.GenerateRequest(prompt="hello", sampling=neutral))
    assert not any(sequence.submit.sampling.HasField("penalties") for sequence in scheduler.sequences)
    sampling = pb.SamplingParams(
        repetition_penalty=1.5, frequency_penalty=-2, presence_penalty=0.5, allowed_token_ids=[4, 3, 4],
        logit_bias=[pb.LogitBias(token_id=9, bias=-100), pb.LogitBias(token_id=3, bias=2)],
    )  # fmt: skip
    request = pb.GenerateRequest(
        token_ids=pb.TokenIds(ids=[1, 2]), sampling=sampling, stop=pb.StopConditions(max_tokens=5, min_tokens=5)
    )
    await stream(gateway, request)
    assert scheduler.sequences[2].submit.sampling.penalties == sequence_pb2.Penalties(
        prompt_tokens=2, repetition=1.5, frequency=-2, presence=0.5, biased_ids=[9, 3], biases=[-100, 2],
        allowed_ids=[4, 3], min_tokens=5,
    )  # fmt: skip
    await stream(gateway, pb.GenerateRequest(prompt="hello", stop=pb.StopConditions(min_tokens=1)))
    assert scheduler.sequences[3].submit.sampling.penalties.min_tokens == 1


async def test_bad_words_go_down_as_tokens(gateway: Any, scheduler: Any, model: Any) -> None:
    def encode(text: str) -> list[int]:
        return model.tokenizer.encode(text, add_bos=False)

    await stream(gateway, pb.GenerateRequest(prompt="x", sampling=pb.SamplingParams(bad_words=["hello", "\n", "ab"])))
    penalties = scheduler.sequences[0].submit.sampling.penalties
    words = [encode("hello"), encode("\n"), encode("ab")]
    assert list(penalties.bad_ids) == [token_id for word in words for token_id in word]
    assert list(penalties.bad_lengths) == [1, 1, 2]
    # More than are looked at inline.
    many = [f"w{i}" for i in range(100)]
    await stream(gateway, pb.GenerateRequest(prompt="x", sampling=pb.SamplingParams(bad_words=many)))
    assert len(scheduler.sequences[1].submit.sampling.penalties.bad_lengths) == 100


async def test_an_answer_in_one_piece_has_a_bound_and_a_stream_has_none(
    gateway: Any, scheduler: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.answer_size.MAX_ANSWER_BYTES", 64 * 1024 + 500)

    async def play(sequence: Any) -> None:
        await sequence.tokens(*[7] * 101)
        await sequence.end(sequence_pb2.END_REASON_LENGTH)

    scheduler.play = play
    for sampling, field in (({}, "stop.max_tokens"), ({"n": 2}, "sampling.n")):
        request = pb.GenerateRequest(prompt="x", sampling=pb.SamplingParams(**sampling))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await gateway.inference.GenerateOnce(request)
        code, reason, metadata = failure_of(caught.value)
        assert (code, reason) == (grpc.StatusCode.INVALID_ARGUMENT, "ANSWER_TOO_LARGE")
        assert metadata["field"] == field
    assert len(check_events(await stream(gateway, pb.GenerateRequest(prompt="x")))[1]) == 101


async def test_chat_is_rendered_and_tokenize_agrees(gateway: Any, scheduler: Any) -> None:
    chat = pb.Chat(messages=[pb.ChatMessage(role="user", content="hello")])
    events = await stream(gateway, pb.GenerateRequest(chat=chat))
    ids = list(scheduler.sequences[0].submit.prompt_token_ids)
    tokenized = await gateway.inference.Tokenize(pb.TokenizeRequest(chat=chat))
    assert list(tokenized.token_ids) == ids
    assert tokenized.text == "<s><|user|>hello<|end|><|assistant|>"
    assert check_events(events)[0] == "hello"
    detokenized = await gateway.inference.Detokenize(pb.DetokenizeRequest(token_ids=ids))
    assert detokenized.text == "hello"


async def test_a_salt_goes_down_as_a_digest_and_into_no_log(gateway: Any, scheduler: Any) -> None:
    # The longest, of characters that take more than a byte each.
    secret = "é" * 128
    with structlog.testing.capture_logs() as logs:
        for n, salt in ((1, ""), (1, secret), (3, secret), (1, secret[1:])):
            sampling = pb.SamplingParams(n=n)
            await gateway.inference.GenerateOnce(pb.GenerateRequest(prompt="x", sampling=sampling, cache_salt=salt))
    salts = [sequence.submit.prefix_salt for sequence in scheduler.sequences]
    assert salts == [b"", prefix_salt(secret), prefix_salt(secret), prefix_salt(secret[1:])]
    assert len(set(salts)) == 3
    assert any(event["event"] == "request_ended" for event in logs)
    assert "é" not in str(logs)


async def test_duplicate_request_id(gateway: Any, scheduler: Any) -> None:
    scheduler.play = lambda sequence: sequence.cancelled.wait()
    call = gateway.inference.Generate(pb.GenerateRequest(prompt="x", request_id="twin"))
    await call.read()
    code, reason, _ = await refused(gateway, pb.GenerateRequest(prompt="y", request_id="twin"))
    assert (code, reason) == (grpc.StatusCode.ALREADY_EXISTS, "DUPLICATE_REQUEST")
    call.cancel()
    await scheduler.sequences[0].cancelled.wait()
    scheduler.play = scheduler.echo
    await stream(gateway, pb.GenerateRequest(prompt="y", request_id="twin"))


async def test_refusal_of_the_scheduler_is_passed_on(gateway: Any, scheduler: Any) -> None:
    scheduler.refuse = sequence_pb2.Failure(
        reason="QUEUE_FULL", message="full", metadata={"limit": "3"}, retry_after_ms=1500
    )
    code, reason, metadata = await refused(gateway, pb.GenerateRequest(prompt="x"))
    assert (code, reason, metadata) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "QUEUE_FULL", {"limit": "3"})


async def test_failure_in_mid_stream_is_the_one_end(gateway: Any, scheduler: Any) -> None:
    async def play(sequence: Any) -> None:
        await sequence.tokens(1)
        failure = sequence_pb2.Failure(reason="WORKER_LOST", message="gone")
        await sequence.end(sequence_pb2.END_REASON_FAILED, failure=failure)

    scheduler.play = play
    call = gateway.inference.Generate(pb.GenerateRequest(prompt="x"))
    assert [(await call.read()).WhichOneof("event") for _ in range(2)] == ["accepted", "delta"]
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await _end_of(call)
    assert failure_of(caught.value)[:2] == (grpc.StatusCode.UNAVAILABLE, "WORKER_LOST")


async def _end_of(call: Any) -> None:
    """Reads on; raises the status if it is not OK, as iterating does."""
    while await call.read() is not grpc.aio.EOF:
        pass
    if await call.code() is not grpc.StatusCode.OK:
        raise grpc.aio.AioRpcError(
            await call.code(), await call.initial_metadata(), await call.trailing_metadata(), await call.details()
        )


async def test_models_and_operations(gateway: Any, model: Any) -> None:
    listed = await gateway.models.ListModels(models_pb2.ListModelsRequest())
    found = await gateway.models.GetModel(models_pb2.GetModelRequest(name="alias"))
    assert list(listed.models) == [found]
    assert (found.name, list(found.served_names), found.revision) == ("bytes", ["bytes", "alias"], model.revision)
    assert (found.max_model_len, found.vocab_size, found.ready, found.chat) == (256, 280, True, True)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await gateway.models.GetModel(models_pb2.GetModelRequest(name="gpt"))
    assert failure_of(caught.value)[1] == "MODEL_NOT_FOUND"
    fleet = await gateway.operations.GetFleet(operations_pb2.GetFleetRequest())
    assert fleet.requests_running == 0


async def test_operator_cancels_by_id(gateway: Any, scheduler: Any) -> None:
    scheduler.play = lambda sequence: sequence.cancelled.wait()
    call = gateway.inference.Generate(pb.GenerateRequest(prompt="x", request_id="it"))
    await call.read()
    cancel = operations_pb2.CancelGenerationRequest(request_id="it")
    assert (await gateway.operations.CancelGeneration(cancel)).found
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call.read()
    assert failure_of(caught.value)[:2] == (grpc.StatusCode.CANCELLED, "REQUEST_CANCELLED")
    await scheduler.sequences[0].cancelled.wait()
    assert scheduler.sequences[0].cancel_reason == sequence_pb2.CANCEL_REASON_OPERATOR
    assert not (await gateway.operations.CancelGeneration(cancel)).found


async def test_health_follows_the_workers(gateway: Any, scheduler: Any, until: Any) -> None:
    health = health_pb2_grpc.HealthStub(gateway.channel)

    async def until_health(service: str, status: int) -> None:
        async def check() -> bool:
            return (await health.Check(health_pb2.HealthCheckRequest(service=service))).status == status

        await until(check)

    serving, not_serving = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING
    await until_health("tercet.v1.Inference", serving)
    scheduler.workers_live = 0
    await scheduler.send_pools()
    await until_health("tercet.v1.Inference", not_serving)
    await until_health("", serving)
    code, reason, _ = await refused(gateway, pb.GenerateRequest(prompt="x"))
    assert (code, reason) == (grpc.StatusCode.UNAVAILABLE, "NO_WORKER")
    scheduler.workers_live = 1
    await scheduler.send_pools()
    await until_health("tercet.v1.Inference", serving)


async def test_thirty_two_at_once(gateway: Any, scheduler: Any) -> None:
    prompts = [f"request {i} says héllo {'x' * i}" for i in range(32)]
    streams = await asyncio.gather(*(stream(gateway, pb.GenerateRequest(prompt=text)) for text in prompts))
    assert [check_events(events)[0] for events in streams] == prompts
    assert len({event[0].accepted.seed for event in streams}) == 32
    assert not math.isnan(scheduler.sequences[0].submit.sampling.temperature)


async def test_reflection_names_the_services(gateway: Any) -> None:
    from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

    stub = reflection_pb2_grpc.ServerReflectionStub(gateway.channel)
    call = stub.ServerReflectionInfo(iter([reflection_pb2.ServerReflectionRequest(list_services="")]))
    answer = await call.read()
    names = {service.name for service in answer.list_services_response.service}
    assert {"tercet.v1.Inference", "tercet.v1.Models", "tercet.v1.Operations", "grpc.health.v1.Health"} <= names
    call.cancel()
