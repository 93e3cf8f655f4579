"""Which tokens would complete a token sequence that must not be generated. Knows no logits."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence


class BadWords:
    """`bad` are sequences of one token or more. What came before the first token that is pushed does not count."""

    __slots__ = ("_always", "_by_last", "_tail")

    def __init__(self, bad: Sequence[Sequence[int]]) -> None:
        """Raises ValueError if one is empty."""
        if not all(bad):
            raise ValueError("bad: a sequence has no tokens")
        self._always = frozenset(each[0] for each in bad if len(each) == 1)
        # By the token before their last one: few have the one that was drawn.
        self._by_last: dict[int, list[tuple[int, ...]]] = {}
        for each in bad:
            if len(each) > 1:
                self._by_last.setdefault(each[-2], []).append(tuple(each))
        self._tail: deque[int] = deque(maxlen=max(map(len, bad), default=1) - 1)

    def push(self, token_ids: Iterable[int]) -> None:
        """Takes note of tokens that were drawn."""
        self._tail.extend(token_ids)

    @property
    def banned(self) -> set[int]:
        """What may not come next."""
        banned = set(self._always)
        if self._tail:
            tail = tuple(self._tail)
            for each in self._by_last.get(tail[-1], ()):
                if tail[-len(each) + 1 :] == each[:-1]:
                    banned.add(each[-1])
        return banned
