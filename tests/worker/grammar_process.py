"""The process that follows grammars, without a process: what is asked is answered when the test says so."""

from __future__ import annotations

import itertools
import random
from collections import deque
from collections.abc import Callable, Sequence

from tercet.grammar.follower import Follower
from tercet.grammar.grammar import Grammar
from tercet.grammar.process import Answer
from tests.worker.recall_model import VOCAB_SIZE
from worker.grammars import Grammars

# Printable ASCII, but for some letters whose places others have: pieces of JSON, half characters, a control character;
# a line end, and what ends a text.
END = VOCAB_SIZE - 1
_OTHERS = {"Q": b'{"', "X": b'":', "Z": b"\xc3", "W": b"\xa9", "V": "ü€".encode(), "K": b"\x01", "J": b", "}
PIECES = [_OTHERS.get(chr(code), chr(code).encode()) for code in range(0x20, 0x7F)] + [b"\n", b""]
FOLLOWER = Follower(lambda _: PIECES, 1 << 20)
# Processes that share a follower have keys of their own.
_firsts = itertools.count(1 << 32, 1 << 32)


class LocalProcess:
    """Follows grammars by the real library; answers are given by `answer_all`."""

    def __init__(
        self,
        follower: Follower,
        on_answer: Callable[[int, Answer], None],
        on_loss: Callable[[int | None, str, frozenset[bytes]], None],
    ) -> None:
        self._follower = follower
        self._first = next(_firsts)
        self._on_answer = on_answer
        self._on_loss = on_loss
        self._asked: deque[tuple[int, Callable[[], bytes]]] = deque()
        self.open_keys: set[int] = set()

    def open(self, key: int, grammar: Grammar, end_ids: Sequence[int], token_ids: Sequence[int]) -> None:
        """See Process."""
        self.open_keys.add(key)
        tokens = tuple(token_ids)
        self._ask(key, lambda: self._follower.open(self._first + key, grammar, end_ids, tokens))

    def step(self, key: int, token_id: int) -> None:
        """See Process."""
        self._ask(key, lambda: self._follower.step(self._first + key, token_id))

    def drop(self, key: int) -> None:
        """See Process."""
        self.open_keys.discard(key)
        self._follower.drop(self._first + key)

    def close(self) -> None:
        """See Process."""

    def answer_all(self) -> int:
        """Answers all that was asked; how much that was."""
        count = len(self._asked)
        while self._asked:
            key, make = self._asked.popleft()
            if key not in self.open_keys:
                continue
            try:
                self._on_answer(key, Answer(None, make()))
            except ValueError as error:
                self._on_answer(key, Answer(str(error), b""))
        return count

    def die(self, culprit: int | None, owners: frozenset[bytes] = frozenset()) -> None:
        """All that it knew is gone. It was at grammars of these."""
        self._asked.clear()
        for key in self.open_keys:
            self._follower.drop(self._first + key)
        self._on_loss(culprit, "it died", owners)

    def _ask(self, key: int, make: Callable[[], bytes]) -> None:
        self._asked.append((key, make))


class LocalGrammars(Grammars):
    """Its process answers in time as long as it is `prompt`, else when it is told to; with `rng` often, not always."""

    def __init__(self, follower: Follower = FOLLOWER, rng: random.Random | None = None) -> None:
        made: list[LocalProcess] = []

        def make(
            on_answer: Callable[[int, Answer], None], on_loss: Callable[[int | None, str, frozenset[bytes]], None]
        ) -> LocalProcess:
            made.append(LocalProcess(follower, on_answer, on_loss))
            return made[0]

        super().__init__(make)
        self.process = made[0]
        self.prompt = True
        self._rng = rng

    def settle(self) -> bool:
        """See Grammars."""
        if self.prompt and (self._rng is None or self._rng.random() < 0.6):
            self.process.answer_all()
        return super().settle()
