"""/v1/completions and /v1/chat/completions: the same requests as gRPC's Generate and GenerateOnce, from JSON."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import structlog

from tercet.errors import DeadlineError, InvalidFieldError, RequestCancelledError, RequestError
from tercet.refusal_lines import RefusalLines
from tercet.tracing.context import context_of

from ..caller import Caller
from ..cancel import CancelOrigin
from ..generation import Generation
from ..generations import Generations
from ..prompt_input import ChatInput, TextInput, TokenInput
from ..prompt_logprobs import MAX_PROMPT_LOGPROBS
from ..served_model import Catalogue
from ..validate import GenerationRequest, validate_generate
from .answers import answer_in_events, answer_once, owned, together
from .asked import Asked, read_chat, read_completion
from .delivery import typed_end
from .exchange import REQUEST_ID, Exchange
from .several_requests import SeveralRequests, check_count
from .shapes import ChatShape, CompletionShape, Shape

_refusals = RefusalLines(structlog.get_logger(), "http_requests_refused")

# Headers of requests, and one of answers.
TRAFFIC_CLASS = "x-tercet-class"
DEADLINE = "x-tercet-deadline-ms"
IGNORED = "x-tercet-ignored"

MIN_BODY_BYTES = 8 * 1024 * 1024
_MAX_DEADLINE_MS = 2**31


class Generating:
    """The two endpoints that generate. `clock` gives seconds since the epoch."""

    def __init__(self, catalogue: Catalogue, generations: Generations, clock: Callable[[], float] = time.time) -> None:
        self._catalogue = catalogue
        self._generations = generations
        self._clock = clock

    @property
    def max_body_bytes(self) -> int:
        """What a request may have at most: one whose prompt is somewhat too long gets an error that says so."""
        return max(MIN_BODY_BYTES, 4 * self._generations.settings.max_prompt_bytes)

    async def completion(self, exchange: Exchange, caller: Caller, body: Mapping[str, Any]) -> None:
        """Answers one or several prompts."""
        await self._generate(exchange, caller, lambda: read_completion(body), self._completion_shape)

    async def chat(self, exchange: Exchange, caller: Caller, body: Mapping[str, Any]) -> None:
        """Answers a chat."""
        await self._generate(exchange, caller, lambda: read_chat(body), self._chat_shape)

    async def _generate(
        self, exchange: Exchange, caller: Caller, read: Callable[[], Asked], make_shape: Callable[..., Any]
    ) -> None:
        started: list[Generation] = []
        timer: asyncio.TimerHandle | None = None
        try:
            asked, requests, deadline_s = self._start(exchange, caller, read, started)
            call = SeveralRequests(len(requests), caller)
            if deadline_s is not None:
                timer = asyncio.get_running_loop().call_later(deadline_s, _end_late, started)
            await together([owned(each, each.open(partial(call.wait, index))) for index, each in enumerate(started)])
            _check_prompts(asked, requests, started)
            shape = await make_shape(asked, requests, caller)
            headers = {REQUEST_ID: shape.request_id} | ignored_header(asked.ignored)
            answer = answer_in_events if asked.stream else answer_once
            await answer(exchange, started, shape, headers, self._generations.settings.stream_stall_seconds)
        except BaseException as error:
            told = typed_end(error, request_id=exchange.request_id)
            if told is None:
                raise
            _close(started, told)
            raise told from error
        finally:
            if timer is not None:
                timer.cancel()
            for generation in started:
                generation.close()
                self._generations.leave(generation)

    def _start(
        self, exchange: Exchange, caller: Caller, read: Callable[[], Asked], started: list[Generation]
    ) -> tuple[Asked, list[GenerationRequest], float | None]:
        """Takes in the requests of a call, into `started`; with them the seconds that it may take. Raises RequestError;
        those that were taken in before are the caller's to close."""
        traffic_class, parent = exchange.headers.get(TRAFFIC_CLASS, ""), context_of(exchange.headers.items())
        try:
            self._generations.refuse_if_draining()
            asked = read()
            exchange.renamed = asked.renamed
            # As it was given, so that one that may not be is refused.
            request_id = exchange.headers.get(REQUEST_ID) or exchange.request_id
            max_bytes = self._generations.settings.max_prompt_bytes
            requests = []
            for index, message in enumerate(asked.requests):
                message.request_id = f"{request_id}-{index}" if len(asked.requests) > 1 else request_id
                message.traffic_class = traffic_class
                requests.append(
                    validate_generate(
                        message,
                        self._catalogue,
                        max_prompt_bytes=max_bytes,
                        default_max_tokens=asked.default_max_tokens,
                    )
                )
            deadline_s = _deadline_s(exchange)
            check_count(len(requests), caller)
            started += (self._generations.start(request, caller, deadline_s, parent) for request in requests)
        except RequestError as error:
            self._generations.note_refusal(caller.tenant, traffic_class, error, parent)
            if not started:
                field, request_id = error.metadata.get("field"), exchange.request_id
                _refusals.tell("call_refused", reason=error.reason, field=field, request_id=request_id)
            raise
        return asked, requests, deadline_s

    async def _chat_shape(self, asked: Asked, requests: Sequence[GenerationRequest], _caller: Caller) -> Shape:
        return ChatShape(
            _request_id(requests),
            requests[0].model,
            int(self._clock()),
            include_usage=asked.include_usage,
            logprobs=requests[0].sampling.num_logprobs,
            prompt_logprobs=asked.num_prompt_logprobs,
        )

    async def _completion_shape(self, asked: Asked, requests: Sequence[GenerationRequest], caller: Caller) -> Shape:
        prompts: list[str] = []
        for request in requests if asked.echo else ():
            prompts += [await self._prompt(request, caller)] * request.n
        return CompletionShape(
            _request_id(requests),
            requests[0].model,
            int(self._clock()),
            include_usage=asked.include_usage,
            logprobs=requests[0].sampling.num_logprobs,
            prompt_logprobs=asked.num_prompt_logprobs,
            prompts=prompts,
            prompt_alone=asked.prompt_alone,
        )

    async def _prompt(self, request: GenerationRequest, caller: Caller) -> str:
        """The text of a prompt."""
        given = request.input
        if isinstance(given, TokenInput):
            return await self._generations.tokenizing.decode(request.model, given.token_ids, caller.tenant)
        assert isinstance(given, TextInput)
        return given.text


