"""Single questions over gRPC and over OpenAI's HTTP API."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from tercet import errors
from tercet.client import Accepted, AsyncClient, ChatMessage, Delta, Options
from tercet.load.endpoint import Endpoint
from tercet.load.events import to_error
from tercet.load.openai_target import retry_after_s
from tercet.load.target import AnswerError
from tercet.patience import apart

from .question import NOT_IN_TIME, Answerer, Question, Said

if TYPE_CHECKING:
    import aiohttp

# What was on its way to the client when its request was cancelled has come by then.
_ON_ITS_WAY_S = 1.0
# A cancel that came too late to be one is tried again, with a request that had less time.
_TRIES = 3
_MALFORMED = "MALFORMED_ANSWER"
_LEAST_WAIT_S = 0.05


class GatewayAnswerer:
    """A gateway over gRPC."""

    def __init__(self, client: AsyncClient, model: str) -> None:
        self._client = client
        self._model = model

    async def ask(self, question: Question, timeout_s: float) -> Said:
        return await _patiently(lambda left_s: self._ask(question, left_s), timeout_s)

    async def _ask(self, question: Question, timeout_s: float) -> Said:
        generation = self._client.generate(_prompt(question), self._options(question), timeout_s=timeout_s)
        try:
            answer = await generation.answer()
        except errors.RequestError as error:
            raise AnswerError(error.reason, error.message, retry_after_s=error.retry_after_s) from error
        usage = answer.finished.usage
        return Said(
            answer.text, answer.token_ids, answer.finished.finish_reason, usage.prompt_tokens, usage.completion_tokens
        )

    async def cancel_midway(self, question: Question, after_tokens: int, timeout_s: float) -> bool | None:
        for _ in range(_TRIES):
            found, went_on = await self._cancel_midway(question, after_tokens, timeout_s)
            if found:
                return went_on
        # It was never running when it was to be cancelled: outputs are too short for this server.
        return None

    async def _cancel_midway(self, question: Question, after_tokens: int, timeout_s: float) -> tuple[bool, bool]:
        """Whether it was found running, and whether it went on."""
        request_id, tokens, cancelled_at, found = "", 0, None, False
        try:
            async with self._client.generate(
                _prompt(question), self._options(question), timeout_s=timeout_s
            ) as generation:
                async for event in generation:
                    if isinstance(event, Accepted):
                        request_id = event.request_id
                    elif isinstance(event, Delta):
                        if cancelled_at is not None and time.monotonic() - cancelled_at > _ON_ITS_WAY_S:
                            return found, True
                        tokens += len(event.token_ids)
                        if cancelled_at is None and tokens >= after_tokens:
                            found = await self._client.cancel(request_id, timeout_s=timeout_s)
                            cancelled_at = time.monotonic()
        except errors.RequestCancelledError:
            return found, False
        except errors.RequestError:
            return found, True
        # Found running, and ended as if nobody had cancelled it.
        return found, True

    def _options(self, question: Question) -> Options:
        return Options(
            model=self._model,
            temperature=question.temperature,
            seed=question.seed,
            max_tokens=question.max_tokens,
            stop=(question.stop,) if question.stop else (),
            ignore_eos=question.ignore_eos,
        )


class OpenAiAnswerer:
    """Any server that speaks OpenAI's HTTP API."""

    def __init__(self, session: aiohttp.ClientSession, lost: type[Exception], root: str, model: str) -> None:
        """`lost` is the HTTP client's base of all errors."""
        self._session = session
        self._lost = lost
        self._root = root
        self._model = model

    async def ask(self, question: Question, timeout_s: float) -> Said:
        # Not of the HTTP client's own: that loses nothing here, and is one kind of error less.
        try:
            return await _patiently(lambda left_s: apart(self._ask(question), left_s), timeout_s)
        except asyncio.TimeoutError:
            return Said(error=NOT_IN_TIME)

    async def cancel_midway(self, question: Question, after_tokens: int, timeout_s: float) -> bool | None:  # noqa: ARG002
        """Nobody can."""
        return None

    async def _ask(self, question: Question) -> Said:
        body: dict[str, Any] = {
            "model": self._model,
            "max_tokens": question.max_tokens,
            "temperature": question.temperature,
            "seed": question.seed,
        }
        if question.stop:
            body["stop"] = [question.stop]
        if question.ignore_eos:
            body["ignore_eos"] = True
        path = "/v1/completions"
        if question.is_chat:
            path = "/v1/chat/completions"
            body["messages"] = [{"role": "user", "content": question.text}]
        else:
            body["prompt"] = question.text
        try:
            async with self._session.post(self._root + path, json=body) as response:
                answer = json.loads(await response.text())
                if response.status >= 400:
                    raise to_error(answer, response.status, retry_after_s(response.headers))
        except ValueError:
            return Said(error=_MALFORMED)
        except self._lost:
            return Said(error="CONNECTION_LOST")
        return _said(answer)


async def _patiently(ask: Callable[[float], Awaitable[Said]], timeout_s: float) -> Said:
    """Asks again when a server says so: a refusal is no wrong answer. `ask` is told how many seconds are left."""
    clock = asyncio.get_running_loop().time
    give_up = clock() + timeout_s
    while True:
        try:
            return await ask(give_up - clock())
        except AnswerError as error:
            wait_s = max(_LEAST_WAIT_S, error.retry_after_s or 0.0)
            if error.retry_after_s is None or clock() + wait_s >= give_up:
                return Said(error=error.reason)
            await asyncio.sleep(wait_s)


def _said(answer: Any) -> Said:
    """Of an answer in one piece."""
    try:
        choice = answer["choices"][0]
        text = choice["message"]["content"] if "message" in choice else choice["text"]
        usage: Mapping[str, Any] = answer.get("usage") or {}
        return Said(
            text or "",
            None,
            choice.get("finish_reason") or "",
            usage.get("prompt_tokens"),
            usage.get("completion_tokens"),
        )
    except (KeyError, IndexError, TypeError, AttributeError):
        return Said(error=_MALFORMED)


def _prompt(question: Question) -> str | list[ChatMessage]:
    return [ChatMessage("user", question.text)] if question.is_chat else question.text


@asynccontextmanager
async def open_answerer(endpoint: Endpoint, model: str) -> AsyncIterator[Answerer]:
    """For this event loop, of a target that could be opened. `model` is what the server calls it."""
    async with contextlib.AsyncExitStack() as scope:
        if not endpoint.openai:
            client = AsyncClient(endpoint.address, api_key=endpoint.api_key, tls=endpoint.tls)
            yield GatewayAnswerer(await scope.enter_async_context(client), model)
            return
        import aiohttp

        headers = {"authorization": f"Bearer {endpoint.api_key}"} if endpoint.api_key else {}
        session = aiohttp.ClientSession(headers=headers, timeout=aiohttp.ClientTimeout(total=None))
        root = endpoint.openai.rstrip("/").removesuffix("/v1")
        yield OpenAiAnswerer(await scope.enter_async_context(session), aiohttp.ClientError, root, model)
