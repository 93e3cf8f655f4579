"""Whether grammars can be followed, before their requests are submitted: tried in a process of its own."""

from __future__ import annotations

import asyncio
import itertools
from collections import OrderedDict

from tercet.errors import EngineFaultError, InvalidFieldError
from tercet.grammar.grammar import Grammar
from tercet.grammar.library import check_installed
from tercet.grammar.process import Answer, GrammarProcess, Limits

from .turns import Turns

# Beside what the process has when it begins.
_MAX_BYTES = 512 << 20
_SECONDS = 2.0
# Grammars of which it is known what to say of them.
_KEPT = 1024


class GrammarCheck:
    """Tries one at a time, and tenants take turns: who sends what takes long waits for it himself. What was said of the
    last grammars is kept."""

    def __init__(self) -> None:
        self._process = GrammarProcess(
            None, Limits(_MAX_BYTES, compile_seconds=_SECONDS, step_seconds=_SECONDS), self._answered, self._lost
        )
        self._turns = Turns(1)
        self._keys = itertools.count(1)
        self._asked: dict[int, tuple[asyncio.AbstractEventLoop, asyncio.Future[str | None]]] = {}
        self._known: OrderedDict[Grammar, str | None] = OrderedDict()

    async def check(self, grammar: Grammar, tenant: str, field: str) -> None:
        """Raises InvalidFieldError on `field` with what is wrong with a grammar, SwitchedOffError where the library is
        not installed."""
        if grammar not in self._known:
            check_installed()
            async with self._turns.place(tenant):
                if grammar not in self._known:
                    self._known[grammar] = await self._try(grammar)
        self._known.move_to_end(grammar)
        if len(self._known) > _KEPT:
            self._known.popitem(last=False)
        problem = self._known[grammar]
        if problem is not None:
            raise InvalidFieldError(f"{field} cannot be followed: {problem}", field=field)

    def close(self) -> None:
        """Ends the process."""
        self._process.close()

    async def _try(self, grammar: Grammar) -> str | None:
        loop, key = asyncio.get_running_loop(), next(self._keys)
        answer: asyncio.Future[str | None] = loop.create_future()
        self._asked[key] = loop, answer
        try:
            # To begin a process takes some milliseconds.
            await asyncio.to_thread(self._process.probe, key, grammar)
            return await answer
        finally:
            self._asked.pop(key, None)

    def _answered(self, key: int, answer: Answer) -> None:
        self._settle(key, answer.problem)

    def _lost(self, culprit: int | None, problem: str) -> None:
        for key in [*self._asked]:
            if key == culprit:
                self._settle(key, problem)
            elif (asked := self._asked.get(key)) is not None:
                loop, answer = asked
                error = EngineFaultError("the process that tries grammars was lost")
                loop.call_soon_threadsafe(_fail, answer, error)

    def _settle(self, key: int, problem: str | None) -> None:
        asked = self._asked.get(key)
        if asked is not None:
            loop, answer = asked
            loop.call_soon_threadsafe(_resolve, answer, problem)


def _resolve(answer: asyncio.Future[str | None], problem: str | None) -> None:
    if not answer.done():
        answer.set_result(problem)


def _fail(answer: asyncio.Future[str | None], error: Exception) -> None:
    if not answer.done():
        answer.set_exception(error)
