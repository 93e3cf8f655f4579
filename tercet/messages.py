"""What a client sends and receives, as plain dataclasses: the edge where public protos end."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from tercet.errors import InvalidFieldError
from tercet.ledger.row import Cancellation, Cancelled
from tercet.v1 import inference_pb2 as pb
from tercet.v1 import models_pb2, operations_pb2

FinishReason = Literal["stop", "length"]


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """One turn of a conversation; `role` is system, user or assistant."""

    role: str
    content: str


Prompt = str | Sequence[int] | Sequence[ChatMessage]


@dataclass(frozen=True, slots=True)
class Options:
    """How to generate. None means: not sent, the model's default holds. A `stop` that is a str is one stop string."""

    model: str = ""
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    max_tokens: int | None = None
    stop: str | tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    repetition_penalty: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    # Added to the logits of token ids.
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    # No other tokens are chosen; empty: all may be.
    allowed_token_ids: tuple[int, ...] = ()
    # To generate before an end token or a stop id may be chosen.
    min_tokens: int | None = None
    request_id: str = ""
    # Outputs of one prompt; number i draws with seed + i.
    n: int | None = None
    # Logprobs of each token, and of so many of the likeliest ones.
    logprobs: int | None = None
    # Within a class lower is served earlier and preempted later.
    priority: int | None = None
    # Empty: the gateway's default.
    traffic_class: str = ""
    # Requests share cached prompts only with those of the same salt.
    cache_salt: str = ""


@dataclass(frozen=True, slots=True)
class Accepted:
    """The request was admitted. `seed` is the first output's; number i draws with seed + i modulo 2^64."""

    request_id: str
    model: str
    model_revision: str
    queue_position: int
    seed: int
    prompt_tokens: int
    # From admission to the first token, by forecast; None: nothing was known.
    forecast_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """The logprob of a token, and the (token id, logprob) of the likeliest ones at its place, the likeliest first."""

    logprob: float
    top: tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True)
class Delta:
    """More text of one output, and the ids of exactly its tokens, with their logprobs if asked for."""

    text: str
    token_ids: tuple[int, ...]
    output_index: int = 0
    logprobs: tuple[TokenLogprobs, ...] = ()


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens and KV blocks a request consumed. What the mesh did not say in time is None."""

    prompt_tokens: int
    cached_tokens: int | None
    completion_tokens: int
    kv_blocks_used: int | None
    kv_blocks_freed: int | None


@dataclass(frozen=True, slots=True)
class Timings:
    """Where the time of a request went, in seconds, as the gateway and scheduler saw it; None: not said in time."""

    admission_seconds: float
    time_to_first_token_seconds: float
    total_seconds: float
    queue_seconds: float | None


@dataclass(frozen=True, slots=True)
class OutputEnd:
    """How one output ended. `stop` is the stop string or token id that matched, None for the model's own end token."""

    finish_reason: FinishReason
    stop: str | int | None


@dataclass(frozen=True, slots=True)
class Finished:
    """The end. `outputs` has at least one, by index; `finish_reason` and `stop` are those of the first."""

    outputs: tuple[OutputEnd, ...]
    usage: Usage
    timings: Timings

    @property
    def finish_reason(self) -> FinishReason:
        return self.outputs[0].finish_reason

    @property
    def stop(self) -> str | int | None:
        return self.outputs[0].stop


Event = Accepted | Delta | Finished


