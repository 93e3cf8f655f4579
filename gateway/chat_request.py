"""A chat from the wire to one in which every value is possible. Pure; knows neither models nor templates."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from tercet.errors import InvalidFieldError
from tercet.v1 import inference_pb2 as pb

from .chat import Chat, Message, Tool, ToolCall
from .json_field import read_json_object

ROLES = ("system", "developer", "user", "assistant", "tool")
MAX_MESSAGES = 10_000
MAX_TOOLS = 128
MAX_DOCUMENTS = 1024
_TOOL_NAME = re.compile(r"[A-Za-z0-9_.:/-]{1,64}")
_NO_PARAMETERS = {"type": "object", "properties": {}}


def written_texts(given: pb.Chat) -> Iterator[str]:
    """All that its client wrote."""
    for message in given.messages:
        yield from (message.role, message.content, message.tool_call_id, message.name)
        for part in message.parts:
            yield from (part.type, part.text)
        for call in message.tool_calls:
            yield from (call.id, call.name, call.arguments)
    for tool in given.tools:
        yield from (tool.name, tool.description, tool.parameters)
    yield from given.documents
    yield given.template_kwargs


def read_chat(given: pb.Chat) -> Chat:
    """Checks a chat. Raises InvalidFieldError, which names the field."""
    if not given.messages:
        raise InvalidFieldError("chat has no messages", field="chat.messages")
    for name, items, most in (
        ("messages", given.messages, MAX_MESSAGES),
        ("tools", given.tools, MAX_TOOLS),
        ("documents", given.documents, MAX_DOCUMENTS),
    ):
        if len(items) > most:
            raise InvalidFieldError(f"chat has {len(items)} {name}; at most {most} are allowed", field=f"chat.{name}")
    if not given.tools:
        _check_nothing_called(given)
    messages = tuple(_message(message, index) for index, message in enumerate(given.messages))
    tools = _tools(given.tools)
    documents = tuple(read_json_object(text, f"chat.documents[{index}]") for index, text in enumerate(given.documents))
    variables = read_json_object(given.template_kwargs, "chat.template_kwargs") if given.template_kwargs else {}
    return Chat(
        messages=messages,
        tools=tools if _may_call(given) else (),
        documents=documents,
        variables=variables,
        generation_prompt=_generation_prompt(given, messages[-1]),
        continues=given.continue_final_message,
        single_call=bool(given.forced_tool)
        or (given.HasField("parallel_tool_calls") and not given.parallel_tool_calls),
        forced=_forced(given, tools),
    )


def _message(given: pb.ChatMessage, index: int) -> Message:
    field = f"chat.messages[{index}]"
    if given.role not in ROLES:
        raise InvalidFieldError(
            f"the role of message {index} is {given.role[:64]!r}; it must be one of {', '.join(ROLES)}",
            field=f"{field}.role",
        )
    if given.tool_calls and given.role != "assistant":
        raise InvalidFieldError("only an assistant calls tools", field=f"{field}.tool_calls")
    if given.tool_call_id and given.role != "tool":
        raise InvalidFieldError("only a tool answers a call", field=f"{field}.tool_call_id")
    return Message(
        role=given.role,
        content=_content(given, field),
        tool_calls=tuple(_call(call, f"{field}.tool_calls[{i}]") for i, call in enumerate(given.tool_calls)),
        tool_call_id=given.tool_call_id,
        name=given.name,
    )


def _content(given: pb.ChatMessage, field: str) -> str:
    if not given.parts:
        return given.content
    if given.content:
        raise InvalidFieldError("give content or parts, not both", field=f"{field}.parts")
    for index, part in enumerate(given.parts):
        if part.type != "text":
            raise InvalidFieldError(
                f"a part of type {part.type[:64]!r} is not offered; only text is", field=f"{field}.parts[{index}].type"
            )
    return "\n".join(part.text for part in given.parts)


def _call(given: pb.ToolCall, field: str) -> ToolCall:
    _check_tool_name(given.name, f"{field}.name")
    arguments = read_json_object(given.arguments, f"{field}.arguments") if given.arguments else {}
    return ToolCall(given.name, arguments, given.id)


def _tools(given: Sequence[pb.Tool]) -> tuple[Tool, ...]:
    names: set[str] = set()
    tools = []
    for index, tool in enumerate(given):
        field = f"chat.tools[{index}]"
        _check_tool_name(tool.name, f"{field}.name")
        if tool.name in names:
            raise InvalidFieldError(f"two tools have the name {tool.name}", field=f"{field}.name")
        names.add(tool.name)
        parameters: dict[str, Any] = (
            read_json_object(tool.parameters, f"{field}.parameters") if tool.parameters else _NO_PARAMETERS
        )
        tools.append(Tool(tool.name, tool.description, parameters))
    return tuple(tools)


def _check_tool_name(name: str, field: str) -> None:
    if not _TOOL_NAME.fullmatch(name):
        raise InvalidFieldError(
            f"the name of a tool is {name[:64]!r}; it must be 1 to 64 letters, digits and any of _ . : / -", field=field
        )


def _check_nothing_called(given: pb.Chat) -> None:
    """Of a chat without tools. That one has to be called is refused where it is looked for."""
    if given.tool_choice == pb.TOOL_CHOICE_AUTO:
        raise InvalidFieldError("a tool may be called, and there is none", field="chat.tool_choice")
    if given.HasField("parallel_tool_calls"):
        raise InvalidFieldError(
            "parallel_tool_calls is about tools, and there is none", field="chat.parallel_tool_calls"
        )


def _may_call(given: pb.Chat) -> bool:
    """Whether the assistant is told of the tools."""
    if given.tool_choice not in pb.ToolChoice.values():
        raise InvalidFieldError(f"tool_choice is {given.tool_choice}, which is none", field="chat.tool_choice")
    return given.tool_choice != pb.TOOL_CHOICE_NONE


def _forced(given: pb.Chat, tools: Sequence[Tool]) -> tuple[Tool, ...]:
    """The tools of which it has to call one; none if it need not."""
    if given.forced_tool:
        found = tuple(tool for tool in tools if tool.name == given.forced_tool)
        if not found or not _may_call(given):
            problem = "tool_choice is none" if found else "there is no such tool"
            name = given.forced_tool[:64]
            raise InvalidFieldError(f"{name!r} has to be called, and {problem}", field="chat.forced_tool")
        return found
    if given.tool_choice != pb.TOOL_CHOICE_REQUIRED:
        return ()
    if not tools:
        raise InvalidFieldError("a tool has to be called, and there is none", field="chat.tool_choice")
    return tuple(tools)


def _generation_prompt(given: pb.Chat, last: Message) -> bool:
    if not given.continue_final_message:
        return given.add_generation_prompt if given.HasField("add_generation_prompt") else True
    field = "chat.continue_final_message"
    if given.add_generation_prompt:
        raise InvalidFieldError("add_generation_prompt begins a new turn; it excludes this", field=field)
    if last.role != "assistant" or last.tool_calls:
        raise InvalidFieldError("only an assistant's turn without tool calls can go on", field=field)
    return False
