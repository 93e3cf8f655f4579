"""A single question, what was said to it, and who can be asked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

# The reason of one that is not answered in time, here or there.
NOT_IN_TIME = "NOT_IN_TIME"


@dataclass(frozen=True, slots=True)
class Question:
    """A text to continue, or if `is_chat` one to answer. Greedy at a temperature of 0."""

    text: str
    is_chat: bool
    max_tokens: int
    temperature: float = 0.0
    seed: int = 0
    stop: str = ""
    ignore_eos: bool = False


@dataclass(frozen=True, slots=True)
class Said:
    """What came of it. `token_ids` are those streamed, None where the server tells none; `error` is the reason of the
    error that ended it, else empty."""

    text: str = ""
    token_ids: tuple[int, ...] | None = None
    finish_reason: str = ""
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    error: str = ""

    def same_output(self, other: Said) -> bool:
        """Tokens where both have them, text and end."""
        tokens = self.token_ids is None or other.token_ids is None or self.token_ids == other.token_ids
        return not (self.error or other.error) and tokens and self._written() == other._written()

    def _written(self) -> tuple[str, str]:
        return self.text, self.finish_reason


class Answerer(Protocol):
    """A server that is asked one by one. For one event loop."""

    async def ask(self, question: Question, timeout_s: float) -> Said:
        """The whole answer. Raises nothing for what goes wrong: it is in `error`."""

    async def cancel_midway(self, question: Question, after_tokens: int, timeout_s: float) -> bool | None:
        """Cancels it from elsewhere when so many tokens have come. Whether it went on; None: nobody can cancel here."""
