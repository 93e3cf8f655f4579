"""The client for threads: what it shares with the other one is tried there, so here are scopes, threads and ends."""

from __future__ import annotations

import gc
import inspect
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import tercet
from tercet import errors
from tercet.client import (
    Accepted,
    AsyncClient,
    AsyncGeneration,
    ChatMessage,
    Client,
    Conversation,
    Delta,
    Finished,
    Generation,
    Options,
    Tool,
    ToolCall,
)
from tercet.ports import free_ports


@pytest.fixture
def client(gateway):
    with Client(gateway.address) as client:
        yield client


def test_events_come_in_order(gateway, client):
    events = list(client.generate("count 3", temperature=0.5, stop=("!",), max_tokens=7))
    assert isinstance(events[0], Accepted)
    assert events[1:4] == [Delta("0 ", (100,)), Delta("1 ", (101,)), Delta("2 ", (102,))]
    assert isinstance(events[4], Finished)
    assert gateway.requests[0].sampling.temperature == 0.5
    assert gateway.requests[0].stop.max_tokens == 7


@pytest.mark.parametrize(
    ("prompt", "text"),
    [("count 2", "0 1 "), ([5, 6], "<5><6>"), ([ChatMessage("system", "a"), ChatMessage("user", "hi")], "2: hi")],
)
def test_text_ids_and_chat_stream_and_unary_alike(client, prompt, text):
    pieces: list[str] = []
    streamed = client.generate(prompt, n=2).answer(pieces.append)
    once = client.generate_once(prompt, n=2)
    assert streamed.text == once.text == "".join(pieces) == "".join(client.generate(prompt, n=2).texts()) == text
    assert streamed.outputs == once.outputs
    assert streamed.finished == once.finished


async def test_both_clients_get_the_same(gateway, client):
    gateway.plan_log = [b"one", b"", b"two"]
    calls: dict[str, Callable[[Any], Any]] = {
        "generate": lambda each: each.generate("count 2", n=2).answer(),
        "generate_once": lambda each: each.generate_once("count 2", n=2),
        "chat": lambda each: each.chat(Conversation("be brief"), "hi"),
        "tokenize": lambda each: each.tokenize("ab cde"),
        "detokenize": lambda each: each.detokenize([1, 2]),
        "models": lambda each: each.models(),
        "model": lambda each: each.model(),
        "fleet": lambda each: each.fleet(),
        "traffic": lambda each: each.traffic(),
        "cancel": lambda each: each.cancel("r1"),
        "cancellations": lambda each: each.cancellations(limit=5),
        "dump_plan_log": lambda each: each.dump_plan_log(),
    }
    public = {name for name, _ in inspect.getmembers(Client, inspect.isfunction) if not name.startswith("_")}
    assert public == {*calls, "close"}
    async with AsyncClient(gateway.address) as other:
        for name, call in calls.items():
            mine, others = call(client), call(other)
            gateway.traffic.uptime_seconds = 0
            if name == "dump_plan_log":
                assert list(mine) == [part async for part in others] == [b"one", b"", b"two"]
            elif name == "traffic":
                assert mine.epoch == (await others).epoch
            elif name == "fleet":
                assert mine.workers == (await others).workers
            else:
                assert mine == await others, name


def test_both_clients_are_asked_alike():
    """Parameters, their defaults and their types, of every method that either has."""
    for mine, others in ((Client, AsyncClient), (Generation, AsyncGeneration)):
        for name, method in inspect.getmembers(mine, inspect.isfunction):
            if (name.startswith("_") and name != "__init__") or name == "close":
                continue
            assert inspect.signature(method).parameters == inspect.signature(getattr(others, name)).parameters, name
            assert method.__doc__ or name == "__init__", name


