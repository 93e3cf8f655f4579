"""A gateway with an HTTP port, and clients of it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import httpx2
import openai
import pytest

from tercet.ports import free_ports


@pytest.fixture
def http_port() -> int:
    return free_ports(1)[0]


@pytest.fixture
def settings(http_port: int) -> dict[str, Any]:
    return {"http_port": http_port}


@pytest.fixture
async def http(gateway: Any, http_port: int) -> AsyncIterator[httpx2.AsyncClient]:
    """Plain HTTP."""
    async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{http_port}", timeout=30) as client:
        yield client


@pytest.fixture
async def client(gateway: Any, http_port: int) -> AsyncIterator[openai.AsyncOpenAI]:
    """OpenAI's own, as it comes, but that it tries once."""
    url = f"http://127.0.0.1:{http_port}/v1"
    async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0, timeout=30) as made:
        yield made


@pytest.fixture
def events(http: httpx2.AsyncClient) -> Callable[..., Awaitable[list[Any]]]:
    """The events that a streamed answer has: JSON, and [DONE] as it stands."""

    async def read(path: str, body: dict[str, Any]) -> list[Any]:
        async with http.stream("POST", path, json={**body, "stream": True}) as answer:
            assert answer.status_code == 200
            assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
            lines = [line async for line in answer.aiter_lines() if line]
        assert all(line.startswith("data: ") for line in lines)
        texts = [line.removeprefix("data: ") for line in lines]
        return [text if text == "[DONE]" else json.loads(text) for text in texts]

    return read
