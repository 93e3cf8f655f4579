import asyncio
import gc
import math

import pytest

from tercet import errors
from tercet.answer_messages import from_event, from_result, joined
from tercet.client import (
    Accepted,
    AsyncClient,
    ChatMessage,
    Delta,
    Finished,
    Options,
    Output,
    OutputEnd,
    Tool,
    ToolCall,
)
from tercet.messages import PromptLogprobs, TokenLogprobs
from tercet.ports import free_ports
from tercet.v1 import inference_pb2 as pb


def _cancelled(gateway) -> bool:
    return gateway.cancelled.wait(10)


async def test_events_come_in_order_and_describe_the_request(gateway):
    async with AsyncClient(gateway.address) as client:
        events = [event async for event in client.generate("count 3", temperature=0.5, stop=("!",), max_tokens=7)]
    assert isinstance(events[0], Accepted)
    assert (events[0].request_id, events[0].seed, events[0].prompt_tokens) == ("r1", 9, 3)
    assert events[1:4] == [Delta("0 ", (100,)), Delta("1 ", (101,)), Delta("2 ", (102,))]
    assert isinstance(events[4], Finished)
    assert (events[4].finish_reason, events[4].stop) == ("stop", "!")
    assert events[4].usage.completion_tokens == 3
    sent = gateway.requests[0]
    assert sent.sampling.temperature == 0.5
    assert list(sent.stop.strings) == ["!"]
    assert sent.stop.max_tokens == 7


async def test_what_the_mesh_did_not_say_in_time_is_none_and_not_zero(gateway):
    finished = gateway._finished(4)
    known = from_event(pb.GenerateEvent(finished=finished))
    assert (known.usage.cached_tokens, known.usage.kv_blocks_used, known.timings.queue_seconds) == (0, 2, 0.0)
    finished.usage.incomplete = True
    usage, timings = (unknown := from_event(pb.GenerateEvent(finished=finished))).usage, unknown.timings
    assert (usage.prompt_tokens, usage.completion_tokens, timings.total_seconds) == (3, 4, 1.5)
    assert [usage.cached_tokens, usage.kv_blocks_used, usage.kv_blocks_freed, timings.queue_seconds] == [None] * 4


async def test_what_is_not_given_is_not_sent(gateway):
    async with AsyncClient(gateway.address) as client:
        await client.generate("count 1").answer()
    sampling = gateway.requests[0].sampling
    assert not any(sampling.HasField(name) for name in ("temperature", "top_p", "top_k", "min_p", "seed"))
    assert not any(sampling.HasField(f"{name}_penalty") for name in ("repetition", "frequency", "presence"))
    assert not any(gateway.requests[0].stop.HasField(name) for name in ("max_tokens", "min_tokens"))


def test_logprobs_of_a_delta_and_of_a_result_are_alike():
    item = pb.TokenLogprobs(logprob=-0.5, top_token_ids=[7, 9], top_logprobs=[-0.25, -0.5])
    want = (TokenLogprobs(-0.5, ((7, -0.25), (9, -0.5))),)
    delta = from_event(pb.GenerateEvent(delta=pb.Delta(text="x", token_ids=[9], logprobs=[item])))
    assert delta.logprobs == want
    output = pb.Output(text="x", token_ids=[9], logprobs=[item], end=pb.OutputEnd(reason=pb.FINISH_REASON_STOP))
    assert from_result(pb.GenerateResult(outputs=[output])).outputs[0].logprobs == want


async def test_logprobs_of_the_prompt_come_in_pieces_and_are_one(gateway):
    item = TokenLogprobs(-0.5, ((7, -0.25),))
    parts = [
        pb.PromptLogprobs(
            token_offset=offset,
            token_ids=[offset],
            logprobs=[pb.TokenLogprobs(logprob=-0.5, top_token_ids=[7], top_logprobs=[-0.25])],
        )
        for offset in (1, 2)
    ]
    gateway.prompt_logprobs = parts
    async with AsyncClient(gateway.address) as client:
        events = [event async for event in client.generate("count 1", prompt_logprobs=1)]
        streamed = await client.generate("count 1", prompt_logprobs=1).answer()
        assert (await client.generate_once("count 1")).prompt_logprobs is None
    assert events[1:3] == [PromptLogprobs(1, (1,), (item,)), PromptLogprobs(2, (2,), (item,))]
    assert streamed.prompt_logprobs == PromptLogprobs(1, (1, 2), (item, item))
    whole = pb.PromptLogprobs(token_offset=1, token_ids=[1, 2], logprobs=[parts[0].logprobs[0], parts[1].logprobs[0]])
    assert from_result(pb.GenerateResult(prompt_logprobs=whole)).prompt_logprobs == streamed.prompt_logprobs


