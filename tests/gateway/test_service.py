"""The public services over a real connection, with a scripted scheduler behind them."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import grpc
import grpc.aio
import pytest
import structlog
from google.protobuf import json_format
from google.rpc import error_details_pb2, status_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc

from gateway.prefix_salt import prefix_salt
from gateway.tokenizer import Tokenizer
from tercet.mesh.v1 import scheduler_pb2, sequence_pb2
from tercet.v1 import inference_pb2 as pb
from tercet.v1 import models_pb2, operations_pb2
from tests.gateway.prompt_parts import send_part

STOP, LENGTH = pb.FINISH_REASON_STOP, pb.FINISH_REASON_LENGTH


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


async def test_logprobs_come_with_the_tokens_they_are_of(gateway: Any, scheduler: Any, model: Any) -> None:
    def item(sequence: Any, number: int) -> sequence_pb2.TokenLogprobs:
        return sequence_pb2.TokenLogprobs(
            sequence_id=sequence.sequence_id, logprob=-number, top_ids=[number, 7], top_logprobs=[-0.5, -number]
        )

    async def play(sequence: Any) -> None:
        # "a" of the stop string is held back, and one message brings tokens of several steps.
        first, *rest = model.tokenizer.encode("haxab", add_bos=False)
        await sequence.tokens(first, logprobs=[item(sequence, 0)])
        await sequence.tokens(*rest, logprobs=[item(sequence, 1 + i) for i in range(len(rest))])
        await sequence.end(sequence_pb2.END_REASON_LENGTH)

    scheduler.play = play
    request = pb.GenerateRequest(
        prompt="x", sampling=pb.SamplingParams(logprobs=2), stop=pb.StopConditions(strings=["abc"])
    )
    events = await stream(gateway, request)
    text, token_ids, _ = check_events(events)
    assert text == "haxab"
    deltas = [event.delta for event in events if event.HasField("delta")]
    assert all(len(delta.logprobs) == len(delta.token_ids) for delta in deltas)
    want = [pb.TokenLogprobs(logprob=-i, top_token_ids=[i, 7], top_logprobs=[-0.5, -i]) for i in range(len(token_ids))]
    assert [each for delta in deltas for each in delta.logprobs] == want
    assert scheduler.sequences[0].submit.sampling.num_logprobs == 2
    once = await gateway.inference.GenerateOnce(request)
    assert list(once.outputs[0].logprobs) == want
    await stream(gateway, pb.GenerateRequest(prompt="x", sampling=pb.SamplingParams(logprobs=0)))
    assert scheduler.sequences[2].submit.sampling.HasField("num_logprobs")
    await stream(gateway, pb.GenerateRequest(prompt="x"))
    assert not scheduler.sequences[3].submit.sampling.HasField("num_logprobs")


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


@pytest.mark.parametrize("include", [False, True])
async def test_a_stop_string_is_the_end_of_the_text_if_it_is_included(
    gateway: Any, scheduler: Any, model: Any, include: bool
) -> None:
    async def play(sequence: Any) -> None:
        for token_id in model.tokenizer.encode("one END two", add_bos=False):
            await sequence.tokens(token_id)
        await sequence.stopped.wait()

    scheduler.play = play
    stop = pb.StopConditions(strings=["END"], include_stop_string=include)
    text, _, finished = check_events(await stream(gateway, pb.GenerateRequest(prompt="x", stop=stop)))
    assert text == ("one END" if include else "one ")
    assert finished.outputs[0] == pb.OutputEnd(reason=STOP, stop_string="END")
    once = await gateway.inference.GenerateOnce(pb.GenerateRequest(prompt="x", stop=stop))
    assert once.outputs[0].text == text


def prompt_part(sequence: Any, first: int, count: int) -> sequence_pb2.PromptLogprobs:
    """Two of the likeliest at each place."""
    places = range(first, first + count)
    return sequence_pb2.PromptLogprobs(
        sequence_id=sequence.sequence_id, first=first, logprobs=[-i for i in places],
        top_ids=[i for place in places for i in (place, 7)], top_logprobs=[-i for place in places for i in (0, place)],
    )  # fmt: skip


@pytest.mark.parametrize("n", [1, 2])
async def test_logprobs_of_the_prompt_come_before_its_first_token(
    gateway: Any, scheduler: Any, model: Any, n: int
) -> None:
    async def play(sequence: Any) -> None:
        # The second worker computes again what the first one had.
        await send_part(scheduler, prompt_part(sequence, 1, 2))
        await send_part(scheduler, prompt_part(sequence, 1, 3))
        await send_part(scheduler, prompt_part(sequence, 4, 1))
        for each in sequence.outputs:
            await each.tokens(7)
            await each.end(sequence_pb2.END_REASON_LENGTH)

    scheduler.play = play
    request = pb.GenerateRequest(
        token_ids=pb.TokenIds(ids=[9, 8, 7, 6, 5]), sampling=pb.SamplingParams(prompt_logprobs=2, n=n)
    )
    events = await stream(gateway, request)
    assert scheduler.sequences[0].submit.sampling.num_prompt_logprobs == 2
    kinds = [event.WhichOneof("event") for event in events]
    assert kinds == ["accepted", "prompt_logprobs", "prompt_logprobs", "prompt_logprobs", *["delta"] * n, "finished"]
    want = [pb.TokenLogprobs(logprob=-i, top_token_ids=[i, 7], top_logprobs=[0, -i]) for i in range(1, 5)]
    parts = [event.prompt_logprobs for event in events if event.HasField("prompt_logprobs")]
    assert [each for part in parts for each in part.logprobs] == want
    assert [each for part in parts for each in part.token_ids] == [8, 7, 6, 5]
    assert [part.token_offset for part in parts] == [1, 3, 4]
    once = await gateway.inference.GenerateOnce(request)
    assert once.prompt_logprobs == pb.PromptLogprobs(token_offset=1, token_ids=[8, 7, 6, 5], logprobs=want)
    one = pb.GenerateRequest(token_ids=pb.TokenIds(ids=[9]), sampling=pb.SamplingParams(prompt_logprobs=0))
    scheduler.play = scheduler.echo
    assert not (await gateway.inference.GenerateOnce(one)).HasField("prompt_logprobs")


async def test_a_token_before_the_prompts_logprobs_is_a_fault(gateway: Any, scheduler: Any) -> None:
    async def play(sequence: Any) -> None:
        await send_part(scheduler, prompt_part(sequence, 1, 1))
        await sequence.tokens(7)

    scheduler.play = play
    request = pb.GenerateRequest(prompt="hallo", sampling=pb.SamplingParams(prompt_logprobs=2))
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stream(gateway, request)
    assert failure_of(caught.value)[1] == "ENGINE_FAULT"


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


async def test_stop_token_is_named_and_an_end_token_is_not(gateway: Any, scheduler: Any, model: Any) -> None:
    comma = model.tokenizer.token_to_id(",")

    async def play(sequence: Any) -> None:
        await sequence.tokens(*model.tokenizer.encode("he,", add_bos=False))
        await sequence.end(sequence_pb2.END_REASON_STOP, stop_token_id=comma)

    scheduler.play = play
    events = await stream(gateway, pb.GenerateRequest(prompt="x", stop=pb.StopConditions(token_ids=[comma])))
    text, token_ids, finished = check_events(events)
    assert text == "he,"
    assert token_ids[-1] == comma
    assert finished.outputs[0] == pb.OutputEnd(reason=STOP, stop_token_id=comma)


@pytest.mark.parametrize("answers", [True, False])
async def test_stop_string_over_tokens_ends_its_sequence(
    gateway: Any, scheduler: Any, model: Any, answers: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.generation.ACCOUNT_WAIT_S", 0.2)
    scheduler.answer_cancels = answers

    async def play(sequence: Any) -> None:
        for token_id in model.tokenizer.encode("one END two", add_bos=False):
            await sequence.tokens(token_id)
        await sequence.stopped.wait()

    scheduler.play = play
    events = await stream(gateway, pb.GenerateRequest(prompt="x", stop=pb.StopConditions(strings=["zzz", "END"])))
    text, token_ids, finished = check_events(events)
    assert text == "one "
    assert model.tokenizer.decode(token_ids) == "one END"
    assert finished.outputs[0] == pb.OutputEnd(reason=STOP, stop_string="END")
    assert scheduler.sequences[0].stop_reason == sequence_pb2.CANCEL_REASON_STOP_STRING
    assert scheduler.sequences[0].cancel_reason is None
    # What is not known is said to be unknown, not zero.
    assert finished.usage.incomplete is not answers
    assert finished.usage.kv_blocks_used == (5 if answers else 0)
    assert finished.usage.kv_blocks_freed == (4 if answers else 0)


async def test_stop_string_beats_length_in_one_message(gateway: Any, scheduler: Any, model: Any) -> None:
    async def play(sequence: Any) -> None:
        account = scheduler_pb2.Account(blocks_used=2, blocks_freed=2)
        end = scheduler_pb2.SequenceEnd(reason=sequence_pb2.END_REASON_LENGTH, account=account)
        await sequence.tokens(*model.tokenizer.encode("aSTOP", add_bos=False), end=end)

    scheduler.play = play
    once = await gateway.inference.GenerateOnce(
        pb.GenerateRequest(prompt="x", stop=pb.StopConditions(strings=["STOP"]))
    )
    assert once.outputs[0].text == "a"
    assert once.outputs[0].end == pb.OutputEnd(reason=STOP, stop_string="STOP")
    assert (once.usage.incomplete, once.usage.kv_blocks_used) == (False, 2)
    assert (scheduler.sequences[0].stop_reason, scheduler.sequences[0].cancel_reason) == (None, None)


BAD_REQUESTS: dict[str, tuple[dict[str, Any], str, str]] = {
    "no input": ({}, "INVALID_FIELD", "input"),
    "empty prompt": ({"prompt": ""}, "INVALID_FIELD", "prompt"),
    "no tokens": ({"tokenIds": {}}, "INVALID_FIELD", "token_ids.ids"),
    "no messages": ({"chat": {}}, "INVALID_FIELD", "chat.messages"),
    "token out of range": ({"tokenIds": {"ids": [1, 280]}}, "INVALID_FIELD", "token_ids.ids[1]"),
    "unknown role": (
        {"chat": {"messages": [{"role": "user"}, {"role": "root"}]}}, "INVALID_FIELD", "chat.messages[1].role",
    ),
    "NaN temperature": ({"prompt": "x", "sampling": {"temperature": "NaN"}}, "INVALID_FIELD", "sampling.temperature"),
    "infinite": ({"prompt": "x", "sampling": {"temperature": "Infinity"}}, "INVALID_FIELD", "sampling.temperature"),
    "negative": ({"prompt": "x", "sampling": {"temperature": -0.5}}, "INVALID_FIELD", "sampling.temperature"),
    "top_p 0": ({"prompt": "x", "sampling": {"topP": 0}}, "INVALID_FIELD", "sampling.top_p"),
    "top_p 1.5": ({"prompt": "x", "sampling": {"topP": 1.5}}, "INVALID_FIELD", "sampling.top_p"),
    "top_p NaN": ({"prompt": "x", "sampling": {"topP": "NaN"}}, "INVALID_FIELD", "sampling.top_p"),
    "min_p 2": ({"prompt": "x", "sampling": {"minP": 2}}, "INVALID_FIELD", "sampling.min_p"),
    "min_p -1": ({"prompt": "x", "sampling": {"minP": -1}}, "INVALID_FIELD", "sampling.min_p"),
    "repetition 0": (
        {"prompt": "x", "sampling": {"repetitionPenalty": 0}}, "INVALID_FIELD", "sampling.repetition_penalty",
    ),
    "nothing but ends allowed": (
        {"token_ids": {"ids": [3]}, "sampling": {"allowedTokenIds": [7]}, "stop": {"tokenIds": [7], "minTokens": 2}},
        "INVALID_FIELD", "sampling.allowed_token_ids",
    ),
    "repetition NaN": (
        {"prompt": "x", "sampling": {"repetitionPenalty": "NaN"}}, "INVALID_FIELD", "sampling.repetition_penalty",
    ),
    "frequency 2.5": (
        {"prompt": "x", "sampling": {"frequencyPenalty": 2.5}}, "INVALID_FIELD", "sampling.frequency_penalty",
    ),
    "presence NaN": (
        {"prompt": "x", "sampling": {"presencePenalty": "NaN"}}, "INVALID_FIELD", "sampling.presence_penalty",
    ),
    "bias 101": (
        {"prompt": "x", "sampling": {"logitBias": [{"bias": 1}, {"tokenId": 7, "bias": 101}]}}, "INVALID_FIELD",
        "sampling.logit_bias[1].bias",
    ),
    "bias NaN": (
        {"prompt": "x", "sampling": {"logitBias": [{"bias": "NaN"}]}}, "INVALID_FIELD", "sampling.logit_bias[0].bias",
    ),
    "bias of no token": (
        {"prompt": "x", "sampling": {"logitBias": [{"tokenId": 280}]}}, "INVALID_FIELD",
        "sampling.logit_bias[0].token_id",
    ),
    "bias twice": (
        {"prompt": "x", "sampling": {"logitBias": [{"tokenId": 7}, {"tokenId": 7}]}}, "INVALID_FIELD",
        "sampling.logit_bias[1].token_id",
    ),
    "1,025 biases": (
        {"prompt": "x", "sampling": {"logitBias": [{}] * 1025}}, "INVALID_FIELD", "sampling.logit_bias",
    ),
    "allowed range": (
        {"prompt": "x", "sampling": {"allowedTokenIds": [1, 280]}}, "INVALID_FIELD", "sampling.allowed_token_ids[1]",
    ),
    "1,025 allowed": (
        {"prompt": "x", "sampling": {"allowedTokenIds": [1] * 1025}}, "INVALID_FIELD", "sampling.allowed_token_ids",
    ),
    "min_tokens": ({"prompt": "x", "stop": {"minTokens": 9, "maxTokens": 8}}, "INVALID_FIELD", "stop.min_tokens"),
    "min_tokens, no max": ({"prompt": "x", "stop": {"minTokens": 256}}, "INVALID_FIELD", "stop.min_tokens"),
    "21 prompt logprobs": (
        {"prompt": "x", "sampling": {"promptLogprobs": 21}}, "INVALID_FIELD", "sampling.prompt_logprobs",
    ),
    "empty bad word": ({"prompt": "x", "sampling": {"badWords": ["a", ""]}}, "INVALID_FIELD", "sampling.bad_words[1]"),
    "129 bad words": ({"prompt": "x", "sampling": {"badWords": ["a"] * 129}}, "INVALID_FIELD", "sampling.bad_words"),
    "1,025 bad tokens": (
        {"prompt": "x", "sampling": {"badWords": ["z" * 205 + c for c in "abcde"]}}, "INVALID_FIELD",
        "sampling.bad_words",
    ),
    "nothing but bad words allowed": (
        {"prompt": "x", "sampling": {"allowedTokenIds": [64, 65], "badWords": ["a", "b", "c"]}},
        "INVALID_FIELD", "sampling.bad_words",
    ),
    "21 logprobs": ({"prompt": "x", "sampling": {"logprobs": 21}}, "INVALID_FIELD", "sampling.logprobs"),
    "n 0": ({"prompt": "x", "sampling": {"n": 0}}, "INVALID_FIELD", "sampling.n"),
    "n 129": ({"prompt": "x", "sampling": {"n": 129}}, "INVALID_FIELD", "sampling.n"),
    "best_of": ({"prompt": "x", "sampling": {"bestOf": 4}}, "INVALID_FIELD", "sampling.best_of"),
    "best_of < n": ({"prompt": "x", "sampling": {"n": 5, "bestOf": 4}}, "INVALID_FIELD", "sampling.best_of"),
    "priority 101": ({"prompt": "x", "priority": 101}, "INVALID_FIELD", "priority"),
    "priority -101": ({"prompt": "x", "priority": -101}, "INVALID_FIELD", "priority"),
    "long class": ({"prompt": "x", "trafficClass": "c" * 65}, "INVALID_FIELD", "traffic_class"),
    "long salt": ({"prompt": "x", "cacheSalt": "s" * 129}, "INVALID_FIELD", "cache_salt"),
    "max_tokens 0": ({"prompt": "x", "stop": {"maxTokens": 0}}, "INVALID_FIELD", "stop.max_tokens"),
    "17 stop strings": ({"prompt": "x", "stop": {"strings": ["s"] * 17}}, "INVALID_FIELD", "stop.strings"),
    "empty stop string": ({"prompt": "x", "stop": {"strings": ["a", ""]}}, "INVALID_FIELD", "stop.strings[1]"),
    "long stop string": ({"prompt": "x", "stop": {"strings": ["é" * 129]}}, "INVALID_FIELD", "stop.strings[0]"),
    "65 stop ids": ({"prompt": "x", "stop": {"tokenIds": [1] * 65}}, "INVALID_FIELD", "stop.token_ids"),
    "stop id range": ({"prompt": "x", "stop": {"tokenIds": [999]}}, "INVALID_FIELD", "stop.token_ids[0]"),
    "long id": ({"prompt": "x", "requestId": "i" * 129}, "INVALID_FIELD", "request_id"),
    "id with newline": ({"prompt": "x", "requestId": "a\nb"}, "INVALID_FIELD", "request_id"),
    "prompt too long": ({"tokenIds": {"ids": [1] * 256}}, "PROMPT_TOO_LONG", "token_ids.ids"),
    "text too long": ({"prompt": "é" * 200}, "PROMPT_TOO_LONG", "prompt"),
    "no room": ({"prompt": "abc", "stop": {"maxTokens": 254}}, "PROMPT_TOO_LONG", "stop.max_tokens"),
    "5 MB": ({"prompt": "x" * 5_000_000}, "PROMPT_TOO_LONG", "prompt"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD_REQUESTS)
async def test_bad_request(gateway: Any, scheduler: Any, name: str) -> None:
    fields, reason, field = BAD_REQUESTS[name]
    code, found, metadata = await refused(gateway, json_format.ParseDict(fields, pb.GenerateRequest()))
    assert (code, found, metadata["field"]) == (grpc.StatusCode.INVALID_ARGUMENT, reason, field)
    assert not scheduler.sequences
    assert (await gateway.inference.GenerateOnce(pb.GenerateRequest(prompt="hello"))).outputs[0].text == "hello"


async def test_room_is_used_to_the_last_token(gateway: Any, scheduler: Any, until: Any) -> None:
    request = pb.GenerateRequest(prompt="abc", stop=pb.StopConditions(max_tokens=253))
    await stream(gateway, request)
    assert scheduler.sequences[0].submit.max_tokens == 253
    code, _, metadata = await refused(gateway, pb.GenerateRequest(prompt="abc", stop=pb.StopConditions(max_tokens=254)))
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert (metadata["prompt_tokens"], metadata["max_tokens"], metadata["max_model_len"]) == ("3", "254", "256")
    scheduler.max_model_len = 10
    await scheduler.send_pools()

    async def limited() -> bool:
        return (await gateway.models.GetModel(models_pb2.GetModelRequest(name="bytes"))).max_model_len == 10

    await until(limited)
    _, _, metadata = await refused(gateway, pb.GenerateRequest(prompt="abcabcabcabc"))
    assert metadata["max_model_len"] == "10"


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


async def test_a_salt_that_is_refused_is_not_repeated(gateway: Any) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await gateway.inference.GenerateOnce(pb.GenerateRequest(prompt="x", cache_salt="zq" * 65))
    assert failure_of(caught.value)[1:] == ("INVALID_FIELD", {"field": "cache_salt"})
    assert "zq" not in caught.value.details()
    assert b"zq" not in dict(caught.value.trailing_metadata())["grpc-status-details-bin"]


async def test_unknown_model_lists_the_served_names(gateway: Any) -> None:
    code, reason, metadata = await refused(gateway, pb.GenerateRequest(model="gpt", prompt="x"))
    assert (code, reason) == (grpc.StatusCode.NOT_FOUND, "MODEL_NOT_FOUND")
    assert metadata == {"model": "gpt", "served": "bytes, alias"}


def raw(gateway: Any, method: str) -> Any:
    return gateway.channel.unary_unary(f"/tercet.v1.Inference/{method}")


@pytest.mark.parametrize(
    ("data", "field"),
    [
        (b"\x12\x02\xff\xfe", "prompt"),
        (b"\x12\x03\xed\xa0\x80", "prompt"),  # a lone surrogate
        (b"\x22\x0c\x0a\x0a\x0a\x04user\x12\x02\xc3\x28", "chat.messages[0].content"),
        (b"\x12\x01x\x32\x03\x12\x01\x80", "stop.strings[0]"),
        (b"\x12\x01x\x52\x01\x80", "cache_salt"),
        (b"\x12\x7fshort", None),
    ],
)
async def test_malformed_bytes_are_the_clients_fault(gateway: Any, data: bytes, field: str | None) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await raw(gateway, "GenerateOnce")(data)
    code, reason, metadata = failure_of(caught.value)
    assert (code, reason, metadata.get("field")) == (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_FIELD", field)


@pytest.mark.parametrize(
    ("data", "message", "number"),
    [
        (b"\x12\x01x\xf8\x07\x01", "tercet.v1.GenerateRequest", "127"),
        (b"\x12\x01x\x2a\x02\x78\x01", "tercet.v1.SamplingParams", "15"),
        (b"\x22\x09\x0a\x07\x0a\x01u\x18\x01\x20\x01", "tercet.v1.ChatMessage", "3"),
    ],
)
async def test_unknown_fields_are_refused(gateway: Any, data: bytes, message: str, number: str) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await raw(gateway, "GenerateOnce")(data)
    code, reason, metadata = failure_of(caught.value)
    assert (code, reason) == (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_FIELD")
    assert (metadata["message"], metadata["field_number"]) == (message, number)


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


async def test_a_prompt_too_long_in_tokens_is_answered_while_others_run(
    gateway: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Just below the bound in bytes: tokenized, in a thread, and refused for its tokens, as with a vocabulary of which
    # nobody can tell before.
    monkeypatch.setattr(Tokenizer, "least_tokens", lambda *_: 0)
    chat = pb.Chat(messages=[pb.ChatMessage(role="user", content="word " * 400_000)])
    long = asyncio.ensure_future(gateway.inference.GenerateOnce(pb.GenerateRequest(chat=chat)))
    short = [gateway.inference.GenerateOnce(pb.GenerateRequest(prompt="hello")) for _ in range(4)]
    assert [(await call).outputs[0].text for call in short] == ["hello"] * 4
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await long
    _, reason, metadata = failure_of(caught.value)
    assert (reason, metadata["field"]) == ("PROMPT_TOO_LONG", "chat")
    assert int(metadata["prompt_tokens"]) > 2_000_000


async def test_reflection_names_the_services(gateway: Any) -> None:
    from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

    stub = reflection_pb2_grpc.ServerReflectionStub(gateway.channel)
    call = stub.ServerReflectionInfo(iter([reflection_pb2.ServerReflectionRequest(list_services="")]))
    answer = await call.read()
    names = {service.name for service in answer.list_services_response.service}
    assert {"tercet.v1.Inference", "tercet.v1.Models", "tercet.v1.Operations", "grpc.health.v1.Health"} <= names
    call.cancel()


HELLO = pb.ChatMessage(role="user", content="hello")


@pytest.mark.parametrize(
    ("method", "request_", "field"),
    [
        ("Tokenize", pb.TokenizeRequest(), "input"),
        ("Tokenize", pb.TokenizeRequest(prompt=""), "prompt"),
        ("Tokenize", pb.TokenizeRequest(chat=pb.Chat(messages=[pb.ChatMessage(role="x")])), "chat.messages[0].role"),
        ("Tokenize", pb.TokenizeRequest(chat=pb.Chat(messages=[HELLO], tools=[pb.Tool(name="f")])), "chat.tools"),
        ("Detokenize", pb.DetokenizeRequest(token_ids=[280]), "token_ids[0]"),
        ("Detokenize", pb.DetokenizeRequest(token_ids=[1] * 257), "token_ids"),
    ],
)
async def test_bad_text_requests(gateway: Any, method: str, request_: Any, field: str) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await getattr(gateway.inference, method)(request_)
    code, reason, metadata = failure_of(caught.value)
    assert (code, reason, metadata["field"]) == (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_FIELD", field)
