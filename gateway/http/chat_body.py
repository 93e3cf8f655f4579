"""A chat as OpenAI's clients write it, with vLLM's further fields, as one of tercet.v1. Pure; knows no templates."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tercet.errors import InvalidFieldError
from tercet.v1 import inference_pb2 as pb

from .fields import Fields

_MESSAGES_DO_NOT_OFFER: dict[str, Any] = {"function_call": (), "audio": (), "refusal": (), "annotations": ([],)}
_TOOL_CHOICES: Mapping[str, pb.ToolChoice] = {
    "auto": pb.TOOL_CHOICE_AUTO,
    "none": pb.TOOL_CHOICE_NONE,
    "required": pb.TOOL_CHOICE_REQUIRED,
}


def read_chat_input(fields: Fields, ignored: list[str], *, structured: bool = False) -> pb.Chat:
    """The messages, and what their template is told besides; what changes nothing in them is added to `ignored`.
    `structured`: the answer has to be something, if it calls no tools. Raises InvalidFieldError."""
    messages = fields.members("messages")
    if messages is None:
        raise InvalidFieldError("messages is required", field="messages")
    chat = pb.Chat(
        messages=[
            _read_message(fields.as_object(f"messages[{index}]", each), ignored) for index, each in enumerate(messages)
        ],
        documents=[
            fields.as_json(f"documents[{index}]", each) for index, each in enumerate(fields.members("documents") or ())
        ],
        add_generation_prompt=fields.flag("add_generation_prompt"),
        continue_final_message=fields.flag("continue_final_message"),
        template_kwargs=fields.json("chat_template_kwargs"),
    )
    _read_tools(fields, ignored, chat, structured=structured)
    return chat


def _read_tools(fields: Fields, ignored: list[str], chat: pb.Chat, *, structured: bool) -> None:
    """Adds the tools of a chat, and whether they may be called."""
    tools = fields.members("tools")
    if not tools:
        if fields.take("tool_choice") not in (None, "none"):
            raise InvalidFieldError("tool_choice needs tools", field="tool_choice")
        ignored += fields.ignored(("parallel_tool_calls",))
        return
    _read_tool_choice(fields, chat)
    for index, each in enumerate(tools):
        tool, strict = _read_tool(fields.as_object(f"tools[{index}]", each))
        chat.tools.append(tool)
        # Where there is a grammar calls follow their schemas anyhow, elsewhere they are not held to them.
        if strict and not (structured or chat.forced_tool or chat.tool_choice == pb.TOOL_CHOICE_REQUIRED):
            ignored.append("tools.strict")
    parallel = fields.flag("parallel_tool_calls")
    if parallel is not None:
        chat.parallel_tool_calls = parallel


def _read_tool_choice(fields: Fields, chat: pb.Chat) -> None:
    given = fields.take("tool_choice")
    if isinstance(given, dict):
        choice = fields.as_object("tool_choice", given)
        function = _read_function(choice)
        chat.forced_tool = function.required_text("name")
        function.refuse_rest()
        choice.refuse_rest()
    elif isinstance(given, str) and given in _TOOL_CHOICES:
        chat.tool_choice = _TOOL_CHOICES[given]
    elif given is not None:
        names = ", ".join(_TOOL_CHOICES)
        raise InvalidFieldError(f"tool_choice must be one of {names}, or a function by its name", field="tool_choice")


def _read_tool(fields: Fields) -> tuple[pb.Tool, bool]:
    """A tool, and whether its arguments have to follow its schema."""
    function = _read_function(fields)
    fields.refuse_rest()
    tool = pb.Tool(
        name=function.required_text("name"),
        description=function.text("description"),
        parameters=function.json("parameters"),
    )
    strict = function.flag("strict") or False
    function.refuse_rest()
    return tool, strict


def _read_function(fields: Fields) -> Fields:
    """The function that a tool, a call or a choice is about: there are no others."""
    fields.only_type("function")
    function = fields.inner("function")
    if function is None:
        raise fields.missing("function")
    return function


def _read_message(fields: Fields, ignored: list[str]) -> pb.ChatMessage:
    role = fields.required_text("role")
    fields.only(_MESSAGES_DO_NOT_OFFER)
    calls = [
        _read_call(fields.as_object(f"tool_calls[{index}]", each), ignored)
        for index, each in enumerate(fields.members("tool_calls") or ())
    ]
    message = pb.ChatMessage(
        role=role,
        content=_read_content(fields, optional=bool(calls)),
        tool_calls=calls,
        tool_call_id=fields.text("tool_call_id"),
        name=fields.text("name"),
    )
    fields.refuse_rest()
    return message


def _read_call(fields: Fields, ignored: list[str]) -> pb.ToolCall:
    function = _read_function(fields)
    call = pb.ToolCall(id=fields.text("id"), name=function.required_text("name"), arguments=function.text("arguments"))
    # Who has put a call together from its pieces sends this back.
    if fields.ignored(("index",)):
        ignored.append("messages.tool_calls.index")
    function.refuse_rest()
    fields.refuse_rest()
    return call


def _read_content(fields: Fields, *, optional: bool) -> str:
    """A message's text; its parts, if it has several, as lines."""
    content = fields.take("content")
    if content is None:
        if optional:
            return ""
        raise fields.missing("content")
    if isinstance(content, str):
        return fields.as_text("content", content)
    if not isinstance(content, list):
        path = fields.path("content")
        raise InvalidFieldError(f"{path} must be a text or a list of parts", field=path)
    texts = []
    for index, each in enumerate(content):
        part = fields.as_object(f"content[{index}]", each)
        part.only_type("text")
        texts.append(part.required_text("text"))
        part.refuse_rest()
    return "\n".join(texts)