async def test_tokens_that_are_biased_or_allowed_are_sent(gateway):
    async with AsyncClient(gateway.address) as client:
        await client.generate("count 1", Options(logit_bias={7: -1.5}, allowed_token_ids=(7, 8))).answer()
        with pytest.raises(errors.InvalidFieldError):
            await client.generate("count 1", Options(logit_bias={-7: 1.0})).answer()
    sampling = gateway.requests[0].sampling
    assert [(item.token_id, item.bias) for item in sampling.logit_bias] == [(7, -1.5)]
    assert list(sampling.allowed_token_ids) == [7, 8]


async def test_zero_is_sent(gateway):
    async with AsyncClient(gateway.address) as client:
        await client.generate("count 1", Options(temperature=0.0, seed=0, top_k=0)).answer()
    sampling = gateway.requests[0].sampling
    assert all(sampling.HasField(name) for name in ("temperature", "seed", "top_k"))


@pytest.mark.parametrize(
    ("prompt", "text"),
    [("count 2", "0 1 "), ([5, 6], "<5><6>"), ([ChatMessage("system", "a"), ChatMessage("user", "hi")], "2: hi")],
)
async def test_text_ids_and_chat_stream_and_unary_alike(gateway, prompt, text):
    async with AsyncClient(gateway.address) as client:
        pieces: list[str] = []
        streamed = await client.generate(prompt).answer(pieces.append)
        once = await client.generate_once(prompt)
    assert streamed.text == once.text == "".join(pieces) == text
    assert streamed.token_ids == once.token_ids
    assert streamed.finished == once.finished


async def test_only_a_stream_says_where_its_request_stood(gateway):
    async with AsyncClient(gateway.address) as client:
        streamed = await client.generate("count 1").answer()
        once = await client.generate_once("count 1")
    assert (streamed.accepted.queue_position, once.accepted.queue_position) == (4, None)


async def test_deltas_of_several_outputs_interleave_and_join_by_index(gateway):
    async with AsyncClient(gateway.address) as client:
        events = [event async for event in client.generate("count 2", n=3)]
        pieces: list[str] = []
        streamed = await client.generate("count 2", n=3).answer(pieces.append)
        once = await client.generate_once("count 2", n=3)
    assert [event.output_index for event in events[1:-1]] == [0, 1, 2, 0, 1, 2, 1, 2]
    assert events[-1].outputs == (OutputEnd("stop", "!"), OutputEnd("length", None), OutputEnd("length", None))
    assert streamed.outputs == once.outputs == (
        Output("0 1 ", (100, 101), "stop", "!"),
        Output("1:0 1:1 more", (1000, 1001, 7), "length", None),
        Output("2:0 2:1 more", (2000, 2001, 7), "length", None),
    )  # fmt: skip
    # What asks for one output alone sees the first.
    assert (streamed.text, streamed.token_ids, "".join(pieces)) == ("0 1 ", (100, 101), "0 1 ")
    assert (streamed.finished.finish_reason, streamed.finished.stop) == ("stop", "!")


async def test_class_and_priority_are_sent(gateway):
    async with AsyncClient(gateway.address) as client:
        await client.generate("count 1", traffic_class="batch", priority=-7).answer()
        await client.generate("count 1").answer()
    assert (gateway.requests[0].traffic_class, gateway.requests[0].priority) == ("batch", -7)
    assert (gateway.requests[1].traffic_class, gateway.requests[1].HasField("priority")) == ("", False)
    assert not gateway.requests[1].sampling.HasField("n")


async def test_a_cache_salt_is_sent(gateway):
    async with AsyncClient(gateway.address) as client:
        await client.generate("count 1", cache_salt="mine").answer()
        await client.generate("count 1").answer()
    assert [request.cache_salt for request in gateway.requests] == ["mine", ""]


async def test_the_plan_log_comes_piece_by_piece_and_fails_by_name(gateway):
    gateway.plan_log = [b"one", b"", b"two"]
    async with AsyncClient(gateway.address) as client:
        assert [part async for part in client.dump_plan_log()] == [b"one", b"", b"two"]
        gateway.plan_log_fails = True
        log = client.dump_plan_log()
        assert [await anext(log) for _ in range(3)] == [b"one", b"", b"two"]
        with pytest.raises(errors.SchedulerLostError, match="no scheduler"):
            await anext(log)


