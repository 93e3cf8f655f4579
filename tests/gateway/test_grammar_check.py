"""Grammars are tried before their requests are submitted: once each, in a process that may be lost."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator

import pytest

from gateway import grammar_check
from gateway.grammar_check import GrammarCheck
from tercet import errors
from tercet.grammar import library
from tercet.grammar.grammar import Grammar, Syntax
from tercet.grammar.process import Answer

GOOD, BAD = Grammar(Syntax.REGEX, "ab?"), Grammar(Syntax.REGEX, "(a")


class FakeProcess:
    """Notes what is asked, and answers nothing."""

    def __init__(self) -> None:
        self.keys: list[int] = []

    def probe(self, key: int, grammar: Grammar) -> None:
        """See GrammarProcess."""
        self.keys.append(key)

    def drop(self, key: int) -> None:
        """See GrammarProcess."""

    def close(self) -> None:
        """See GrammarProcess."""


@pytest.fixture
async def check() -> AsyncIterator[GrammarCheck]:
    made = GrammarCheck()
    yield made
    made.close()


async def test_what_is_none_is_refused_on_its_field_and_said_again_without_a_question(check: GrammarCheck) -> None:
    for _ in range(2):
        await check.check(GOOD, "a", "structured_output")
        with pytest.raises(errors.InvalidFieldError, match="parenthesis") as caught:
            await check.check(BAD, "b", "chat.tools")
        assert caught.value.metadata["field"] == "chat.tools"
    assert next(check._keys) == 3


async def test_what_another_asked_is_tried_again(check: GrammarCheck) -> None:
    for count in range(1, 4):
        salted = Grammar(GOOD.syntax, GOOD.text, bytes([count]))
        for _ in range(2):
            await check.check(salted, "a", "x")
        assert len(check._known) == count
    assert next(check._keys) == 4


async def test_what_was_too_dear_is_asked_again(check: GrammarCheck) -> None:
    answers = [Answer("it takes more than 2 s", b"", too_dear=True), Answer(None, b"")]

    async def answer(grammar: Grammar) -> Answer:
        return answers.pop(0)

    check._try = answer  # type: ignore[method-assign]
    with pytest.raises(errors.InvalidFieldError, match="more than"):
        await check.check(GOOD, "", "x")
    await check.check(GOOD, "", "x")
    await check.check(GOOD, "", "x")


async def test_many_ask_at_once(check: GrammarCheck) -> None:
    grammars = [Grammar(Syntax.REGEX, f"a{{{count}}}", b"%d" % (count % 3)) for count in range(1, 20)]
    await asyncio.gather(*(check.check(each, each.salt.decode(), "x") for each in [*grammars, *grammars]))
    assert next(check._keys) == len(grammars) + 1


async def test_a_process_that_was_killed_is_begun_again(check: GrammarCheck) -> None:
    await check.check(GOOD, "", "x")
    process = check._process._process
    assert process is not None
    os.kill(process.pid, signal.SIGKILL)
    await asyncio.to_thread(process.wait)
    # Also what is asked before that was noticed.
    for text in ("x", "xy", "xyz"):
        await asyncio.wait_for(check.check(Grammar(Syntax.REGEX, text), "", "x"), 60)


async def test_what_ends_the_process_fails_alone_and_others_are_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grammar_check, "_SECONDS", 0.05)
    check = GrammarCheck()
    try:
        dear = Grammar(Syntax.REGEX, "".join(f"(a{{0,{i}}}|b)*" for i in range(1, 200)), b"tenant-1")
        goods = [Grammar(Syntax.REGEX, f"[ab]0{count}", b"tenant-2") for count in range(5)]
        first, *others = await asyncio.gather(
            check.check(dear, "1", "x"), *(check.check(each, "2", "x") for each in goods), return_exceptions=True
        )
        assert isinstance(first, errors.InvalidFieldError)
        assert "more than 0.05 s" in str(first)
        assert others == [None] * 5
        # Also where who asked for it has left.
        for count in range(3):
            left = asyncio.create_task(check.check(Grammar(dear.syntax, dear.text, b"%d" % count), "1", "x"))
            while not check._process._begun:  # noqa: ASYNC110 - it is another thread's
                await asyncio.sleep(0.001)
            left.cancel()
            await check.check(Grammar(Syntax.REGEX, f"[ab]1{count}", b"tenant-2"), "2", "x")
        assert not check._asked
    finally:
        check.close()


async def test_what_it_dies_of_without_a_word_is_refused_the_second_time(check: GrammarCheck) -> None:
    process = FakeProcess()
    check._process = process  # type: ignore[assignment]
    suspect, neighbour = (asyncio.create_task(check.check(GOOD, tenant, "x")) for tenant in "ab")
    while len(process.keys) < 2:  # noqa: ASYNC110 - a plain list
        await asyncio.sleep(0.001)
    key, other = sorted(process.keys)
    for culprit in (None, key, None):
        process.keys.clear()
        check._lost(culprit, "it died", frozenset())
        assert process.keys == [key, other]
    process.keys.clear()
    check._lost(key, "it died", frozenset())
    with pytest.raises(errors.InvalidFieldError, match="it died"):
        await suspect
    assert process.keys == [other]
    check._answered(other, Answer(None, b""))
    await neighbour


async def test_those_at_whose_grammars_it_died_come_last(check: GrammarCheck) -> None:
    process = FakeProcess()
    check._process = process  # type: ignore[assignment]
    owned = [Grammar(Syntax.REGEX, "a", owner.encode() * 8) for owner in "abc"]
    asking = [asyncio.create_task(check.check(each, str(each.owner), "x")) for each in owned]
    while len(process.keys) < 3:  # noqa: ASYNC110 - a plain list
        await asyncio.sleep(0.001)
    first, second, third = sorted(process.keys, key=lambda key: check._asked[key].grammar.owner)
    process.keys.clear()
    check._lost(None, "it died", frozenset({b"a" * 8, b"b" * 8}))
    assert process.keys[0] == third
    assert sorted(process.keys[1:]) == sorted((first, second))
    for key in (first, second, third):
        check._answered(key, Answer(None, b""))
    await asyncio.gather(*asking)


async def test_each_tenant_asks_for_one_at_a_time_and_waits_for_no_other(check: GrammarCheck) -> None:
    process = FakeProcess()
    check._process = process  # type: ignore[assignment]
    first, *behind = (
        asyncio.create_task(check.check(Grammar(Syntax.REGEX, text, tenant.encode()), tenant, "x"))
        for text, tenant in [("a", "a"), ("b", "a"), ("c", "a"), ("a", "b")]
    )
    while len(process.keys) < 2:  # noqa: ASYNC110 - a plain list
        await asyncio.sleep(0.001)
    assert len(check._turns) == len(check._asked) == 2
    first.cancel()
    while not all(each.done() for each in behind):
        for key in [*check._asked]:
            check._answered(key, Answer(None, b""))
        await asyncio.sleep(0.001)
    await asyncio.gather(*behind)
    assert len(process.keys) == 4
    assert not check._asked


async def test_without_the_library_it_is_said_that_it_is_missing(
    check: GrammarCheck, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(library, "_PACKAGE", "no_such_package")
    with pytest.raises(errors.SwitchedOffError, match="xgrammar"):
        await check.check(GOOD, "", "x")
