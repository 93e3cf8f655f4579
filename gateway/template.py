"""A model's chat template: a conversation to the text of a prompt. Knows no tokens."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

import jinja2
import jinja2.meta
import jinja2.nodes

from tercet.errors import InvalidFieldError, ModelError

from .chat import Chat, Message, Tool
from .template_sandbox import OverBudgetError, Refusal, budgeted, make_environment

FIELD = "chat"
# Marks the end of a last message that goes on. A noncharacter: no text needs it.
_GOES_ON = "\ufdd1"


class ChatTemplate:
    """One compiled template. `text` is its source, `variables` what it may name besides the messages, such as
    `bos_token`. Raises ModelError if it cannot be compiled; `source` says where it is from."""

    def __init__(
        self, text: str, *, source: str, variables: Mapping[str, str | None], now: Callable[[], datetime] = datetime.now
    ) -> None:
        self.text = text
        self._variables = {name: value for name, value in variables.items() if value is not None}
        environment = make_environment(now)
        try:
            tree = environment.parse(text)
            # First: what looks for names folds constants.
            self._has_developer = any(node.value == "developer" for node in tree.find_all(jinja2.nodes.Const))
            # What it asks for by name.
            self.names = frozenset(jinja2.meta.find_undeclared_variables(tree))
            self._template = environment.from_string(text)
        except jinja2.TemplateSyntaxError as error:
            raise ModelError(
                f"model: the chat template of {source} is broken at line {error.lineno}: {error.message}; "
                "set model.chat_template to a Jinja file that replaces it"
            ) from error
        except RecursionError as error:
            raise ModelError(f"model: the chat template of {source} is nested too deeply") from error

    @property
    def has_tools(self) -> bool:
        """Whether it can show tools and what became of their calls."""
        return "tools" in self.names

    def check(self, chat: Chat) -> None:
        """Raises InvalidFieldError for what the template has no use for."""
        if chat.uses_tools and not self.has_tools:
            raise InvalidFieldError(
                "the model's chat template has no tools; leave out tools, tool calls and the turns of tools",
                field=f"{FIELD}.tools" if chat.tools else f"{FIELD}.messages",
            )
        if chat.documents and "documents" not in self.names:
            raise InvalidFieldError("the model's chat template has no documents", field=f"{FIELD}.documents")
        for name in chat.variables:
            if name in _OURS or name in self._variables:
                text = f"template_kwargs may not set {name}"
            elif name not in self.names:
                text = f"the model's chat template does not ask for {name[:64]!r}"
            else:
                continue
            raise InvalidFieldError(text, field=f"{FIELD}.template_kwargs")

    def render(self, chat: Chat, *, max_chars: int) -> str:
        """The text of a conversation, ending where the assistant's turn begins, or where it goes on.

        Raises InvalidFieldError on `chat`, naming the template's line, if the template refuses or fails.
        """
        text = self._generate(self._given(chat), max_chars)
        if not chat.continues:
            return text
        before, *after = text.split(_GOES_ON)
        if len(after) != 1:
            raise InvalidFieldError(
                "the model's chat template does not show the last message once, as it is; it cannot be continued",
                field=f"{FIELD}.continue_final_message",
            )
        return before

    def _generate(self, given: Mapping[str, Any], max_chars: int) -> str:
        try:
            with budgeted(max_chars):
                parts, size = [], 0
                for part in self._template.generate(**given):
                    size += len(part)
                    if size > max_chars:
                        raise OverBudgetError(f"the text grew past {max_chars} characters")
                    parts.append(part)
                return "".join(parts)
        except Exception as error:
            raise _field_error(error) from error

    def _given(self, chat: Chat) -> dict[str, Any]:
        messages = [self._message(message) for message in chat.messages]
        if chat.continues:
            messages[-1]["content"] += _GOES_ON
        return {
            **chat.variables,
            **self._variables,
            "messages": messages,
            # None, as templates expect it, if there are none.
            "tools": [_tool(tool) for tool in chat.tools] or None,
            "documents": list(chat.documents) or None,
            "add_generation_prompt": chat.generation_prompt,
        }

    def _message(self, message: Message) -> dict[str, Any]:
        role = "system" if message.role == "developer" and not self._has_developer else message.role
        given: dict[str, Any] = {"role": role, "content": message.content}
        if message.tool_calls:
            given["tool_calls"] = [
                {
                    **({"id": call.id} if call.id else {}),
                    "type": "function",
                    "function": {"name": call.name, "arguments": call.arguments},
                }
                for call in message.tool_calls
            ]
        if message.tool_call_id:
            given["tool_call_id"] = message.tool_call_id
        if message.name:
            given["name"] = message.name
        return given


# What a conversation itself says.
_OURS = frozenset({"messages", "tools", "documents", "add_generation_prompt"})


def _tool(tool: Tool) -> dict[str, Any]:
    function = {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
    return {"type": "function", "function": function}


def _field_error(error: BaseException) -> InvalidFieldError:
    line = _template_line(error)
    if isinstance(error, Refusal):
        text = f"the chat template refuses these messages at line {line}: {error.message}"
    elif isinstance(error, RecursionError):
        text = f"the chat template failed at line {line}: it calls itself without end"
    else:
        text = f"the chat template failed at line {line}: {error}"
    return InvalidFieldError(text, field=FIELD, metadata={"template_line": str(line)})


def _template_line(error: BaseException) -> int:
    """The innermost line of the template in a traceback; jinja2 rewrites those of its own frames to template lines."""
    line, traceback = 0, error.__traceback__
    while traceback is not None:
        if traceback.tb_frame.f_code.co_filename == "<template>":
            line = traceback.tb_lineno
        traceback = traceback.tb_next
    return line
