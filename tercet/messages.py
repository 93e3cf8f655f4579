"""What a client sends and receives, as plain dataclasses, and those received of their protos."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from tercet.v1 import inference_pb2 as pb

FinishReason = Literal["stop", "length", "tool_calls"]
ToolChoice = Literal["auto", "none", "required"]


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call of a tool. `arguments` are JSON: of an answer an object if it ended with "tool_calls", else it may break
    off."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that the model may call. `parameters` are the JSON schema of an object, as text; empty: none."""

    name: str
    description: str = ""
    parameters: str = ""


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """One turn of a conversation; `role` is system, developer, user, assistant or tool. `tool_calls` are an
    assistant's, `tool_call_id` says which of them a tool answers. `parts` are texts in the place of `content`."""

    role: str
    content: str
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str = ""
    name: str = ""
    parts: tuple[str, ...] = ()


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
    # The text ends with the stop string that matched.
    include_stop_string: bool = False
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    repetition_penalty: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    # Added to the logits of token ids.
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    # No other tokens are chosen; empty: all may be.
    allowed_token_ids: tuple[int, ...] = ()
    # That must not come; a str is one.
    bad_words: str | tuple[str, ...] = ()
    # To generate before an end token or a stop id may be chosen.
    min_tokens: int | None = None
    request_id: str = ""
    # Outputs of one prompt; number i draws with seed + i.
    n: int | None = None
    # Logprobs of each token, and of so many of the likeliest ones.
    logprobs: int | None = None
    # The same of the prompt's tokens but the first.
    prompt_logprobs: int | None = None
    # Within a class lower is served earlier and preempted later.
    priority: int | None = None
    # Empty: the tenant's default.
    traffic_class: str = ""
    # Requests share cached prompts only with those of the same salt.
    cache_salt: str = ""
    # What each text has to be, in one of five ways: an object, JSON by a JSON schema, what matches, one of, a sentence.
    json_object: bool = False
    json_schema: str = ""
    regex: str = ""
    choice: tuple[str, ...] = ()
    ebnf: str = ""
    # Of chats alone: what the model may call, whether it may or has to, and, if not empty, which one it has to.
    tools: tuple[Tool, ...] = ()
    tool_choice: ToolChoice = "auto"
    forced_tool: str = ""
    # None: it may call several at a time.
    parallel_tool_calls: bool | None = None
    # JSON objects that the answer may rest on.
    documents: tuple[str, ...] = ()
    add_generation_prompt: bool | None = None
    # The last message is the assistant's, and not over.
    continue_final_message: bool = False
    # A JSON object of other variables of the chat template.
    template_kwargs: str = ""


@dataclass(frozen=True, slots=True)
class Accepted:
    """The request was admitted. `seed` is the first output's; number i draws with seed + i modulo 2^64."""

    request_id: str
    model: str
    model_revision: str
    # Requests of the same tenant and class ahead of this one, 0 is next; None: not said, as of GenerateOnce.
    queue_position: int | None
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
class PromptLogprobs:
    """Tokens of the prompt behind its first `token_offset`, and the logprobs of each; they come in pieces."""

    token_offset: int
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...]


@dataclass(frozen=True, slots=True)
class ToolCallDelta:
    """More of call number `index` of an output; only its first delta has `id` and `name`."""

    index: int
    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Delta:
    """More text or calls of one output, and the ids of exactly their tokens, with their logprobs if asked for."""

    text: str
    token_ids: tuple[int, ...]
    output_index: int = 0
    logprobs: tuple[TokenLogprobs, ...] = ()
    tool_calls: tuple[ToolCallDelta, ...] = ()


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


Event = Accepted | PromptLogprobs | Delta | Finished


@dataclass(frozen=True, slots=True)
class Output:
    """One whole output; its end as in OutputEnd, `logprobs` as in Delta."""

    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    stop: str | int | None
    logprobs: tuple[TokenLogprobs, ...] = ()
    tool_calls: tuple[ToolCall, ...] = ()


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole generation. `outputs` has at least one, by index; `text`, `token_ids` and `tool_calls` are those of the
    first. `prompt_logprobs` are of all tokens of the prompt but the first, if they were asked for."""

    outputs: tuple[Output, ...]
    accepted: Accepted
    finished: Finished
    prompt_logprobs: PromptLogprobs | None = None

    @property
    def text(self) -> str:
        return self.outputs[0].text

    @property
    def token_ids(self) -> tuple[int, ...]:
        return self.outputs[0].token_ids

    @property
    def tool_calls(self) -> tuple[ToolCall, ...]:
        return self.outputs[0].tool_calls


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
            tuple(ToolCallDelta(call.index, call.id, call.name, call.arguments) for call in event.delta.tool_calls),
        )
    if kind == "prompt_logprobs":
        return _prompt_logprobs(event.prompt_logprobs)
    if kind == "finished":
        return _finished(event.finished.outputs, event.finished.usage, event.finished.timings)
    return None


def from_result(result: pb.GenerateResult) -> Answer:
    """The answer of GenerateOnce."""
    accepted = Accepted(
        result.request_id, result.model, result.model_revision, None, result.seed, result.usage.prompt_tokens
    )
    finished = _finished([output.end for output in result.outputs], result.usage, result.timings)
    written = [
        (
            output.text,
            tuple(output.token_ids),
            from_logprobs(output.logprobs),
            tuple(ToolCall(call.id, call.name, call.arguments) for call in output.tool_calls),
        )
        for output in result.outputs
    ] or [("", (), (), ())]
    prompt = _prompt_logprobs(result.prompt_logprobs) if result.HasField("prompt_logprobs") else None
    return to_answer(written, accepted, finished, prompt)


def joined(deltas: Iterable[ToolCallDelta]) -> tuple[ToolCall, ...]:
    """The calls of an output, of all its deltas."""
    calls: dict[int, list[ToolCallDelta]] = {}
    for delta in deltas:
        calls.setdefault(delta.index, []).append(delta)
    return tuple(
        ToolCall(parts[0].id, parts[0].name, "".join(part.arguments for part in parts)) for parts in calls.values()
    )


def from_logprobs(logprobs: Iterable[pb.TokenLogprobs]) -> tuple[TokenLogprobs, ...]:
    """The logprobs of tokens."""
    return tuple(
        TokenLogprobs(item.logprob, tuple(zip(item.top_token_ids, item.top_logprobs, strict=False)))
        for item in logprobs
    )


def to_answer(
    written: Iterable[tuple[str, tuple[int, ...], tuple[TokenLogprobs, ...], tuple[ToolCall, ...]]],
    accepted: Accepted,
    finished: Finished,
    prompt_logprobs: PromptLogprobs | None = None,
) -> Answer:
    """The answer of outputs as (text, token ids, logprobs, calls), one for each end."""
    outputs = tuple(
        Output(text, token_ids, end.finish_reason, end.stop, logprobs, calls)
        for (text, token_ids, logprobs, calls), end in zip(written, finished.outputs, strict=True)
    )
    return Answer(outputs, accepted, finished, prompt_logprobs)


def _prompt_logprobs(prompt: pb.PromptLogprobs) -> PromptLogprobs:
    return PromptLogprobs(prompt.token_offset, tuple(prompt.token_ids), from_logprobs(prompt.logprobs))


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


_FINISH_REASONS: Mapping[int, FinishReason] = {
    pb.FINISH_REASON_STOP: "stop",
    pb.FINISH_REASON_LENGTH: "length",
    pb.FINISH_REASON_TOOL_CALLS: "tool_calls",
}


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
