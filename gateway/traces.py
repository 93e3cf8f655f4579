"""Spans of one request at the gateway: of the whole, of the tokenizer, of the wait for the scheduler's word, and of the
stream of tokens. Knows no text but where it is told to keep some.
"""

from __future__ import annotations

from tercet.errors import RequestError
from tercet.ledger.row import Outcome, Row
from tercet.tracing.context import TraceContext
from tercet.tracing.harmless import harmless
from tercet.tracing.span import Content, Kind, Message, Span, Value, token_bucket
from tercet.tracing.span_clock import SpanClock
from tercet.tracing.tracer import Tracer

from .prompt_input import ChatInput, TextInput
from .stages import Stage, StageClock
from .stream import Delta, Stream
from .validate import GenerationRequest

PROVIDER = "tercet"
# Of a conversation the latest so many texts as long as one may be.
_MAX_TEXTS = 4
# What nobody has to mend.
_NO_ERRORS = (Outcome.COMPLETED, Outcome.CANCELLED)


class Trace:
    """A request that is traced, below `parent` if its client has a context. `context` is that of its own span."""

    def __init__(
        self, tracer: Tracer, parent: TraceContext | None, context: TraceContext, request: GenerationRequest
    ) -> None:
        self.context = context
        self._tracer = tracer
        self._parent_id = 0 if parent is None else parent.span_id
        self._request = request
        self._clock = SpanClock()
        # Of each output what is kept of its text.
        self._heard: dict[int, str] = {}

    @harmless
    def hear(self, delta: Delta) -> None:
        """More of an output."""
        if self._tracer.content_chars and delta.text:
            text = self._heard.get(delta.output_index, "")
            self._heard[delta.output_index] = (text + delta.text)[: self._tracer.content_chars]

    @harmless
    def close(self, row: Row, stages: StageClock, stream: Stream | None, arrived_at: float, ended_at: float) -> None:
        """Nothing more comes of it; `row` is what the ledger has. Times are seconds on the monotonic clock."""
        self._put_stages(stages, stream, ended_at)
        content = None
        if self._tracer.content_chars:
            answers = tuple(Message("assistant", text) for _, text in sorted(self._heard.items()))
            content = Content(_said(self._request, self._tracer.content_chars), answers)
        self._tracer.put(
            Span(
                f"{_operation(self._request)} {row.model}",
                self.context,
                self._parent_id,
                self._clock.at_ns(arrived_at),
                self._clock.at_ns(ended_at),
                {**_asked(self._request), **_facts(row)},
                Kind.SERVER,
                error=None if row.outcome in _NO_ERRORS else row.reason,
                content=content,
            )
        )

    def _put_stages(self, stages: StageClock, stream: Stream | None, ended_at: float) -> None:
        first_at = None if stream is None else stream.first_token_at
        spans = [
            ("tokenize", stages.began_at(Stage.TOKENIZE), stages.began_at(Stage.PREPARE)),
            ("admission", stages.began_at(Stage.ADMISSION), stages.began_at(Stage.WAITING)),
            ("stream", first_at, None),
        ]
        for name, since, until in spans:
            if since is not None:
                context = self._tracer.child(self.context)
                until = ended_at if until is None else until
                since_ns, until_ns = self._clock.at_ns(since), self._clock.at_ns(until)
                self._tracer.put(Span(name, context, self.context.span_id, since_ns, until_ns, {}))


def begin_trace(tracer: Tracer, parent: TraceContext | None, request: GenerationRequest) -> Trace | None:
    """The trace of a request; None if it is not traced."""
    context = tracer.begin(parent)
    return None if context is None else Trace(tracer, parent, context, request)


@harmless
def trace_refusal(tracer: Tracer, parent: TraceContext | None, error: RequestError) -> None:
    """A call was refused before there was a request."""
    context = tracer.begin(parent)
    if context is not None:
        now_ns = SpanClock().now_ns()
        facts: dict[str, Value] = {"tercet.outcome": Outcome.REFUSED.value, "tercet.reason": error.reason}
        parent_id = 0 if parent is None else parent.span_id
        tracer.put(Span("refused", context, parent_id, now_ns, now_ns, facts, Kind.SERVER, error=error.reason))


def _operation(request: GenerationRequest) -> str:
    return "chat" if isinstance(request.input, ChatInput) else "text_completion"


def _asked(request: GenerationRequest) -> dict[str, Value]:
    """What a request asks for, in the names of the conventions for generative AI; of its texts nothing."""
    sampling, penalties = request.sampling, request.penalties
    asked: dict[str, Value] = {
        "gen_ai.operation.name": _operation(request),
        "gen_ai.provider.name": PROVIDER,
        "gen_ai.request.model": request.model.name,
        "gen_ai.response.model": request.model.name,
        "gen_ai.output.type": "text" if request.structure is None else "json",
        "gen_ai.request.choice.count": request.n,
        "gen_ai.request.temperature": sampling.temperature,
        "gen_ai.request.top_p": sampling.top_p,
        "gen_ai.request.top_k": sampling.top_k,
        "gen_ai.request.frequency_penalty": penalties.frequency,
        "gen_ai.request.presence_penalty": penalties.presence,
    }
    if request.stop.max_tokens is not None:
        asked["gen_ai.request.max_tokens"] = request.stop.max_tokens
    return asked


def _facts(row: Row) -> dict[str, Value]:
    """What became of it."""
    tokens = row.generated_tokens or 0
    facts: dict[str, Value | None] = {
        "gen_ai.response.id": row.request_id,
        "gen_ai.usage.input_tokens": row.prompt_tokens,
        "gen_ai.usage.output_tokens": tokens,
        "gen_ai.usage.cache_read.input_tokens": row.cached_tokens,
        "gen_ai.response.finish_reasons": tuple(row.reason.split(",")) if row.outcome is Outcome.COMPLETED else None,
        "gen_ai.response.time_to_first_chunk": row.ttft_s,
        "tercet.request.id": row.request_id,
        "tercet.tenant": row.tenant,
        "tercet.class": row.traffic_class,
        "tercet.model.revision": row.revision,
        "tercet.input_bucket": token_bucket(row.prompt_tokens),
        "tercet.output_bucket": token_bucket(tokens),
        "tercet.outcome": row.outcome.value,
        "tercet.reason": row.reason,
        "tercet.slo": row.slo,
        "tercet.queue_s": row.queue_s,
        "tercet.time_per_output_token_s": row.tpot_s,
        "tercet.wasted_tokens": row.wasted_tokens,
        "tercet.gpu_s": row.gpu_s,
    }
    return {name: value for name, value in facts.items() if value is not None}


def _said(request: GenerationRequest, max_chars: int) -> tuple[Message, ...]:
    """The texts of a request, the latest of a long conversation."""
    given = request.input
    if isinstance(given, TextInput):
        return (Message("user", given.text[:max_chars]),)
    if not isinstance(given, ChatInput):
        return ()
    latest: list[Message] = []
    left = _MAX_TEXTS * max_chars
    for message in reversed(given.chat.messages):
        if left <= 0:
            break
        text = message.content[:max_chars]
        latest.append(Message(message.role, text))
        # One without text counts, too.
        left -= max(len(text), 1)
    return tuple(reversed(latest))
