"""A conversation, and what its template may know besides it. Plain values; knows no template and no tokens."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from .json_field import texts_in, with_texts


@dataclass(frozen=True, slots=True)
class ToolCall:
    """What an assistant called. `arguments` are JSON."""

    name: str
    arguments: Mapping[str, Any]
    id: str = ""


@dataclass(frozen=True, slots=True)
class Message:
    """One turn. What is empty was not given."""

    role: str
    content: str
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str = ""
    name: str = ""


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that may be called. `parameters` are a JSON schema."""

    name: str
    description: str
    parameters: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Chat:
    """Messages, at least one, and what the prompt is made of besides. `tools` are those that may be called, `documents`
    and `variables` JSON. An answer has to call one of `forced`, if there are any. With `single_call` it calls once at
    most, with `continues` the last message is an assistant's that goes on."""

    messages: tuple[Message, ...]
    tools: tuple[Tool, ...] = ()
    documents: tuple[Mapping[str, Any], ...] = ()
    variables: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    generation_prompt: bool = True
    continues: bool = False
    single_call: bool = False
    forced: tuple[Tool, ...] = ()

    @property
    def uses_tools(self) -> bool:
        """Whether there are tools to call, or some were called before."""
        return bool(self.tools) or any(message.tool_calls or message.role == "tool" for message in self.messages)

    def texts(self) -> Iterator[str]:
        """Every text that its client wrote, but for roles, which are ours."""
        for message in self.messages:
            yield message.content
            yield message.tool_call_id
            yield message.name
            for call in message.tool_calls:
                yield call.id
                yield call.name
                yield from texts_in(call.arguments)
        for tool in self.tools:
            yield tool.name
            yield tool.description
            yield from texts_in(tool.parameters)
        for document in self.documents:
            yield from texts_in(document)
        yield from texts_in(self.variables)

    def with_texts(self, change: Callable[[str], str]) -> Chat:
        """The same chat with each of its `texts` changed."""
        return dataclasses.replace(
            self,
            messages=tuple(_with_texts(message, change) for message in self.messages),
            tools=tuple(
                Tool(change(tool.name), change(tool.description), with_texts(tool.parameters, change))
                for tool in self.tools
            ),
            documents=tuple(with_texts(document, change) for document in self.documents),
            variables=with_texts(self.variables, change),
        )


def _with_texts(message: Message, change: Callable[[str], str]) -> Message:
    calls = tuple(
        ToolCall(change(call.name), with_texts(call.arguments, change), change(call.id)) for call in message.tool_calls
    )
    return Message(message.role, change(message.content), calls, change(message.tool_call_id), change(message.name))
