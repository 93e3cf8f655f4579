"""The process that follows grammars: what explodes in it ends it alone, and says for whom."""

from __future__ import annotations

import os
import queue
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tercet.grammar.grammar import Grammar, Syntax
from tercet.grammar.process import Answer, GrammarProcess, Limits
from tercet.model_source import ModelFormat, ModelSource

END = 256
GOOD = Grammar(Syntax.REGEX, "ab?")
PATIENCE_S = 60.0
# The longer the text, the more ways there are in which it may have come about: it keeps the library busy for minutes.
ENDLESS, ENDLESS_TEXT = 'root ::= root root | "a"', [ord("a")] * 20_000


class Asked:
    """A process whose tokens are bytes, and what it told."""

    def __init__(self, limits: Limits) -> None:
        self.told: queue.SimpleQueue[tuple[int | None, Answer | str]] = queue.SimpleQueue()
        # At whose grammars it was when it died, each time.
        self.owners: list[frozenset[bytes]] = []
        self.process = GrammarProcess(
            None,
            limits,
            lambda key, answer: self.told.put((key, answer)),
            self._lost,
        )

    def _lost(self, key: int | None, problem: str, owners: frozenset[bytes]) -> None:
        self.owners.append(owners)
        self.told.put((key, problem))

    def next(self) -> tuple[int | None, Answer | str]:
        return self.told.get(timeout=PATIENCE_S)

    def mask(self) -> tuple[int | None, set[int]]:
        key, answer = self.next()
        assert isinstance(answer, Answer)
        assert answer.problem is None
        bits = np.unpackbits(np.frombuffer(answer.mask, np.uint8), bitorder="little")
        return key, set(bits.nonzero()[0].tolist())

    def problem(self) -> tuple[int | None, str]:
        key, answer = self.next()
        assert isinstance(answer, Answer)
        assert answer.problem is not None
        return key, answer.problem


@pytest.fixture
def asked() -> Iterator[Asked]:
    made = Asked(Limits(256 << 20, compile_seconds=3.0, step_seconds=3.0))
    yield made
    made.process.close()


def test_texts_side_by_side(asked: Asked) -> None:
    asked.process.open(1, GOOD, [END], [])
    assert asked.mask() == (1, {ord("a")})
    asked.process.open(2, GOOD, [END], [ord("a")])
    assert asked.mask() == (2, {ord("b"), END})
    asked.process.step(1, ord("a"))
    assert asked.mask() == (1, {ord("b"), END})
    asked.process.step(2, ord("b"))
    assert asked.mask() == (2, {END})
    asked.process.step(2, ord("b"))
    key, problem = asked.problem()
    assert key == 2
    assert "does not fit" in problem
    asked.process.drop(2)
    asked.process.step(1, ord("b"))
    assert asked.mask() == (1, {END})


@pytest.mark.parametrize(
    "grammar",
    [
        Grammar(Syntax.REGEX, "(a"),
        Grammar(Syntax.REGEX, "a(?=b)"),
        Grammar(Syntax.JSON_SCHEMA, "{"),
        Grammar(Syntax.JSON_SCHEMA, '{"$ref": "#"}'),
        Grammar(Syntax.EBNF, "root ::= x"),
        Grammar(Syntax.EBNF, "root ::= " + "(" * 5000 + '"a"' + ")" * 5000),
        Grammar(Syntax.STRUCTURAL_TAG, "{}"),
    ],
)
def test_what_is_no_grammar_is_told_and_others_go_on(asked: Asked, grammar: Grammar) -> None:
    asked.process.probe(1, grammar)
    key, problem = asked.problem()
    assert key == 1
    assert problem
    assert ".cc" not in problem
    asked.process.probe(2, GOOD)
    assert asked.next() == (2, Answer(None, b""))


def test_what_takes_too_long_ends_it_and_the_next_question_begins_another() -> None:
    slow = Asked(Limits(256 << 20, compile_seconds=0.05, step_seconds=5.0))
    try:
        slow.process.open(7, Grammar(Syntax.EBNF, ENDLESS), [END], ENDLESS_TEXT)
        key, problem = slow.problem()
        assert key == 7
        assert "more than 0.05 s" in problem
        assert slow.next()[0] is None
        assert slow.owners == [frozenset()]
    finally:
        slow.process.close()


def test_it_says_at_whose_grammars_it_was_when_one_took_too_long() -> None:
    slow = Asked(Limits(256 << 20, compile_seconds=0.5, step_seconds=5.0))
    try:
        for key, salt in enumerate((b"tenant-1", b"tenant-2", b"tenant-3"), start=1):
            slow.process.open(key, Grammar(Syntax.EBNF, ENDLESS, salt), [END], ENDLESS_TEXT)
        key, _ = slow.problem()
        assert key in (1, 2)
        assert slow.next()[0] is None
        assert slow.owners == [frozenset({b"tenant-1", b"tenant-2"})]
    finally:
        slow.process.close()


