"""Single questions over OpenAI's HTTP API, to servers that answer in many ways; tests/e2e asks them over gRPC."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web

from tercet.acceptance.answerers import open_answerer
from tercet.acceptance.question import NOT_IN_TIME, Question, Said
from tercet.load.endpoint import Endpoint

USAGE = {"prompt_tokens": 5, "completion_tokens": 2}
QUESTION = Question("a", False, 2, stop="x", ignore_eos=True, seed=3)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def served(handler: Handler) -> AsyncIterator[str]:
    """The URL of a server that answers every POST so."""
    application = web.Application()
    application.router.add_post("/{path:.*}", handler)
    runner = web.AppRunner(application, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        host, port = runner.addresses[0][:2]
        yield f"http://{host}:{port}/v1"
    finally:
        await runner.cleanup()


async def asked(handler: Handler, question: Question = QUESTION, timeout_s: float = 30.0) -> Said:
    async with served(handler) as url, open_answerer(Endpoint(openai=url, api_key="k"), "m") as answerer:
        return await answerer.ask(question, timeout_s)


def answering(body: Any, status: int = 200) -> Handler:
    async def handle(request: web.Request) -> web.StreamResponse:
        return web.json_response(body, status=status)

    return handle


async def test_a_text_is_a_completion_and_a_question_a_chat() -> None:
    seen: list[tuple[str, str | None, Any]] = []

    async def handle(request: web.Request) -> web.StreamResponse:
        seen.append((request.path, request.headers.get("authorization"), await request.json()))
        choice = {"message": {"content": None}} if "chat" in request.path else {"text": "b c"}
        return web.json_response({"choices": [{**choice, "finish_reason": "stop"}], "usage": USAGE})

    assert await asked(handle) == Said("b c", None, "stop", 5, 2)
    assert await asked(handle, Question("a", True, 4)) == Said("", None, "stop", 5, 2)
    common = {"model": "m", "temperature": 0.0}
    assert seen == [
        (
            "/v1/completions",
            "Bearer k",
            {**common, "prompt": "a", "max_tokens": 2, "seed": 3, "stop": ["x"], "ignore_eos": True},
        ),
        (
            "/v1/chat/completions",
            "Bearer k",
            {**common, "messages": [{"role": "user", "content": "a"}], "max_tokens": 4, "seed": 0},
        ),
    ]


@pytest.mark.parametrize(
    ("body", "status", "reason"),
    [
        ({"error": {"code": "queue_full", "message": "m"}}, 429, "QUEUE_FULL"),
        ({"detail": "no"}, 404, "HTTP_404"),
        ({"choices": []}, 200, "MALFORMED_ANSWER"),
        ([], 200, "MALFORMED_ANSWER"),
        ({"choices": [3]}, 200, "MALFORMED_ANSWER"),
    ],
)
async def test_what_is_no_answer_is_an_error(body: Any, status: int, reason: str) -> None:
    assert await asked(answering(body, status)) == Said(error=reason)


async def test_a_server_that_is_full_for_now_is_asked_again() -> None:
    seen: list[float] = []

    async def handle(request: web.Request) -> web.StreamResponse:
        seen.append(asyncio.get_running_loop().time())
        if len(seen) < 3:
            return web.json_response({"error": {"code": "QUEUE_FULL"}}, status=429, headers={"retry-after-ms": "10"})
        return web.json_response({"choices": [{"text": "b", "finish_reason": "stop"}]})

    assert await asked(handle) == Said("b", None, "stop")
    assert len(seen) == 3


async def test_a_server_that_is_full_for_longer_than_there_is_time_is_not() -> None:
    async def handle(request: web.Request) -> web.StreamResponse:
        return web.json_response({"error": {"code": "QUEUE_FULL"}}, status=429, headers={"retry-after": "600"})

    assert await asked(handle) == Said(error="QUEUE_FULL")


async def test_what_is_no_json_is_an_error() -> None:
    async def handle(request: web.Request) -> web.StreamResponse:
        return web.Response(text="<html>")

    assert await asked(handle) == Said(error="MALFORMED_ANSWER")


async def test_a_server_that_says_nothing_is_not_waited_for() -> None:
    async def handle(request: web.Request) -> web.StreamResponse:
        await asyncio.Event().wait()
        raise AssertionError

    assert await asked(handle, timeout_s=0.2) == Said(error=NOT_IN_TIME)


async def test_a_server_that_is_not_there_is_an_error() -> None:
    async with served(answering({})) as url:
        pass
    async with open_answerer(Endpoint(openai=url), "m") as answerer:
        assert await answerer.ask(QUESTION, 30.0) == Said(error="CONNECTION_LOST")
        assert await answerer.cancel_midway(QUESTION, 1, 1.0) is None