@dataclass(frozen=True, slots=True)
class Output:
    """One whole output; its end as in OutputEnd, `logprobs` as in Delta."""

    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    stop: str | int | None
    logprobs: tuple[TokenLogprobs, ...] = ()


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole generation. `outputs` has at least one, by index; `text` and `token_ids` are those of the first."""

    outputs: tuple[Output, ...]
    accepted: Accepted
    finished: Finished

    @property
    def text(self) -> str:
        return self.outputs[0].text

    @property
    def token_ids(self) -> tuple[int, ...]:
        return self.outputs[0].token_ids


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """A served model."""

    name: str
    served_names: tuple[str, ...]
    revision: str
    max_model_len: int
    vocab_size: int
    ready: bool
    chat: bool


@dataclass(frozen=True, slots=True)
class WorkerInfo:
    """One worker as the scheduler sees it; blocks_total = free + cached + used."""

    address: str
    live: bool
    model: str
    device: str
    sequences: int
    blocks_total: int
    blocks_free: int
    blocks_cached: int
    blocks_used: int
    steps: int
    tokens: int
    # Blocks that host memory can take from preempted sequences, and those taken.
    swap_blocks_total: int = 0
    swap_blocks_used: int = 0
    draining: bool = False


@dataclass(frozen=True, slots=True)
class FleetInfo:
    """The state of the mesh."""

    requests_waiting: int
    requests_running: int
    requests_finished: int
    preemptions: int
    workers: tuple[WorkerInfo, ...]
    # Of the preemptions, those that moved blocks to host memory.
    swaps: int = 0
    # Since their clients do not read.
    requests_paused: int = 0


def to_request(prompt: Prompt, options: Options) -> pb.GenerateRequest:
    """The proto of a request. An empty sequence counts as token ids.

    Raises TypeError for a prompt that is neither text nor token ids nor ChatMessages, errors.InvalidFieldError for what
    a proto cannot hold, such as a negative top_k.
    """
    kind, value = _kind_of(prompt)
    try:
        return pb.GenerateRequest(
            model=options.model,
            request_id=options.request_id,
            traffic_class=options.traffic_class,
            priority=options.priority,
            cache_salt=options.cache_salt,
            sampling=pb.SamplingParams(
                temperature=options.temperature,
                top_p=options.top_p,
                top_k=options.top_k,
                min_p=options.min_p,
                seed=options.seed,
                n=options.n,
                logprobs=options.logprobs,
                repetition_penalty=options.repetition_penalty,
                frequency_penalty=options.frequency_penalty,
                presence_penalty=options.presence_penalty,
                logit_bias=[pb.LogitBias(token_id=key, bias=bias) for key, bias in options.logit_bias.items()],
                allowed_token_ids=options.allowed_token_ids,
            ),
            stop=pb.StopConditions(
                max_tokens=options.max_tokens,
                strings=(options.stop,) if isinstance(options.stop, str) else options.stop,
                token_ids=options.stop_token_ids,
                ignore_eos=options.ignore_eos,
                min_tokens=options.min_tokens,
            ),
            **_input(kind, value),
        )
    except (TypeError, ValueError) as error:
        raise InvalidFieldError(f"the request cannot be written: {error}") from error


def _kind_of(prompt: object) -> tuple[Literal["prompt", "chat", "token_ids"], Any]:
    """Which input of the contract a prompt is, and its value. Raises TypeError if none."""
    if isinstance(prompt, str):
        return "prompt", prompt
    if not isinstance(prompt, Iterable) or isinstance(prompt, bytes | bytearray | memoryview | Mapping):
        raise TypeError(f"{_PROMPT_IS}, is {type(prompt).__name__}")
    items = list(prompt)
    if items and all(isinstance(item, ChatMessage) for item in items):
        return "chat", items
    try:
        return "token_ids", [operator.index(item) for item in items]
    except TypeError:
        kinds = sorted({type(item).__name__ for item in items})
        raise TypeError(f"{_PROMPT_IS}, is a {type(prompt).__name__} of {', '.join(kinds)}") from None


_PROMPT_IS = "prompt must be a str, a list of token ids, or a list of ChatMessage"


def _input(kind: str, value: Any) -> dict[str, Any]:
    if kind == "chat":
        return {"chat": to_chat(value)}
    return {kind: pb.TokenIds(ids=value) if kind == "token_ids" else value}


def to_chat(messages: Sequence[Any]) -> pb.Chat:
    """The proto of a conversation. Raises TypeError unless all are ChatMessages."""
    if not isinstance(messages, Iterable) or not all(isinstance(message, ChatMessage) for message in messages):
        raise TypeError("prompt must be a str or a list of ChatMessage")
    return pb.Chat(messages=[pb.ChatMessage(role=message.role, content=message.content) for message in messages])


def from_event(event: pb.GenerateEvent) -> Event | None:
    """The event of a proto; None for a kind this version does not know."""
    kind = event.WhichOneof("event")
    if kind == "accepted":
        return _accepted(event.accepted)
    if kind == "delta":
        return Delta(
            event.delta.text,
            tuple(event.delta.token_ids),
            event.delta.output_index,
            from_logprobs(event.delta.logprobs),
        )
    if kind == "finished":
        return _finished(event.finished.outputs, event.finished.usage, event.finished.timings)
    return None


def from_result(result: pb.GenerateResult) -> Answer:
    """The answer of GenerateOnce."""
    accepted = Accepted(
        result.request_id, result.model, result.model_revision, 0, result.seed, result.usage.prompt_tokens
    )
    finished = _finished([output.end for output in result.outputs], result.usage, result.timings)
    written = [(output.text, tuple(output.token_ids), from_logprobs(output.logprobs)) for output in result.outputs] or [
        ("", (), ())
    ]
    return to_answer(written, accepted, finished)


def from_logprobs(logprobs: Iterable[pb.TokenLogprobs]) -> tuple[TokenLogprobs, ...]:
    """The logprobs of tokens."""
    return tuple(
        TokenLogprobs(item.logprob, tuple(zip(item.top_token_ids, item.top_logprobs, strict=False)))
        for item in logprobs
    )


def to_answer(
    written: Iterable[tuple[str, tuple[int, ...], tuple[TokenLogprobs, ...]]], accepted: Accepted, finished: Finished
) -> Answer:
    """The answer of outputs as (text, token ids, logprobs), one for each end."""
    outputs = tuple(
        Output(text, token_ids, end.finish_reason, end.stop, logprobs)
        for (text, token_ids, logprobs), end in zip(written, finished.outputs, strict=True)
    )
    return Answer(outputs, accepted, finished)


def from_model(model: models_pb2.Model) -> ModelInfo:
    """A served model."""
    return ModelInfo(
        name=model.name,
        served_names=tuple(model.served_names),
        revision=model.revision,
        max_model_len=model.max_model_len,
        vocab_size=model.vocab_size,
        ready=model.ready,
        chat=model.chat,
    )


def from_cancellation(each: operations_pb2.Cancellation) -> Cancelled:
    """A cancel."""
    return Cancelled(
        each.request_id,
        each.tenant,
        each.traffic_class,
        Cancellation(
            output_index=each.output_index if each.HasField("output_index") else None,
            origin=each.origin,
            cancelled_at=each.cancelled_at,
            states=tuple(each.states),
            release_s=each.release_seconds if each.HasField("release_seconds") else None,
            freed_s=each.freed_seconds if each.HasField("freed_seconds") else None,
            done_s=each.done_seconds if each.HasField("done_seconds") else None,
            blocks_freed=each.blocks_freed if each.HasField("blocks_freed") else None,
            wasted_tokens=each.wasted_tokens if each.HasField("wasted_tokens") else None,
            wasted_gpu_s=each.wasted_gpu_seconds if each.HasField("wasted_gpu_seconds") else None,
        ),
    )


def from_fleet(fleet: operations_pb2.Fleet) -> FleetInfo:
    """The state of the mesh."""
    workers = tuple(
        WorkerInfo(
            address=worker.address,
            live=worker.live,
            model=worker.model,
            device=worker.device,
            sequences=worker.sequences,
            blocks_total=worker.blocks_total,
            blocks_free=worker.blocks_free,
            blocks_cached=worker.blocks_cached,
            blocks_used=worker.blocks_used,
            steps=worker.steps,
            tokens=worker.tokens,
            swap_blocks_total=worker.swap_blocks_total,
            swap_blocks_used=worker.swap_blocks_used,
            draining=worker.draining,
        )
        for worker in fleet.workers
    )
    return FleetInfo(
        requests_waiting=fleet.requests_waiting,
        requests_running=fleet.requests_running,
        requests_finished=fleet.requests_finished,
        preemptions=fleet.preemptions,
        workers=workers,
        swaps=fleet.swaps,
        requests_paused=fleet.requests_paused,
    )


def _accepted(accepted: pb.Accepted) -> Accepted:
    return Accepted(
        request_id=accepted.request_id,
        model=accepted.model,
        model_revision=accepted.model_revision,
        queue_position=accepted.queue_position,
        seed=accepted.seed,
        prompt_tokens=accepted.prompt_tokens,
        forecast_seconds=accepted.forecast_seconds if accepted.HasField("forecast_seconds") else None,
    )


_FINISH_REASONS: Mapping[int, FinishReason] = {pb.FINISH_REASON_STOP: "stop", pb.FINISH_REASON_LENGTH: "length"}


def _output_end(end: pb.OutputEnd) -> OutputEnd:
    matched = end.WhichOneof("stop")
    return OutputEnd(_FINISH_REASONS.get(end.reason, "stop"), getattr(end, matched) if matched else None)


def _finished(ends: Iterable[pb.OutputEnd], usage: pb.Usage, timings: pb.Timings) -> Finished:
    known = not usage.incomplete
    return Finished(
        outputs=tuple(_output_end(end) for end in ends) or (_output_end(pb.OutputEnd()),),
        usage=Usage(
            prompt_tokens=usage.prompt_tokens,
            cached_tokens=usage.cached_tokens if known else None,
            completion_tokens=usage.completion_tokens,
            kv_blocks_used=usage.kv_blocks_used if known else None,
            kv_blocks_freed=usage.kv_blocks_freed if known else None,
        ),
        timings=Timings(
            admission_seconds=timings.admission_seconds,
            time_to_first_token_seconds=timings.time_to_first_token_seconds,
            total_seconds=timings.total_seconds,
            queue_seconds=timings.queue_seconds if known else None,
        ),
    )