@pytest.mark.parametrize("how", ["break", "scope", "client", "dropped", "cancel"])
def test_what_is_left_is_cancelled_on_the_server(gateway, how):
    with Client(gateway.address) as client:
        if how == "break":
            for event in client.generate("forever"):
                if isinstance(event, Delta):
                    break
        elif how == "scope":
            with client.generate("forever"):
                assert gateway.started.wait(10)
        elif how == "dropped":
            kept = client.generate("forever")
            assert gateway.started.wait(10)
            del kept
            gc.collect()
        elif how == "cancel":
            kept = client.generate("forever")
            assert gateway.started.wait(10)
            kept.cancel()
            kept.cancel()
            with pytest.raises(errors.RequestCancelledError):
                list(kept)
        else:
            kept = client.generate("forever")
            assert gateway.started.wait(10)
        if how != "client":
            assert gateway.cancelled.wait(10)
    assert gateway.cancelled.wait(10)


def test_another_thread_ends_a_wait(gateway):
    for prompt in ("silent", "forever"):
        gateway.started.clear()
        with Client(gateway.address) as client, ThreadPoolExecutor() as pool:
            generation = client.generate(prompt)
            reading = pool.submit(generation.answer)
            assert gateway.started.wait(10)
            generation.cancel()
            with pytest.raises(errors.RequestCancelledError):
                reading.result(10)


def test_closing_ends_what_other_threads_wait_for(gateway):
    with ThreadPoolExecutor() as pool:
        client = Client(gateway.address)
        waiting = [
            pool.submit(lambda: client.generate("silent").answer()),
            pool.submit(lambda: client.generate_once("silent")),
        ]
        while len(gateway.requests) < 2:
            time.sleep(0.01)
        client.close()
        for each in waiting:
            with pytest.raises(errors.RequestCancelledError):
                each.result(10)
        client.close()
        with pytest.raises(RuntimeError, match="the client is closed"):
            client.models()
        with pytest.raises(RuntimeError, match="the client is closed"):
            client.generate("x")


def test_threads_share_a_client(gateway, client):
    def ask(number: int) -> str:
        if number % 3 == 0:
            return "".join(client.generate(f"count {number}").texts())
        if number % 3 == 1:
            with client.generate("forever") as generation:
                next(iter(generation))
            return "left"
        return client.generate_once(f"count {number}").text

    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(ask, range(96)))
    wanted = ["left" if n % 3 == 1 else "".join(f"{i} " for i in range(n)) for n in range(96)]
    assert answers == wanted


def test_an_interrupt_ends_the_call(gateway):
    """Ctrl-C while an answer in one piece is awaited."""
    program = f"""
        import signal, sys
        from tercet import Client
        signal.signal(signal.SIGINT, signal.default_int_handler)
        client = Client({gateway.address!r})
        try:
            client.generate_once("silent")
        except KeyboardInterrupt:
            sys.exit(77)
    """
    environment = {**os.environ, "PYTHONPATH": str(tercet.__path__[0] + "/..")}
    process = subprocess.Popen([sys.executable, "-c", textwrap.dedent(program)], env=environment)
    assert gateway.started.wait(30)
    process.send_signal(signal.SIGINT)
    assert process.wait(30) == 77
    assert gateway.cancelled.wait(10)


def test_errors_are_typed(gateway, client):
    for ask in (lambda prompt: client.generate(prompt).answer(), client.generate_once):
        with pytest.raises(errors.QueueFullError) as caught:
            ask("refuse")
        assert (caught.value.metadata, caught.value.retry_after_s) == ({"queued": "7"}, 1.5)
        assert caught.value.__suppress_context__
        with pytest.raises(errors.EngineFaultError, match="gone") as fault:
            ask("raw status")
        assert fault.value.metadata == {"code": "DATA_LOSS"}
        with pytest.raises(errors.GatewayLostError, match="turned the call away"):
            ask("too late")
    with pytest.raises(errors.GatewayLostError, match="without its last event"):
        client.generate("torn").answer()
    assert [type(event) for event in client.generate("lost behind its end")] == [Accepted, Finished]
    with pytest.raises(errors.ModelNotFoundError):
        client.model("other")
    gateway.plan_log_fails = True
    with pytest.raises(errors.SchedulerLostError):
        list(client.dump_plan_log())


