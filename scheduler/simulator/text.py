"""What simulated workers say: the next token of a sequence, without a model."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from ..events import EndReason

# Token ids of the small model below, all less than a byte.
VOCAB = 50


class Text(Protocol):
    """The model: a pure function of a sequence and its seed."""

    def next_token(self, token_ids: Sequence[int], seed: int) -> int:
        """The token behind `token_ids`."""
        ...


def next_token(token_ids: Iterable[int], seed: int) -> int:
    """What the small model says: depends on every token before it, and on the seed."""
    return zlib.crc32(bytes(token_ids), seed & 0xFFFFFFFF) % VOCAB


class HashedText:
    """The small model. One wrong token in the cache changes all that follows. Token ids must be below 256."""

    def next_token(self, token_ids: Sequence[int], seed: int) -> int:
        return next_token(token_ids, seed)


class DrawnText:
    """Text of known length: `lengths[seed]` tokens in all, the last of them `END`. No token costs more than another."""

    END = 256
    VOCAB = 257

    def __init__(self, lengths: Mapping[int, int]) -> None:
        self._lengths = lengths

    def next_token(self, token_ids: Sequence[int], seed: int) -> int:
        length = len(token_ids) + 1
        return self.END if length >= self._lengths[seed] else (seed + length) & 0xFF


def run_alone(
    prompt: tuple[int, ...], max_tokens: int, stops: tuple[int, ...], seed: int
) -> tuple[list[int], EndReason]:
    """The small model's answer to a request that has a worker for itself, one step at a time, and why it ends."""
    tokens = list(prompt)
    while len(tokens) < len(prompt) + max_tokens:
        tokens.append(next_token(tokens, seed))
        if tokens[-1] in stops:
            return tokens[len(prompt) :], EndReason.STOP
    return tokens[len(prompt) :], EndReason.LENGTH
