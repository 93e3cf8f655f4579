"""The turns of a chat, kept between requests."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from tercet.messages import Answer, ChatMessage, ToolCall


class Conversation:
    """What was said so far, the oldest first: the system's turn, if `system` is not empty, then `messages`.

    A model sees all of it with each request, so it grows until it no longer fits (errors.PromptTooLongError).
    """

    def __init__(self, system: str = "", messages: Iterable[ChatMessage] = ()) -> None:
        self._messages = [*([ChatMessage("system", system)] if system else []), *messages]

    @property
    def messages(self) -> tuple[ChatMessage, ...]:
        """All turns: a prompt."""
        return tuple(self._messages)

    def add(self, message: ChatMessage) -> None:
        """One more turn, of whomever."""
        self._messages.append(message)

    def add_user(self, text: str) -> None:
        """The user's turn."""
        self.add(ChatMessage("user", text))

    def add_answer(self, answer: Answer) -> None:
        """The assistant's turn: the first output of an answer, with its calls of tools."""
        self.add(ChatMessage("assistant", answer.text, answer.tool_calls))

    def extend_answer(self, answer: Answer) -> None:
        """The same for an answer that goes on with the last turn. Raises ValueError if that is no assistant's."""
        if not self._messages or self._messages[-1].role != "assistant":
            raise ValueError("there is no assistant's turn to go on with")
        last = self._messages[-1]
        self._messages[-1] = dataclasses.replace(
            last, content=last.content + answer.text, tool_calls=(*last.tool_calls, *answer.tool_calls)
        )

    def add_tool_result(self, call: ToolCall, text: str) -> None:
        """What came of a call of a tool."""
        self.add(ChatMessage("tool", text, tool_call_id=call.id, name=call.name))

    def asking(self, text: str | None) -> tuple[ChatMessage, ...]:
        """All turns, and the user's if `text` is one."""
        return self.messages if text is None else (*self.messages, ChatMessage("user", text))

    def take(self, text: str | None, answer: Answer, *, continues: bool) -> None:
        """What `asking` asked and what came of it. `continues`: the answer goes on with the last turn."""
        if text is not None:
            self.add_user(text)
        if continues:
            self.extend_answer(answer)
        else:
            self.add_answer(answer)
