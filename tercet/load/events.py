"""Server-sent events of OpenAI's streams, as what a target says. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from .target import AnswerError, Begun, Ended, Event, Piece

DATA = b"data:"
DONE = b"[DONE]"


class Stream:
    """The events of one answer, in order."""

    def __init__(self, request_id: str = "") -> None:
        """Without a `request_id` it is the one of the events."""
        self._request_id = request_id
        self._begun = False
        self._finish_reason: str | None = None
        self._usage: Mapping[str, Any] = {}
        self.over = False

    def take(self, line: bytes) -> list[Event]:
        """What a line of the answer says. Raises AnswerError for an error in the stream, and for what is none."""
        if not line.startswith(DATA):
            return []
        data = line[len(DATA) :].strip()
        if data == DONE:
            self.over = True
            return [self._ended()]
        try:
            event = json.loads(data)
        except ValueError:
            raise AnswerError("MALFORMED_EVENT", f"{data[:80]!r} is not JSON") from None
        if not isinstance(event, dict):
            raise AnswerError("MALFORMED_EVENT", f"{data[:80]!r} is not an object")
        if event.get("error"):
            raise to_error(event["error"])
        said: list[Event] = []
        if not self._begun:
            self._begun = True
            said.append(Begun(self._request_id or str(event.get("id", ""))))
        if event.get("usage"):
            self._usage = event["usage"]
        said += [Piece() for choice in event.get("choices") or () if self._has_tokens(choice)]
        return said

    def _has_tokens(self, choice: Mapping[str, Any]) -> bool:
        """A choice of an event brings text, or a token whose text is still to come; or its role or its end alone."""
        finish_reason = choice.get("finish_reason")
        self._finish_reason = finish_reason or self._finish_reason
        if "text" in choice:
            return bool(choice["text"]) or finish_reason is None
        delta = choice.get("delta") or {}
        texts = (delta.get(name) for name in ("content", "reasoning_content", "reasoning", "tool_calls"))
        return any(texts) or (finish_reason is None and "role" not in delta)

    def _ended(self) -> Ended:
        details = self._usage.get("prompt_tokens_details") or {}
        return Ended(
            self._finish_reason or "",
            prompt_tokens=self._usage.get("prompt_tokens"),
            output_tokens=self._usage.get("completion_tokens"),
            cached_tokens=details.get("cached_tokens"),
        )


def to_error(error: Any, status: int = 0, retry_after_s: float | None = None) -> AnswerError:
    """What a server says went wrong, in the body of a status or, without one, in the midst of a stream. Its reason is
    the code that the server gives, as Tercet's errors have it, else the status."""
    said: Mapping[str, Any] = error if isinstance(error, dict) else {"message": str(error)}
    # In the body of a status it is an object within an object.
    if isinstance(inner := said.get("error"), dict):
        said = inner
    code = said.get("code")
    named = isinstance(code, str) and not code.isdigit() and bool(code)
    reason = str(code).upper() if named else f"HTTP_{status}" if status else str(said.get("type") or "ERROR")
    # Above, servers fail; that they are full for now is a refusal.
    refused = 400 <= status < 500 or status == 503
    return AnswerError(reason, str(said.get("message", said))[:500], refused=refused, retry_after_s=retry_after_s)
