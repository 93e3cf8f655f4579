"""Completions and chats over HTTP, with a scripted scheduler behind them: the same as over gRPC, in OpenAI's shapes."""

from __future__ import annotations

import asyncio
from typing import Any

import openai
import pytest

from tercet.mesh.v1 import sequence_pb2
from tercet.v1 import inference_pb2 as pb

from ..conftest import sequence_end
from ..guarded_gateway import until

CHAT = [{"role": "user", "content": "hello, 世界 🙂"}]


async def over_grpc(gateway: Any, **fields: Any) -> pb.GenerateResult:
    return await gateway.inference.GenerateOnce(pb.GenerateRequest(**fields))


async def test_a_completion_is_what_grpc_answers(gateway, client, scheduler, model):
    once = await client.completions.create(model="bytes", prompt="hello, 世界 🙂", seed=5, max_tokens=100)
    same = await over_grpc(
        gateway, prompt="hello, 世界 🙂", sampling=pb.SamplingParams(seed=5), stop=pb.StopConditions(max_tokens=100)
    )
    choice = once.choices[0]
    assert (choice.text, choice.finish_reason, choice.logprobs) == (same.outputs[0].text, "stop", None)
    assert choice.text == "hello, 世界 🙂"
    assert (once.model, once.object, once.system_fingerprint) == ("bytes", "text_completion", model.revision)
    assert once.usage.prompt_tokens == same.usage.prompt_tokens
    assert once.usage.completion_tokens == same.usage.completion_tokens
    assert once.usage.total_tokens == once.usage.prompt_tokens + once.usage.completion_tokens
    assert once.usage.prompt_tokens_details.cached_tokens == same.usage.cached_tokens == 3
    by_http, by_grpc = (sequence.submit for sequence in scheduler.sequences)
    for submit in (by_http, by_grpc):
        submit.request_id, submit.request_key = "", 0
    assert by_http == by_grpc


async def test_a_chat_is_what_grpc_answers(gateway, client, scheduler):
    once = await client.chat.completions.create(model="alias", messages=CHAT, seed=5)
    await over_grpc(
        gateway,
        chat=pb.Chat(messages=[pb.ChatMessage(**CHAT[0])]),
        sampling=pb.SamplingParams(seed=5),
    )
    by_http, by_grpc = (sequence.submit for sequence in scheduler.sequences)
    for submit in (by_http, by_grpc):
        submit.request_id, submit.request_key = "", 0
    assert by_http == by_grpc
    message = once.choices[0].message
    assert (message.role, message.content, once.object) == ("assistant", "hello, 世界 🙂", "chat.completion")
    assert once.choices[0].finish_reason == "stop"


async def test_a_streamed_chat_has_a_role_pieces_one_end_usage_and_done(events):
    body = {"messages": CHAT, "stream_options": {"include_usage": True}}
    *pieces, usage, done = await events("/v1/chat/completions", body)
    assert done == "[DONE]"
    assert len({each["id"] for each in (*pieces, usage)}) == 1
    assert {each["object"] for each in (*pieces, usage)} == {"chat.completion.chunk"}
    first, *middle, last = [each["choices"][0] for each in pieces]
    assert first["delta"] == {"role": "assistant", "content": ""}
    assert "".join(each["delta"]["content"] for each in middle) == "hello, 世界 🙂"
    assert (last["delta"], last["finish_reason"]) == ({}, "stop")
    assert all(each["finish_reason"] is None for each in (first, *middle))
    assert all(each["usage"] is None for each in pieces)
    assert usage["choices"] == []
    assert usage["usage"]["completion_tokens"] > 0


async def test_streamed_pieces_are_the_whole_text(client, events):
    pieces = await events("/v1/completions", {"prompt": "hello, 世界 🙂", "max_tokens": 100})
    assert "usage" not in pieces[0]
    texts = "".join(each["choices"][0]["text"] for each in pieces[:-1])
    assert texts == (await client.completions.create(model="", prompt="hello, 世界 🙂", max_tokens=100)).choices[0].text
    streamed = await client.chat.completions.create(model="bytes", messages=CHAT, stream=True)
    assert "".join([each.choices[0].delta.content or "" async for each in streamed]) == "hello, 世界 🙂"


