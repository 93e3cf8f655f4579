"""Files of questions: ShareGPT's JSON, or JSON lines with `prompt` or `messages`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tercet.messages import ChatMessage

from .prompts import Made
from .workload_error import WorkloadError

_FIELD = "prompts"
_ROLES = {"human": "user", "user": "user", "gpt": "assistant", "assistant": "assistant", "system": "system"}


def read_questions(path: Path) -> tuple[Made, ...]:
    """All that can be asked; conversations without a question are left out. Raises WorkloadError."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        problem = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise WorkloadError(_FIELD, f"cannot read {path}: {problem}") from None
    questions = tuple(made for record in _records(text, path) if (made := _question(record, path)) is not None)
    if not questions:
        raise WorkloadError(_FIELD, f"{path} has no questions")
    return questions


def _records(text: str, path: Path) -> Iterator[Any]:
    try:
        if text.lstrip().startswith("["):
            yield from json.loads(text)
        else:
            yield from (json.loads(line) for line in text.splitlines() if line.strip())
    except ValueError as error:
        raise WorkloadError(_FIELD, f"{path} is neither a JSON list nor JSON lines: {error}") from None


def _question(record: Any, path: Path) -> Made | None:
    if not isinstance(record, dict):
        raise WorkloadError(_FIELD, f"{path} has {str(record)[:40]!r} for a question")
    max_tokens = record.get("max_tokens")
    if max_tokens is not None and (not isinstance(max_tokens, int) or max_tokens < 1):
        raise WorkloadError(_FIELD, f"{path}: max_tokens is {max_tokens!r}")
    if isinstance(prompt := record.get("prompt"), str):
        return Made(prompt, None, max_tokens) if prompt else None
    turns = record.get("messages", record.get("conversations"))
    if not isinstance(turns, list):
        raise WorkloadError(_FIELD, f"{path}: a question has none of prompt, messages, conversations")
    messages = _until_asked([_turn(each, path) for each in turns])
    return Made(messages, None, max_tokens) if messages else None


def _turn(turn: Any, path: Path) -> ChatMessage:
    if isinstance(turn, Mapping):
        role = _ROLES.get(str(turn.get("role", turn.get("from"))))
        content = turn.get("content", turn.get("value"))
        if role is not None and isinstance(content, str):
            return ChatMessage(role, content)
    raise WorkloadError(_FIELD, f"{path}: {str(turn)[:40]!r} is no turn of a chat")


def _until_asked(turns: Sequence[ChatMessage]) -> tuple[ChatMessage, ...]:
    """Up to the last question of the user's; what the assistant said to it is not asked."""
    while turns and turns[-1].role != "user":
        turns = turns[:-1]
    # Collections cut conversations anywhere; templates want the user first.
    while turns and turns[0].role == "assistant":
        turns = turns[1:]
    return tuple(turns)