def test_no_gateway_and_no_time_are_typed(gateway):
    (port,) = free_ports(1)
    with Client(f"127.0.0.1:{port}") as nobody:
        with pytest.raises(errors.GatewayLostError, match=f"127.0.0.1:{port}"):
            nobody.generate("x").answer()
        with pytest.raises(errors.GatewayLostError):
            nobody.models()
    with Client(gateway.address, timeout_s=0.2) as hurried:
        for ask in (lambda: hurried.generate("silent").answer(), lambda: hurried.generate_once("silent")):
            with pytest.raises(errors.DeadlineError):
                ask()
        assert hurried.generate("count 1", timeout_s=60).answer().text == "0 "


@pytest.mark.parametrize("kind", [Client, AsyncClient])
def test_what_cannot_be_is_refused_when_it_is_made(kind):
    with pytest.raises(ValueError, match="address must be host:port"):
        kind("nowhere")
    with pytest.raises(ValueError, match="api_key must be printable ASCII"):
        kind(api_key="a b")
    with pytest.raises(ValueError, match="timeout_s must be at most"):
        kind(timeout_s=float("nan"))


def test_what_a_proto_cannot_hold_is_a_typed_error(client):
    for ask in (
        lambda: client.generate("x", top_k=-1),
        lambda: client.tokenize("\ud800"),
        lambda: client.tokenize([ChatMessage("user", "\ud800")]),
        lambda: client.detokenize([-1]),
        lambda: client.model("\ud800"),
        lambda: client.cancel("\ud800"),
        lambda: client.cancellations(limit=-1),
    ):
        with pytest.raises(errors.InvalidFieldError, match="the request cannot be written"):
            ask()


def test_a_conversation_grows_by_what_was_answered(gateway, client):
    talk = Conversation("be brief")
    pieces: list[str] = []
    assert client.chat(talk, "hi", Options(max_tokens=5), on_text=pieces.append).text == "2: hi" == "".join(pieces)
    assert client.chat(talk, "and you?", seed=4).text == "4: and you?"
    assert [(turn.role, turn.content) for turn in talk.messages] == [
        ("system", "be brief"), ("user", "hi"), ("assistant", "2: hi"),
        ("user", "and you?"), ("assistant", "4: and you?"),
    ]  # fmt: skip
    assert (gateway.requests[0].stop.max_tokens, gateway.requests[1].sampling.seed) == (5, 4)


def test_a_turn_that_fails_leaves_the_conversation_as_it_was(gateway, client):
    talk = Conversation(messages=[ChatMessage("user", "hi")])
    before = talk.messages
    gateway.failures = [errors.QueueFullError("full")]
    with pytest.raises(errors.QueueFullError):
        client.chat(talk, "more")

    def fail(text: str) -> None:
        raise BrokenPipeError

    with pytest.raises(BrokenPipeError):
        client.chat(talk, "more", on_text=fail)
    assert talk.messages == before


def test_what_tools_say_is_a_turn_and_an_answer_may_go_on(gateway, client):
    call = ToolCall("c1", "clock", "{}")
    talk = Conversation(messages=[ChatMessage("user", "what time is it?"), ChatMessage("assistant", "", (call,))])
    talk.add_tool_result(call, "noon")
    answer = client.chat(talk, tools=(Tool("clock"),))
    assert answer.text == "3: noon"
    sent = gateway.requests[0].chat
    assert (sent.messages[2].role, sent.messages[2].tool_call_id, sent.messages[2].name) == ("tool", "c1", "clock")
    assert [tool.name for tool in sent.tools] == ["clock"]
    client.chat(talk, continue_final_message=True)
    assert talk.messages[-1] == ChatMessage("assistant", "3: noon4: 3: noon")
    with pytest.raises(ValueError, match="no assistant's turn"):
        Conversation().extend_answer(answer)


def test_the_package_has_the_clients_and_loads_them_late():
    program = """
        import sys, tercet
        assert "grpc" not in sys.modules and tercet.__version__
        from tercet import AsyncClient, Client
        assert Client is tercet.client.Client
        assert all(getattr(tercet, name) for name in tercet.__all__)
        try:
            tercet.nothing
        except AttributeError as error:
            print(error)
        assert "torch" not in sys.modules
    """
    environment = {**os.environ, "PYTHONPATH": str(tercet.__path__[0] + "/..")}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout == "module 'tercet' has no attribute 'nothing'\n"