@pytest.mark.parametrize("value", [None, -1])
async def test_a_seed_that_is_none_is_drawn(http, scheduler, value):
    for _ in range(2):
        assert (await http.post("/v1/completions", json={"prompt": "a", "seed": value})).status_code == 200
    assert len({each.submit.sampling.seed for each in scheduler.sequences}) == 2


@pytest.mark.parametrize("stream", [False, True])
async def test_a_prompt_alone_is_what_no_tokens_behind_it_are(client, scheduler, stream):
    made = await client.completions.create(model="bytes", prompt="hello", echo=True, max_tokens=0, stream=stream)
    parts = [each async for each in made] if stream else [made]
    assert "".join(each.choices[0].text for each in parts) == "hello"
    last = parts[-1].choices[0]
    assert (last.finish_reason, last.stop_reason) == ("length", None)
    assert scheduler.sequences[0].submit.max_tokens == 1


@pytest.mark.parametrize("stream", [False, True])
async def test_several_prompts_and_outputs_are_choices_in_order(client, scheduler, stream):
    prompts = ["hello", "world", "!"]
    asked = {"model": "bytes", "prompt": prompts, "n": 2, "echo": True, "max_tokens": 100, "stream": stream}
    answer = await client.completions.create(**asked, extra_headers={"x-request-id": "mine"})
    texts: dict[int, str] = {}
    ends: dict[int, str] = {}
    for each in [each async for each in answer] if stream else [answer]:
        for choice in each.choices:
            texts[choice.index] = texts.get(choice.index, "") + choice.text
            if choice.finish_reason is not None:
                assert choice.index not in ends
                ends[choice.index] = choice.finish_reason
    assert texts == {index: 2 * prompts[index // 2] for index in range(6)}
    assert ends == dict.fromkeys(range(6), "stop")
    assert [each.submit.request_id for each in scheduler.sequences] == ["mine-0", "mine-1", "mine-2"]


@pytest.mark.parametrize("stream", [False, True])
async def test_each_prompt_and_output_ends_with_its_own_reason(client, scheduler, model, stream):
    """The first prompt's outputs are cut, of the second's one stops by itself, and the other at a text."""

    async def play(sequence: Any) -> None:
        one, other = sequence.outputs
        if len(sequence.submit.prompt_token_ids) > 2:
            for output, text in ((one, "abcde"), (other, "fg")):
                await output.tokens(*model.tokenizer.encode(text, add_bos=False))
                await output.end(sequence_pb2.END_REASON_LENGTH)
        else:
            await one.tokens(*model.tokenizer.encode("h", add_bos=False), 261)
            await one.end(sequence_pb2.END_REASON_STOP, stop_token_id=261)
            await other.tokens(*model.tokenizer.encode("i##j", add_bos=False))

    scheduler.play = play
    made = await client.completions.create(
        model="bytes", prompt=[[1, 2, 3], [4]], n=2, stop="##", max_tokens=5, stream=stream
    )
    texts, ends = ["", "", "", ""], {}
    for part in [each async for each in made] if stream else [made]:
        for choice in part.choices:
            texts[choice.index] += choice.text
            if choice.finish_reason is not None:
                assert choice.index not in ends
                ends[choice.index] = (choice.finish_reason, choice.stop_reason)
    assert ends == {0: ("length", None), 1: ("length", None), 2: ("stop", None), 3: ("stop", "##")}
    assert texts == ["abcde", "fg", "h", "i"]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_stop_text_is_the_end_of_the_text_if_it_is_included(client, scheduler, model, stream):
    async def play(sequence: Any) -> None:
        await sequence.tokens(*model.tokenizer.encode("one END two", add_bos=False))

    scheduler.play = play
    made = await client.completions.create(
        model="bytes", prompt="x", stop="END", stream=stream, extra_body={"include_stop_str_in_output": True}
    )
    choices = [each.choices[0] for each in ([each async for each in made] if stream else [made])]
    assert "".join(each.text for each in choices) == "one END"
    assert choices[-1].finish_reason == "stop"


async def test_a_choice_ends_when_its_output_does(client, scheduler, model):
    """Not with the others."""
    told = asyncio.Event()

    async def play(sequence: Any) -> None:
        one, other = sequence.outputs
        await one.tokens(*model.tokenizer.encode("a", add_bos=False), end=sequence_end(sequence_pb2.END_REASON_LENGTH))
        await told.wait()
        await other.tokens(*model.tokenizer.encode("b", add_bos=False))
        await other.end(sequence_pb2.END_REASON_LENGTH)

    scheduler.play = play
    ends = []
    async for piece in await client.completions.create(model="bytes", prompt="hello", n=2, max_tokens=1, stream=True):
        ends += [choice.index for choice in piece.choices if choice.finish_reason == "length"]
        if ends:
            told.set()
    assert ends == [0, 1]


async def test_prompts_of_token_ids(client, scheduler):
    ids = [104, 105, 106]
    once = await client.completions.create(model="bytes", prompt=ids, max_tokens=3)
    several = await client.completions.create(model="bytes", prompt=[ids, ids[:1]], max_tokens=3, echo=True)
    assert [list(each.submit.prompt_token_ids) for each in scheduler.sequences] == [ids, ids, ids[:1]]
    assert once.choices[0].finish_reason == "length"
    assert several.choices[0].text == 2 * once.choices[0].text


async def test_every_parameter_reaches_the_scheduler(http, scheduler):
    body = {
        "model": "bytes", "prompt": "hello", "temperature": 0.25, "top_p": 0.5, "top_k": 3, "min_p": 0.125, "seed": -2,
        "n": 2, "best_of": 2, "logit_bias": {"7": -3.5, "9": 1}, "repetition_penalty": 1.5, "frequency_penalty": 0.5,
        "presence_penalty": -0.5, "allowed_token_ids": [1, 7, 9], "max_tokens": 9, "min_tokens": 2, "priority": -7,
        "stop": "zz", "stop_token_ids": [77], "ignore_eos": True, "cache_salt": "salt", "logprobs": None,
        "bad_words": ["hello"], "include_stop_str_in_output": True,
    }  # fmt: skip
    answer = await http.post("/v1/completions", json=body, headers={"x-tercet-class": "batch"})
    assert answer.status_code == 200, answer.text
    submit = scheduler.sequences[0].submit
    sampling = submit.sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p) == (0.25, 0.5, 3, 0.125)
    assert sampling.seed == 2**64 - 2
    assert (submit.n, submit.max_tokens, submit.traffic_class, submit.priority) == (2, 9, "batch", -7)
    assert list(submit.stop_token_ids) == [77]
    assert submit.prefix_salt
    penalties = sampling.penalties
    assert (penalties.repetition, penalties.frequency, penalties.presence, penalties.min_tokens) == (1.5, 0.5, -0.5, 2)
    assert (list(penalties.biased_ids), list(penalties.biases)) == ([7, 9], [-3.5, 1])
    assert list(penalties.allowed_ids) == [1, 7, 9]
    assert (len(penalties.bad_ids), list(penalties.bad_lengths)) == (1, [1])


async def test_what_changes_nothing_is_named(http):
    body = {"messages": CHAT, "user": "me", "metadata": {"a": "b"}, "store": True, "reasoning_effort": "low"}
    answer = await http.post("/v1/chat/completions", json=body)
    assert answer.headers["x-tercet-ignored"] == "reasoning_effort, user, metadata, store"
    assert "x-tercet-ignored" not in (await http.post("/v1/chat/completions", json={"messages": CHAT})).headers


async def test_a_client_that_leaves_cancels(client, scheduler):
    async def play(sequence: Any) -> None:
        await sequence.tokens(104)
        await sequence.cancelled.wait()

    scheduler.play = play
    stream = await client.chat.completions.create(model="bytes", messages=CHAT, stream=True)
    async for piece in stream:
        if piece.choices[0].delta.content:
            break
    await stream.close()
    await asyncio.wait_for(scheduler.sequences[0].cancelled.wait(), 10)
    once = asyncio.create_task(client.completions.create(model="bytes", prompt=["hello", "world"]))
    await until(lambda: len(scheduler.sequences) == 3)
    once.cancel()
    for sequence in scheduler.sequences[1:]:
        await asyncio.wait_for(sequence.cancelled.wait(), 10)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_before_it_is_accepted_cancels(http, scheduler, stream):
    scheduler.accept = False
    asking = asyncio.create_task(http.post("/v1/completions", json={"prompt": "hello", "stream": stream}))
    await until(lambda: scheduler.sequences)
    asking.cancel()
    await asyncio.wait_for(scheduler.sequences[0].cancelled.wait(), 10)
    assert scheduler.sequences[0].cancel_reason == sequence_pb2.CANCEL_REASON_CLIENT


async def test_an_error_in_a_stream_is_its_last_event(scheduler, events, client):
    async def play(sequence: Any) -> None:
        await sequence.tokens(104)
        failure = sequence_pb2.Failure(reason="WORKER_LOST", message="the worker was lost")
        await sequence.end(sequence_pb2.END_REASON_FAILED, failure=failure)

    scheduler.play = play
    *_, last = await events("/v1/chat/completions", {"messages": CHAT})
    assert last["error"] == {
        "message": "the worker was lost", "type": "service_unavailable_error", "param": None, "code": "worker_lost",
    }  # fmt: skip
    with pytest.raises(openai.APIError, match="the worker was lost"):
        _ = [each async for each in await client.chat.completions.create(model="", messages=CHAT, stream=True)]
    with pytest.raises(openai.InternalServerError) as caught:
        await client.chat.completions.create(model="bytes", messages=CHAT)
    assert caught.value.response.status_code == 503
    assert caught.value.response.headers["x-should-retry"] == "false"


async def test_one_of_several_prompts_that_fails_ends_all(scheduler, client):
    async def play(sequence: Any) -> None:
        if len(sequence.submit.prompt_token_ids) == 1:
            failure = sequence_pb2.Failure(reason="WORKER_LOST", message="the worker was lost")
            await sequence.end(sequence_pb2.END_REASON_FAILED, failure=failure)

    scheduler.play = play
    with pytest.raises(openai.InternalServerError, match="the worker was lost"):
        await client.completions.create(model="bytes", prompt=["abc", "b", "cde"])
    for sequence in (scheduler.sequences[0], scheduler.sequences[2]):
        await asyncio.wait_for(sequence.cancelled.wait(), 10)


async def test_a_deadline_ends_the_request(scheduler, http):
    async def play(sequence: Any) -> None:
        await sequence.cancelled.wait()

    scheduler.play = play
    answer = await http.post("/v1/completions", json={"prompt": "a"}, headers={"x-tercet-deadline-ms": "300"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (504, "deadline_passed")
    assert scheduler.sequences[0].submit.deadline_ms > 0
    wrong = await http.post("/v1/completions", json={"prompt": "a"}, headers={"x-tercet-deadline-ms": "soon"})
    assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "x-tercet-deadline-ms")


async def test_a_refusal_says_when_to_come_again(scheduler, client):
    scheduler.refuse = sequence_pb2.Failure(reason="QUEUE_FULL", message="full", retry_after_ms=1200)
    with pytest.raises(openai.RateLimitError) as caught:
        await client.chat.completions.create(model="bytes", messages=CHAT, stream=True)
    headers = caught.value.response.headers
    assert (headers["retry-after"], headers["retry-after-ms"], headers["x-should-retry"]) == ("2", "1200", "true")
    assert caught.value.code == "queue_full"


async def test_openais_client_asks_again_when_it_was_told_to(scheduler, client):
    scheduler.refuse = sequence_pb2.Failure(reason="QUEUE_FULL", message="full", retry_after_ms=1)

    async def relent() -> None:
        await until(lambda: scheduler.sequences)
        scheduler.refuse = None

    relenting = asyncio.create_task(relent())
    made = await client.with_options(max_retries=5).completions.create(model="bytes", prompt="hello")
    assert made.choices[0].text == "hello"
    await relenting


class TestPlaces:
    @pytest.fixture
    def settings(self, http_port: int) -> dict[str, Any]:
        return {"http_port": http_port, "max_concurrent_requests": 2}

    async def test_each_prompt_has_one_and_all_are_given_back(self, client, events):
        for _ in range(3):
            two = await client.completions.create(model="bytes", prompt=["hello", "world"])
            assert len(two.choices) == 2
            assert (await events("/v1/chat/completions", {"messages": CHAT}))[-1] == "[DONE]"
            with pytest.raises(openai.BadRequestError):
                await client.completions.create(model="bytes", prompt="hello", top_p=0)
            with pytest.raises(openai.RateLimitError) as caught:
                await client.completions.create(model="bytes", prompt=["a", "b", "c"])
            assert caught.value.code == "queue_full"
