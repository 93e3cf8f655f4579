"""What a client sends and receives, as plain dataclasses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

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