async def test_break_cancels_on_the_server(gateway):
    async with AsyncClient(gateway.address) as client:
        async for event in client.generate("forever"):
            if isinstance(event, Delta):
                break
        assert await asyncio.to_thread(_cancelled, gateway)


async def test_leaving_the_scope_of_a_generation_cancels(gateway):
    async with AsyncClient(gateway.address) as client:
        async with client.generate("forever"):
            await asyncio.to_thread(gateway.started.wait, 10)
        assert await asyncio.to_thread(_cancelled, gateway)


async def test_leaving_the_scope_of_the_client_cancels_what_is_open(gateway):
    async with AsyncClient(gateway.address) as client:
        kept = client.generate("forever")
        await asyncio.to_thread(gateway.started.wait, 10)
    assert await asyncio.to_thread(_cancelled, gateway)
    del kept


async def test_a_generation_that_nobody_has_is_cancelled(gateway):
    async with AsyncClient(gateway.address) as client:
        kept = client.generate("forever")
        await asyncio.to_thread(gateway.started.wait, 10)
        del kept
        gc.collect()
        assert await asyncio.to_thread(_cancelled, gateway)


@pytest.mark.parametrize("ask", ["generate", "generate_once"])
async def test_leaving_the_scope_of_the_client_ends_what_waits(gateway, ask):
    async with AsyncClient(gateway.address) as client:
        reply = client.generate("silent").answer() if ask == "generate" else client.generate_once("silent")
        task = asyncio.create_task(reply)
        await asyncio.to_thread(gateway.started.wait, 10)
    with pytest.raises(errors.RequestCancelledError):
        await task
    assert await asyncio.to_thread(_cancelled, gateway)


async def test_cancelling_the_task_cancels_on_the_server(gateway):
    async with AsyncClient(gateway.address) as client:
        task = asyncio.create_task(client.generate("silent").answer())
        await asyncio.to_thread(gateway.started.wait, 10)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await asyncio.to_thread(_cancelled, gateway)


async def test_cancel_ends_an_iteration_with_a_typed_error(gateway):
    async with AsyncClient(gateway.address) as client:
        generation = client.generate("silent")
        task = asyncio.create_task(generation.answer())
        await asyncio.to_thread(gateway.started.wait, 10)
        generation.cancel()
        with pytest.raises(errors.RequestCancelledError):
            await task


async def test_a_typed_refusal_comes_back_whole(gateway):
    async with AsyncClient(gateway.address) as client:
        with pytest.raises(errors.QueueFullError) as caught:
            await client.generate("refuse").answer()
    assert caught.value.message == "full up"
    assert caught.value.metadata == {"queued": "7"}
    assert caught.value.retry_after_s == 1.5


async def test_an_untyped_status_becomes_an_engine_fault_with_its_code(gateway):
    async with AsyncClient(gateway.address) as client:
        with pytest.raises(errors.EngineFaultError, match="gone") as caught:
            await client.generate("raw status").answer()
    assert caught.value.metadata == {"code": "DATA_LOSS"}


async def test_a_stream_without_its_last_event_is_an_error(gateway):
    async with AsyncClient(gateway.address) as client:
        with pytest.raises(errors.GatewayLostError, match="without its last event"):
            await client.generate("torn").answer()


async def test_a_call_that_the_other_end_cancels_is_a_lost_gateway(gateway):
    async with AsyncClient(gateway.address) as client:
        with pytest.raises(errors.GatewayLostError, match="turned the call away"):
            await client.generate("too late").answer()
        with pytest.raises(errors.GatewayLostError, match="turned the call away"):
            await client.generate_once("too late")


async def test_what_breaks_behind_the_last_event_breaks_nothing(gateway):
    async with AsyncClient(gateway.address) as client:
        events = [event async for event in client.generate("lost behind its end")]
    assert [type(event) for event in events] == [Accepted, Finished]


async def test_no_gateway_is_a_typed_error():
    (port,) = free_ports(1)
    async with AsyncClient(f"127.0.0.1:{port}") as client:
        with pytest.raises(errors.GatewayLostError, match=f"127.0.0.1:{port}"):
            await client.generate("x").answer()
        with pytest.raises(errors.GatewayLostError):
            await client.models()


async def test_the_deadline_is_a_typed_error(gateway):
    async with AsyncClient(gateway.address) as client:
        with pytest.raises(errors.DeadlineError):
            await client.generate("silent", timeout_s=0.2).answer()
        assert await asyncio.to_thread(_cancelled, gateway)


