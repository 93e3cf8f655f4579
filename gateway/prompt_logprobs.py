"""Logprobs of a prompt on their way to its client. Knows neither text nor wire."""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from tercet.errors import InvalidFieldError

from .token_logprobs import TokenLogprobs

# Of all tokens of a prompt together: so many fit into an answer in one piece.
MAX_PROMPT_LOGPROBS = 131_072


@dataclass(frozen=True, slots=True)
class PromptPart:
    """Of tokens one behind the other, `first` tokens of the prompt before them: their own, and columns of the likeliest
    ones at each place. In arrays: as objects they would take ten times the memory."""

    first: int
    logprobs: array[float]
    top_ids: array[int]
    top_logprobs: array[float]

    def __len__(self) -> int:
        return len(self.logprobs)

    def __iter__(self) -> Iterator[TokenLogprobs]:
        """One for each place."""
        width = len(self.top_ids) // len(self) if self.logprobs else 0
        for index, logprob in enumerate(self.logprobs):
            tops = slice(index * width, (index + 1) * width)
            yield TokenLogprobs(logprob, tuple(self.top_ids[tops]), tuple(self.top_logprobs[tops]))

    def behind(self, skip: int) -> PromptPart:
        """Without its first `skip` places."""
        tops = skip * (len(self.top_ids) // len(self))
        return PromptPart(self.first + skip, self.logprobs[skip:], self.top_ids[tops:], self.top_logprobs[tops:])


class PromptLogprobs:
    """Those of `num_tokens` tokens of a prompt, which lie behind its first one. Each place is given once, in order,
    however often it was computed."""

    def __init__(self, num_tokens: int = 0) -> None:
        self._end = 1 + num_tokens
        self._next = 1
        self._parts: deque[PromptPart] = deque()

    @property
    def complete(self) -> bool:
        """Whether all of them have come."""
        return self._next == self._end

    def push(self, part: PromptPart) -> None:
        """Takes what a worker has found. Raises ValueError if places before are missing, or if its columns do not
        fit."""
        count = len(part)
        if part.first > self._next or not count or part.first + count > self._end:
            raise ValueError(f"logprobs of the prompt's tokens from {part.first} on do not follow those before")
        if len(part.top_ids) != len(part.top_logprobs) or len(part.top_ids) % count:
            raise ValueError("the columns of a prompt's logprobs differ in length")
        if part.first + count > self._next:
            known = self._next - part.first
            self._next = part.first + count
            self._parts.append(part.behind(known) if known else part)

    def take(self) -> PromptPart | None:
        """The next that is there."""
        return self._parts.popleft() if self._parts else None


def check_prompt_logprobs(num_top: int | None, prompt_tokens: int) -> None:
    """Raises InvalidFieldError if a prompt is too long to have so many of each token."""
    count = 0 if num_top is None else (prompt_tokens - 1) * (1 + num_top)
    if count > MAX_PROMPT_LOGPROBS:
        raise InvalidFieldError(
            f"a prompt of {prompt_tokens} tokens has {count} logprobs, {1 + (num_top or 0)} for each token; at most "
            f"{MAX_PROMPT_LOGPROBS} are given",
            field="sampling.prompt_logprobs",
            metadata={"prompt_tokens": str(prompt_tokens), "max_prompt_logprobs": str(MAX_PROMPT_LOGPROBS)},
        )
