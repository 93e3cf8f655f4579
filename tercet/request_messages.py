"""A client's requests as protos."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from tercet.errors import InvalidFieldError
from tercet.messages import ChatMessage, Options, Prompt, Tool
from tercet.v1 import inference_pb2 as pb


def to_request(prompt: Prompt, options: Options) -> pb.GenerateRequest:
    """The proto of a request. An empty sequence counts as token ids.

    Raises TypeError for a prompt that is neither text nor token ids nor ChatMessages, errors.InvalidFieldError for what
    a proto cannot hold, such as a negative top_k, and for options of chats beside another prompt.
    """
    kind, value = _kind_of(prompt)
    try:
        return pb.GenerateRequest(
            model=options.model,
            request_id=options.request_id,
            traffic_class=options.traffic_class,
            priority=options.priority,
            cache_salt=options.cache_salt,
            structured_output=_structured_output(options),
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
                bad_words=_texts(options.bad_words),
                prompt_logprobs=options.prompt_logprobs,
            ),
            stop=pb.StopConditions(
                max_tokens=options.max_tokens,
                strings=_texts(options.stop),
                include_stop_string=options.include_stop_string,
                token_ids=options.stop_token_ids,
                ignore_eos=options.ignore_eos,
                min_tokens=options.min_tokens,
            ),
            **_input(kind, value, options),
        )
    except (TypeError, ValueError) as error:
        raise InvalidFieldError(f"the request cannot be written: {error}") from error


def _structured_output(options: Options) -> pb.StructuredOutput | None:
    """What texts have to be, if anything. Raises InvalidFieldError if that is said twice."""
    forms: dict[str, Any] = {
        "json_object": pb.JsonObject() if options.json_object else None,
        "json_schema": options.json_schema or None,
        "regex": options.regex or None,
        "choice": pb.Choice(texts=options.choice) if options.choice else None,
        "ebnf": options.ebnf or None,
    }
    given = {name: value for name, value in forms.items() if value is not None}
    if len(given) > 1:
        raise InvalidFieldError(f"{' and '.join(given)} exclude each other", field="structured_output")
    return pb.StructuredOutput(**given) if given else None


def _texts(given: str | Sequence[str]) -> Sequence[str]:
    return (given,) if isinstance(given, str) else given


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


_CHAT_OPTIONS = (
    "tools", "tool_choice", "forced_tool", "parallel_tool_calls", "documents", "add_generation_prompt",
    "continue_final_message", "template_kwargs",
)  # fmt: skip
_NO_OPTIONS = Options()
# What is not said is not sent.
_TOOL_CHOICES = {
    "auto": pb.TOOL_CHOICE_UNSPECIFIED, "none": pb.TOOL_CHOICE_NONE, "required": pb.TOOL_CHOICE_REQUIRED,
}  # fmt: skip


def _input(kind: str, value: Any, options: Options) -> dict[str, Any]:
    if kind == "chat":
        return {"chat": to_chat(value, options)}
    check_no_chat(options)
    return {kind: pb.TokenIds(ids=value) if kind == "token_ids" else value}


def check_no_chat(options: Options) -> None:
    """Raises errors.InvalidFieldError for options that only chats have."""
    for name in _CHAT_OPTIONS:
        if getattr(options, name) != getattr(_NO_OPTIONS, name):
            raise InvalidFieldError(f"{name} is an option of chats; this prompt is none", field=f"chat.{name}")


def to_chat(messages: Sequence[Any], options: Options) -> pb.Chat:
    """The proto of a conversation. Raises TypeError unless all are ChatMessages, errors.InvalidFieldError for
    tools that are none, and for a tool choice that there is not."""
    if not isinstance(messages, Iterable) or not all(isinstance(message, ChatMessage) for message in messages):
        raise TypeError("prompt must be a str or a list of ChatMessage")
    for tool in options.tools:
        if not isinstance(tool, Tool):
            raise InvalidFieldError(f"tools must be Tool, one is {type(tool).__name__}", field="chat.tools")
    if options.tool_choice not in _TOOL_CHOICES:
        problem = f"tool_choice is {options.tool_choice!r}; it must be one of {', '.join(_TOOL_CHOICES)}"
        raise InvalidFieldError(problem, field="chat.tool_choice")
    return pb.Chat(
        messages=[
            pb.ChatMessage(
                role=message.role,
                content=message.content,
                parts=[pb.ContentPart(type="text", text=part) for part in message.parts],
                tool_calls=[
                    pb.ToolCall(id=call.id, name=call.name, arguments=call.arguments) for call in message.tool_calls
                ],
                tool_call_id=message.tool_call_id,
                name=message.name,
            )
            for message in messages
        ],
        tools=[
            pb.Tool(name=tool.name, description=tool.description, parameters=tool.parameters) for tool in options.tools
        ],
        tool_choice=_TOOL_CHOICES[options.tool_choice],
        forced_tool=options.forced_tool,
        parallel_tool_calls=options.parallel_tool_calls,
        documents=options.documents,
        add_generation_prompt=options.add_generation_prompt,
        continue_final_message=options.continue_final_message,
        template_kwargs=options.template_kwargs,
    )