@pytest.mark.parametrize(
    "wrong",
    [{"top_k": -1}, {"max_tokens": 2**33}, {"stop_token_ids": (-4,)}, {"seed": "x"}, {"n": -1}, {"priority": 2**31}],
)
async def test_a_number_that_the_contract_cannot_hold_is_a_typed_error(gateway, wrong):
    async with AsyncClient(gateway.address) as client:
        with pytest.raises(errors.InvalidFieldError):
            client.generate("count 1", **wrong)
    assert gateway.requests == []


@pytest.mark.parametrize(
    ("prompt", "said"),
    [
        (b"abc", "is bytes"),
        (bytearray(b"abc"), "is bytearray"),
        (None, "is NoneType"),
        (7, "is int"),
        (["a", "b"], "is a list of str"),
        ([ChatMessage("user", "x"), "y"], "is a list of ChatMessage, str"),
        ([{"role": "user", "content": "x"}], "is a list of dict"),
        ({"role": "user"}, "is dict"),
    ],
)
async def test_a_prompt_of_no_kind_is_a_type_error_that_says_what_is_one(gateway, prompt, said):
    async with AsyncClient(gateway.address) as client:
        with pytest.raises(TypeError, match=f"prompt must be a str, a list of token ids, or .*, {said}$"):
            client.generate(prompt)
        with pytest.raises(TypeError, match="prompt must be a str, a list of token ids"):
            await client.generate_once(prompt)
        with pytest.raises(TypeError, match="prompt must be a str or a list of ChatMessage"):
            await client.tokenize(prompt)
    assert gateway.requests == []


async def test_an_unknown_option_is_named_beside_the_known_ones(gateway):
    async with AsyncClient(gateway.address) as client:
        with pytest.raises(TypeError, match="'foo' is not an option; options are model, temperature"):
            client.generate("x", foo=1)
        with pytest.raises(TypeError, match="options must be Options, is dict"):
            client.generate("x", {"temperature": 0})
    assert gateway.requests == []


async def test_a_stop_text_is_one_stop_string(gateway):
    async with AsyncClient(gateway.address) as client:
        await client.generate("count 1", stop="abc").answer()
        await client.generate("count 1", stop=["a", "b"]).answer()
    assert [list(request.stop.strings) for request in gateway.requests] == [["abc"], ["a", "b"]]


def test_a_reader_that_fails_ends_the_request_and_leaves_nothing_behind(gateway):
    """Not even for the event loop's end, which would report the iteration's cancellation to nobody."""
    unhandled = []

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: unhandled.append(context))

        def fail(text: str) -> None:
            raise BrokenPipeError

        async with AsyncClient(gateway.address) as client, client.generate("forever") as generation:
            await generation.answer(fail)

    with pytest.raises(BrokenPipeError):
        asyncio.run(main())
    assert _cancelled(gateway)
    assert unhandled == []


def test_an_iteration_that_is_left_leaves_nothing_behind(gateway):
    unhandled = []

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: unhandled.append(context))
        async with AsyncClient(gateway.address) as client, client.generate("forever") as generation:
            async for event in generation:
                if isinstance(event, Delta):
                    raise BrokenPipeError

    with pytest.raises(BrokenPipeError):
        asyncio.run(main())
    assert _cancelled(gateway)
    assert unhandled == []


async def test_models_fleet_tokens_and_cancel(gateway):
    async with AsyncClient(gateway.address) as client:
        assert (await client.model()).name == "fake"
        assert (await client.model("fake")).max_model_len == 64
        with pytest.raises(errors.ModelNotFoundError) as caught:
            await client.model("other")
        assert caught.value.metadata["served"] == "fake"
        (worker,) = (await client.fleet()).workers
        assert worker.blocks_total == worker.blocks_free + worker.blocks_cached + worker.blocks_used
        assert await client.tokenize("ab cde") == (2, 3)
        assert await client.tokenize([ChatMessage("user", "a")]) == (1,)
        assert await client.detokenize([1, 2]) == "1 2"
        assert await client.cancel("r1") is True
        assert await client.cancel("r2") is False


async def test_use_outside_the_scope_is_a_bug_that_is_named():
    with pytest.raises(RuntimeError, match="async with"):
        AsyncClient().generate("x")
    with pytest.raises(TypeError, match="not both"):
        async with AsyncClient() as client:
            client.generate("x", Options(), temperature=1.0)


