"""What is asked: prompts of an exact number of tokens, passages of a text, or the questions of a file. Pure.

Whatever is drawn is drawn from the generator that is passed.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from .ask import Prompt

# What all vocabularies of 32,000 tokens and more have in common is words here; special tokens lie before or behind. The
# same for all servers, so that they are asked the same.
_FIRST_TOKEN, _LAST_TOKEN = 1_000, 31_000
# Smaller ones begin with their special tokens.
_FIRST_OF_FEW = 16


@dataclass(frozen=True, slots=True)
class Made:
    """A prompt, its tokens if they are known, and what its file says of the answer's length."""

    prompt: Prompt
    tokens: int | None
    max_tokens: int | None = None


class Source(Protocol):
    """Where prompts come from."""

    def make(self, index: int, length: int, prefix: Prefix | None, rng: random.Random) -> Made:
        """That of request `index`, of `length` tokens where the source has a choice."""


@dataclass(frozen=True, slots=True)
class Prefix:
    """The common beginning of a group of prompts."""

    tokens: int
    seed: str


@dataclass(frozen=True, slots=True)
class RandomTokens:
    """Token ids drawn at random, exactly as many as asked for."""

    token_ids: Sequence[int]

    def make(self, index: int, length: int, prefix: Prefix | None, rng: random.Random) -> Made:  # noqa: ARG002
        begin: list[int] = []
        if prefix is not None:
            begin = random.Random(prefix.seed).choices(self.token_ids, k=prefix.tokens)
        # One token at least is its own, or it would be another's prompt.
        own = max(1, length - len(begin))
        return Made((*begin, *rng.choices(self.token_ids, k=own)), len(begin) + own)


def vocabulary(size: int | None) -> range:
    """Ids to draw from; None is a vocabulary of unknown size, which has at least 32,000 tokens."""
    last = _LAST_TOKEN if size is None else min(size, _LAST_TOKEN)
    return range(_FIRST_TOKEN if last >= 2 * _FIRST_TOKEN else min(_FIRST_OF_FEW, last - 1), last)


@dataclass(frozen=True, slots=True)
class Passages:
    """Pieces of a text by its token ids, each from anywhere in it; the text begins anew where it ends."""

    token_ids: Sequence[int]

    def make(self, index: int, length: int, prefix: Prefix | None, rng: random.Random) -> Made:  # noqa: ARG002
        begin: Sequence[int] = ()
        if prefix is not None:
            begin = self._piece(random.Random(prefix.seed).randrange(len(self.token_ids)), prefix.tokens)
        own = max(1, length - len(begin))
        return Made((*begin, *self._piece(rng.randrange(len(self.token_ids)), own)), len(begin) + own)

    def _piece(self, start: int, length: int) -> Sequence[int]:
        ids = self.token_ids
        return [ids[(start + offset) % len(ids)] for offset in range(length)]


@dataclass(frozen=True, slots=True)
class Words:
    """Texts, for servers that take no token ids. Each word is one token if `exact`; `extra` are those that the server
    adds to a text."""

    words: Sequence[str]
    exact: bool
    extra: int = 0

    def make(self, index: int, length: int, prefix: Prefix | None, rng: random.Random) -> Made:  # noqa: ARG002
        begin: list[str] = []
        if prefix is not None:
            begin = random.Random(prefix.seed).choices(self.words, k=max(1, prefix.tokens - self.extra))
        own = max(1, length - self.extra - len(begin))
        text = " ".join([*begin, *rng.choices(self.words, k=own)])
        return Made(text, len(begin) + own + self.extra if self.exact else None)


@dataclass(frozen=True, slots=True)
class Questions:
    """Those of a file, one after the other, from the first again behind the last."""

    questions: Sequence[Made]

    def make(self, index: int, length: int, prefix: Prefix | None, rng: random.Random) -> Made:  # noqa: ARG002
        return self.questions[index % len(self.questions)]
