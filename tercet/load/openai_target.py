"""Any server that speaks OpenAI's HTTP API: completions and chats, as streams of events."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncGenerator, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any

from tercet.client import ClientTls
from tercet.errors import LoadError

from .ask import Ask
from .events import Stream, to_error
from .record import ServerSample
from .slo import Slo
from .target import DEADLINE, AnswerError, Described, Event

if TYPE_CHECKING:
    import aiohttp

_CONTROL_S = 60.0
_IDLE_S = 1.0
# No event is longer.
_LINE_BYTES = 1 << 20
# Ids of any vocabulary.
_SOME_TOKENS = (1000, 1001, 1002, 1003)


class OpenAiTarget:
    """A scope. `url` ends with /v1 or before it; of `tls` the CA counts; `cache_salt` is sent to servers that know it.
    Raises LoadError if aiohttp is not installed."""

    def __init__(
        self, url: str, *, api_key: str = "", tls: ClientTls | None = None, model: str = "", cache_salt: str = ""
    ) -> None:
        try:
            import aiohttp
        except ImportError:
            raise LoadError("aiohttp is not installed, by which HTTP is spoken: pip install 'tercet[bench]'") from None
        self._aiohttp = aiohttp
        self._root = url.rstrip("/").removesuffix("/v1")
        self._api_key = api_key
        self._tls = tls
        self._model = model
        # What is sent with every request; known when the server has been asked.
        self._more = {"cache_salt": cache_salt} if cache_salt else {}
        self._session: aiohttp.ClientSession | None = None

    @property
    def name(self) -> str:
        return f"the server at {self._root}"

    async def __aenter__(self) -> OpenAiTarget:
        # As many connections as there are streams. Servers close those that are idle, some after 5 s; a request that
        # crosses that on its way would seem to have failed.
        ca = None if self._tls is None or self._tls.ca is None else self._tls.ca.decode()
        context = ssl.create_default_context(cadata=ca)
        connector = self._aiohttp.TCPConnector(limit=0, keepalive_timeout=_IDLE_S, ssl=context)
        self._session = self._aiohttp.ClientSession(
            connector=connector,
            timeout=self._aiohttp.ClientTimeout(total=None),
            read_bufsize=_LINE_BYTES,
            auto_decompress=True,
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._session is not None
        await self._session.close()

    async def describe(self) -> Described:
        models = (await self._control("GET", "/v1/models")).get("data") or []
        named = [each for each in models if isinstance(each, dict) and self._model in ("", each.get("id"))]
        if not named:
            raise LoadError(f"{self.name} does not serve {self._model or 'any model'}")
        self._model = str(named[0]["id"])
        max_model_len = named[0].get("max_model_len")
        return Described(
            model=self._model,
            revision=None,
            max_model_len=max_model_len if isinstance(max_model_len, int) else None,
            vocab_size=None,
            takes_tokens=await self._try_out(),
            more={"version": await self._version()},
        )

    async def stream(self, ask: Ask) -> AsyncGenerator[Event, None]:
        path, body = self._request(ask)
        timeout = self._aiohttp.ClientTimeout(total=ask.timeout_s)
        try:
            async with self._opened("POST", path, body, timeout, self._headers(ask)) as response:
                if response.status >= 400:
                    raise to_error(await _body(response), response.status, retry_after_s(response.headers))
                stream = Stream(response.headers.get("x-request-id", ""))
                async for line in response.content:
                    for event in stream.take(line):
                        yield event
        except asyncio.TimeoutError:
            raise AnswerError(DEADLINE, "the deadline of the request passed") from None
        except (self._aiohttp.ClientError, ValueError) as error:
            raise AnswerError("CONNECTION_LOST", str(error)) from error
        if not stream.over:
            raise AnswerError("CONNECTION_LOST", "the stream ended before its end")

    async def tokenize(self, text: str) -> tuple[int, ...] | None:
        try:
            answer = await self._control("POST", "/tokenize", {"model": self._model, "prompt": text})
        except LoadError:
            return None
        ids = answer.get("tokens")
        return tuple(ids) if isinstance(ids, list) and all(isinstance(each, int) for each in ids) else None

    async def limits(self) -> Mapping[str, Slo]:
        return {}

    async def look(self) -> ServerSample | None:
        return None

    def _request(self, ask: Ask) -> tuple[str, dict[str, Any]]:
        body: dict[str, Any] = {
            "model": self._model,
            "max_tokens": ask.max_tokens,
            "temperature": ask.temperature,
            "seed": ask.seed,
            "stream": True,
            "stream_options": {"include_usage": True},
            **self._more,
        }
        # Not of OpenAI's own API, so only where they ask for something.
        if ask.ignore_eos:
            body["ignore_eos"] = True
        if ask.principal.priority:
            body["priority"] = ask.principal.priority
        if isinstance(ask.prompt, str):
            return "/v1/completions", {**body, "prompt": ask.prompt}
        if isinstance(ask.prompt[0], int):
            return "/v1/completions", {**body, "prompt": list(ask.prompt)}
        turns = [{"role": turn.role, "content": turn.content} for turn in ask.prompt if not isinstance(turn, int)]
        return "/v1/chat/completions", {**body, "messages": turns}

    def _headers(self, ask: Ask) -> dict[str, str]:
        headers = self._keys(ask.principal.api_key or self._api_key)
        if ask.principal.traffic_class:
            headers["x-tercet-class"] = ask.principal.traffic_class
        return headers

    @staticmethod
    def _keys(api_key: str) -> dict[str, str]:
        return {"authorization": f"Bearer {api_key}"} if api_key else {}

    async def _version(self) -> str | None:
        """As vLLM says it."""
        try:
            version = (await self._control("GET", "/version")).get("version")
        except LoadError:
            return None
        return version if isinstance(version, str) else None

    async def _try_out(self) -> bool:
        """Finds out whether a prompt may be token ids, as in OpenAI's own completions, and, which is none of OpenAI's,
        whether a salt may be sent."""
        if self._more and not await self._answers({"prompt": "The", **self._more}):
            self._more = {}
        return await self._answers({"prompt": list(_SOME_TOKENS), **self._more})

    async def _answers(self, body: dict[str, Any]) -> bool:
        """Whether the server completes this. Raises LoadError if it is not there."""
        body = {"model": self._model, "max_tokens": 1, **body}
        timeout = self._aiohttp.ClientTimeout(total=_CONTROL_S)
        try:
            async with self._opened("POST", "/v1/completions", body, timeout, self._keys(self._api_key)) as response:
                await response.read()
                return bool(response.status == 200)
        except (self._aiohttp.ClientError, asyncio.TimeoutError) as error:
            raise LoadError(f"{self.name} does not answer: {error}") from error

    async def _control(self, method: str, path: str, body: dict[str, Any] | None = None) -> Mapping[str, Any]:
        """The answer to a call that no model takes part in. Raises LoadError."""
        timeout = self._aiohttp.ClientTimeout(total=_CONTROL_S)
        try:
            async with self._opened(method, path, body, timeout, self._keys(self._api_key)) as response:
                answer = await _body(response)
                if response.status >= 400:
                    raise LoadError(f"{self.name} does not answer {path}: {to_error(answer, response.status)}")
        except (self._aiohttp.ClientError, asyncio.TimeoutError, ValueError) as error:
            raise LoadError(f"{self.name} does not answer: {error or 'not in time'}") from error
        if not isinstance(answer, dict):
            raise LoadError(f"{self.name} answers {path} with what is no object")
        return answer

    def _opened(
        self, method: str, path: str, body: Any, timeout: aiohttp.ClientTimeout, headers: Mapping[str, str]
    ) -> Any:
        assert self._session is not None
        url = self._root + path
        return self._session.request(method, url, json=body, timeout=timeout, headers=headers)


async def _body(response: Any) -> Any:
    """What an answer says; its text, if it is not JSON."""
    text = await response.text()
    try:
        return json.loads(text)
    except ValueError:
        return text


def retry_after_s(headers: Mapping[str, str]) -> float | None:
    """As Tercet and OpenAI say it, in milliseconds, or as HTTP does, in seconds."""
    for name, unit_s in (("retry-after-ms", 1e-3), ("retry-after", 1.0)):
        try:
            return float(headers[name]) * unit_s
        except (KeyError, ValueError):
            continue
    return None
