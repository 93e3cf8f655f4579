"""Texts on their way through grammars, by key: what may come next in each. Knows no pipes and no limits of time."""

from __future__ import annotations

import functools
import random
import re
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from .grammar import Grammar, Syntax
from .library import CompiledGrammar, Matcher, Vocabulary, compile_grammar

# Tokens of the sentence by which a grammar is tried, and what they may take, in seconds of the processor.
TRIED_TOKENS = 48
MAX_TRIED_SECONDS = 0.5
# All but line feed and carriage return, which may stand between its tokens.
_CONTROLS = re.compile(rb"[\x00-\x09\x0b\x0c\x0e-\x1f]")


class Follower:
    """Compiled grammars are kept for later texts, the last used ones, as long as they take `cache_bytes` together. Used
    by any thread, for one text by one at a time."""

    def __init__(self, read_pieces: Callable[[bool], Sequence[bytes]], cache_bytes: int, num_threads: int = 1) -> None:
        """`read_pieces(with_markers)` gives what tokens add to a text, by id."""
        self._read_pieces = read_pieces
        self._vocab_size = len(read_pieces(False))
        self._cache_bytes = cache_bytes
        self._num_threads = num_threads
        self._keeping = threading.Lock()
        self._compiled: OrderedDict[Grammar, CompiledGrammar] = OrderedDict()
        self._num_bytes = 0
        self._matchers: dict[int, Matcher] = {}

    def warm_up(self) -> None:
        """Loads the library. Raises SwitchedOffError where it is not installed."""
        self._vocabulary(Syntax.JSON_SCHEMA)

    def knows(self, grammar: Grammar) -> bool:
        """Whether it is compiled."""
        return grammar in self._compiled

    def compile(self, grammar: Grammar) -> CompiledGrammar:
        """Takes as long as the grammar does. Raises ValueError if it is none, MemoryError."""
        with self._keeping:
            if (known := self._compiled.get(grammar)) is not None:
                self._compiled.move_to_end(grammar)
                return known
        compiled = compile_grammar(grammar, self._vocabulary(grammar.syntax), self._num_threads)
        with self._keeping:
            if grammar not in self._compiled:
                self._compiled[grammar] = compiled
                self._num_bytes += compiled.num_bytes
            while self._num_bytes > self._cache_bytes and len(self._compiled) > 1:
                _, oldest = self._compiled.popitem(last=False)
                self._num_bytes -= oldest.num_bytes
        return compiled

    @functools.cache  # noqa: B019 - there is one
    def _vocabulary(self, syntax: Syntax) -> Vocabulary:
        """Of JSON without the tokens of which it has none: the library lets them into strings of a bounded length."""
        pieces = self._read_pieces(syntax is Syntax.STRUCTURAL_TAG)
        return Vocabulary.of([b"" if _CONTROLS.search(each) else each for each in pieces] if syntax.is_json else pieces)

    def open(self, key: int, grammar: Grammar, end_ids: Sequence[int], token_ids: Iterable[int]) -> bytes:
        """Begins a text whose first tokens are given; as `step`."""
        matcher = self.compile(grammar).matcher(end_ids)
        for token_id in token_ids:
            _accept(matcher, token_id)
        self._matchers[key] = matcher
        return self._mask(matcher)

    def step(self, key: int, token_id: int) -> bytes:
        """Goes on by a token. A bit for each token that may come next, low ones first, in words of 32. Raises
        ValueError if it is not one that might."""
        matcher = self._matchers[key]
        _accept(matcher, token_id)
        return self._mask(matcher)

    def drop(self, key: int) -> None:
        """Forgets a text."""
        self._matchers.pop(key, None)

    def probe(self, grammar: Grammar) -> None:
        """Compiles it and writes a random sentence. Raises ValueError if it is none, or takes too long to follow."""
        end_id = self._vocab_size - 1
        matcher, rng = self.compile(grammar).matcher([end_id]), random.Random(0)
        begin = time.thread_time()
        for _ in range(TRIED_TOKENS):
            mask = np.frombuffer(self._mask(matcher), np.uint8)
            allowed = np.unpackbits(mask, bitorder="little")[: self._vocab_size].nonzero()[0]
            if not len(allowed):
                raise ValueError("it has sentences that cannot be ended")
            token_id = int(rng.choice(allowed))
            if token_id == end_id:
                break
            _accept(matcher, token_id)
            if time.thread_time() - begin > MAX_TRIED_SECONDS:
                raise ValueError("it takes too long to follow")

    def _mask(self, matcher: Matcher) -> bytes:
        mask = np.zeros((1, -(-self._vocab_size // 32)), np.int32)
        matcher.fill(mask)
        return mask.tobytes()


def _accept(matcher: Matcher, token_id: int) -> None:
    if not matcher.accept(token_id):
        raise ValueError(f"token {token_id} does not fit what came before")
