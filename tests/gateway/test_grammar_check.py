"""Grammars are tried before their requests are submitted: once each, in a process that may be lost."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator

import pytest

from gateway.grammar_check import GrammarCheck
from tercet import errors
from tercet.grammar import library
from tercet.grammar.grammar import Grammar, Syntax
from tercet.grammar.process import Answer

GOOD, BAD = Grammar(Syntax.REGEX, "ab?"), Grammar(Syntax.REGEX, "(a")


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
    grammars = [Grammar(Syntax.REGEX, f"a{{{count}}}") for count in range(1, 20)]
    await asyncio.gather(*(check.check(each, str(i % 3), "x") for i, each in enumerate([*grammars, *grammars])))
    assert next(check._keys) == len(grammars) + 1


async def test_a_process_that_was_killed_is_begun_again(check: GrammarCheck) -> None:
    await check.check(GOOD, "", "x")
    process = check._process._process
    assert process is not None
    os.kill(process.pid, signal.SIGKILL)
    await asyncio.to_thread(process.wait)
    # What is asked before that was noticed is answered, or fails with a typed error.
    for text in ("x", "xy", "xyz"):
        try:
            await asyncio.wait_for(check.check(Grammar(Syntax.REGEX, text), "", "x"), 60)
        except errors.RequestError:
            continue
    await asyncio.wait_for(check.check(Grammar(Syntax.REGEX, "z"), "", "x"), 60)


async def test_without_the_library_it_is_said_that_it_is_missing(
    check: GrammarCheck, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(library, "_PACKAGE", "no_such_package")
    with pytest.raises(errors.SwitchedOffError, match="xgrammar"):
        await check.check(GOOD, "", "x")