def ignored_header(names: Sequence[str]) -> dict[str, str]:
    """Tells a client which of its parameters changed nothing, if some did."""
    return {IGNORED: ", ".join(dict.fromkeys(names))} if names else {}


def _request_id(requests: Sequence[GenerationRequest]) -> str:
    """That of the call; those of several prompts have a number behind it."""
    return requests[0].request_id.removesuffix("-0") if len(requests) > 1 else requests[0].request_id


def _close(started: Sequence[Generation], error: RequestError) -> None:
    """Ends what was started when one of it failed, which may have been closed with its own error by now."""
    if len(started) > 1:
        error = RequestCancelledError("another prompt of the same call failed")
    for generation in started:
        generation.close(error)


def _check_prompts(asked: Asked, requests: Sequence[GenerationRequest], started: Sequence[Generation]) -> None:
    """Raises InvalidFieldError if the logprobs of prompts are too many. In completions they come with each choice."""
    count = 0
    for request, generation in zip(requests, started, strict=True):
        assert generation.admission is not None
        each = 0 if asked.num_prompt_logprobs is None else 1 + asked.num_prompt_logprobs
        if asked.echo and request.sampling.num_logprobs is not None:
            each += 1 + request.sampling.num_logprobs
        num_choices = 1 if isinstance(request.input, ChatInput) else request.n
        count += num_choices * len(generation.admission.prompt) * each
    if count > MAX_PROMPT_LOGPROBS:
        raise InvalidFieldError(
            f"the choices have {count} logprobs of prompts; at most {MAX_PROMPT_LOGPROBS} are given",
            field="echo" if asked.num_prompt_logprobs is None else "prompt_logprobs",
        )


def _deadline_s(exchange: Exchange) -> float | None:
    """The time that the client gives its call. Raises InvalidFieldError."""
    text = exchange.headers.get(DEADLINE)
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) < 20 and 0 < int(text) <= _MAX_DEADLINE_MS):
        raise InvalidFieldError(f"{DEADLINE} must be milliseconds in [1, {_MAX_DEADLINE_MS}]", field=DEADLINE)
    return int(text) / 1000


def _end_late(started: Sequence[Generation]) -> None:
    for generation in started:
        generation.end(DeadlineError("the deadline passed"), CancelOrigin.DEADLINE)