def test_what_is_compiled_is_so_for_its_own_salt(asked: Asked) -> None:
    salted = [Grammar(GOOD.syntax, GOOD.text, salt) for salt in (b"\x00\xff", b"b")]
    asked.process.open(1, salted[0], [END], [])
    assert asked.mask() == (1, {ord("a")})
    # Compiling it takes a while. What has to be compiled waits behind what is of the same tenant.
    asked.process.probe(2, Grammar(Syntax.REGEX, "".join(f"(a{{0,{i}}}|b)*" for i in range(1, 110)), b"b"))
    asked.process.open(3, salted[1], [END], [])
    asked.process.open(4, salted[0], [END], [])
    assert [asked.next()[0] for _ in range(3)] == [4, 2, 3]


def begin_endless(asked: Asked, key: int, salt: bytes) -> None:
    """It is what the process is at."""
    asked.process.open(key, Grammar(Syntax.EBNF, ENDLESS, salt), [END], ENDLESS_TEXT)
    deadline = time.monotonic() + PATIENCE_S
    while key not in asked.process._begun:
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_nobody_waits_for_what_another_tenant_brings_along() -> None:
    asked = Asked(Limits(256 << 20, compile_seconds=600.0))
    try:
        begin_endless(asked, 1, b"tenant-1")
        for count in range(2, 9):
            salt = b"tenant-1" + bytes([count])
            asked.process.open(count, Grammar(Syntax.EBNF, ENDLESS, salt), [END], ENDLESS_TEXT)
        for count in range(9, 13):
            asked.process.open(count, Grammar(GOOD.syntax, GOOD.text, b"tenant-2" + bytes([count])), [END], [])
        # One tenant's come in their order, the other's own wait for its first.
        assert [asked.mask() for _ in range(4)] == [(count, {ord("a")}) for count in range(9, 13)]
        assert asked.process._begun.keys() == {1}
    finally:
        asked.process.close()


@pytest.mark.parametrize("is_wanted", [True, False])
def test_it_died_of_what_it_was_at_not_of_what_waited(asked: Asked, is_wanted: bool) -> None:
    begin_endless(asked, 5, b"tenant-1")
    asked.process.open(6, Grammar(GOOD.syntax, GOOD.text, b"tenant-1"), [END], [])
    if is_wanted:
        # Asked once more, it is behind the other one.
        asked.process._waiting.pop(5)
        asked.process._waiting[5] = None
    else:
        asked.process.drop(5)
    process = asked.process._process
    assert process is not None
    os.kill(process.pid, signal.SIGKILL)
    assert asked.next()[0] == (5 if is_wanted else None)
    asked.process.open(6, GOOD, [END], [])
    assert asked.mask() == (6, {ord("a")})


def test_of_two_at_which_it_died_nobody_is_told_and_then_it_is_at_one_at_a_time() -> None:
    asked = Asked(Limits(256 << 20, compile_seconds=600.0))
    try:
        for key in (1, 2):
            begin_endless(asked, key, f"tenant-{key}".encode())
        for culprit in (None, 1):
            process = asked.process._process
            assert process is not None
            os.kill(process.pid, signal.SIGKILL)
            assert asked.next()[0] == culprit
            if culprit is None:
                begin_endless(asked, 1, b"tenant-1")
                asked.process.open(2, Grammar(GOOD.syntax, GOOD.text, b"tenant-2"), [END], [])
    finally:
        asked.process.close()


def test_nothing_is_begun_behind_the_end(asked: Asked) -> None:
    asked.process.open(1, GOOD, [END], [])
    asked.mask()
    asked.process.close()
    asked.process.open(2, GOOD, [END], [])
    assert asked.process._process is None


def test_whoever_kills_it_loses_what_was_open(asked: Asked) -> None:
    asked.process.open(1, GOOD, [END], [])
    asked.mask()
    process = asked.process._process
    assert process is not None
    os.kill(process.pid, signal.SIGKILL)
    key, problem = asked.next()
    assert key is None
    assert isinstance(problem, str)
    asked.process.open(1, GOOD, [END], [ord("a")])
    assert asked.mask() == (1, {ord("b"), END})


def test_a_model_without_a_vocabulary_is_told() -> None:
    told: queue.SimpleQueue[tuple[int | None, str]] = queue.SimpleQueue()
    missing = ModelSource(ModelFormat.HUGGING_FACE, Path("/nonexistent"))
    process = GrammarProcess(
        (missing, 9),
        Limits(256 << 20, 3.0),
        lambda key, answer: None,
        lambda key, problem, _owners: told.put((key, problem)),
    )
    try:
        process.open(3, GOOD, [1], [])
        key, problem = told.get(timeout=PATIENCE_S)
        assert key == 3
        assert "tokenizer.json" in problem
    finally:
        process.close()