@pytest.mark.parametrize("timeout_s", [math.inf, math.nan, 1e12, 1e300, 31_536_001])
async def test_a_time_that_is_none_is_refused_before_anything_is_sent(gateway, timeout_s):
    async with AsyncClient(gateway.address) as client:
        for ask in (client.generate_once("x", timeout_s=timeout_s), client.models(timeout_s=timeout_s)):
            with pytest.raises(ValueError, match="timeout_s must be at most 31,536,000, is "):
                await ask
        with pytest.raises(ValueError, match="None is no limit"):
            client.generate("x", timeout_s=timeout_s)
        assert await client.models(timeout_s=31_536_000)


@pytest.mark.parametrize("address", ["127.0.0.1:99999", "127.0.0.1", "http://127.0.0.1:1", ""])
def test_an_address_that_cannot_be_is_refused(address):
    with pytest.raises(ValueError, match="address must be host:port"):
        AsyncClient(address)


async def test_a_chat_is_sent_with_all_it_has(gateway):
    call = ToolCall("c1", "get", "{}")
    messages = [ChatMessage("assistant", "", (call,)), ChatMessage("tool", "42", tool_call_id="c1", name="get")]
    options = Options(
        tools=(Tool("get", "d", '{"type": "object"}'),),
        tool_choice="none",
        documents=('{"text": "x"}',),
        add_generation_prompt=False,
        template_kwargs='{"a": 1}',
    )
    async with AsyncClient(gateway.address) as client:
        await client.generate(messages, options).answer()
        with pytest.raises(errors.InvalidFieldError) as caught:
            client.generate("count 1", Options(documents=("{}",)))
    assert caught.value.metadata["field"] == "chat.documents"
    assert gateway.requests[0].chat == pb.Chat(
        messages=[
            pb.ChatMessage(role="assistant", tool_calls=[pb.ToolCall(id="c1", name="get", arguments="{}")]),
            pb.ChatMessage(role="tool", content="42", tool_call_id="c1", name="get"),
        ],
        tools=[pb.Tool(name="get", description="d", parameters='{"type": "object"}')],
        tool_choice=pb.TOOL_CHOICE_NONE,
        documents=['{"text": "x"}'],
        add_generation_prompt=False,
        template_kwargs='{"a": 1}',
    )


async def test_tokenize_sends_the_chat_that_generate_sends(gateway):
    messages = [ChatMessage("user", "hi"), ChatMessage("assistant", "so")]
    options = Options(
        model="fake",
        temperature=0.5,
        tools=(Tool("get"),),
        documents=('{"text": "x"}',),
        continue_final_message=True,
        template_kwargs='{"a": 1}',
    )
    async with AsyncClient(gateway.address) as client:
        await client.generate(messages, options).answer()
        await client.tokenize(messages, options)
        await client.tokenize("x", model="fake")
        with pytest.raises(errors.InvalidFieldError, match="option of chats") as caught:
            await client.tokenize("x", tools=options.tools)
        with pytest.raises(TypeError, match="not both"):
            await client.tokenize("x", options, model="fake")
    assert caught.value.metadata["field"] == "chat.tools"
    (generated,) = gateway.requests
    assert gateway.tokenized == [
        pb.TokenizeRequest(model="fake", chat=generated.chat),
        pb.TokenizeRequest(model="fake", prompt="x"),
    ]


async def test_traffic_of_so_many_tenants(gateway):
    async with AsyncClient(gateway.address) as client:
        await client.traffic()
        await client.traffic(max_tenants=1000)
        with pytest.raises(errors.InvalidFieldError):
            await client.traffic(max_tenants=-1)
    assert gateway.max_tenants == [100, 1000]


def test_calls_of_deltas_and_of_a_result_are_alike():
    parts = [
        pb.Delta(tool_calls=[pb.ToolCallDelta(index=0, id="a", name="get", arguments='{"x"')]),
        pb.Delta(
            tool_calls=[
                pb.ToolCallDelta(index=0, arguments=": 1}"),
                pb.ToolCallDelta(index=1, id="b", name="now", arguments="{}"),
            ]
        ),
    ]
    deltas = [from_event(pb.GenerateEvent(delta=part)) for part in parts]
    calls = [pb.ToolCall(id="a", name="get", arguments='{"x": 1}'), pb.ToolCall(id="b", name="now", arguments="{}")]
    end = pb.OutputEnd(reason=pb.FINISH_REASON_TOOL_CALLS)
    (output,) = from_result(pb.GenerateResult(outputs=[pb.Output(tool_calls=calls, end=end)])).outputs
    assert output.finish_reason == "tool_calls"
    assert joined(call for delta in deltas for call in delta.tool_calls) == output.tool_calls
    assert output.tool_calls == (ToolCall("a", "get", '{"x": 1}'), ToolCall("b", "now", "{}"))
