"""Whether grammars can be followed, before their requests are submitted: tried in a process of its own."""

from __future__ import annotations

import asyncio
import itertools
import weakref
from collections import OrderedDict
from dataclasses import dataclass

from tercet.errors import InvalidFieldError
from tercet.grammar.grammar import Grammar
from tercet.grammar.library import check_installed
from tercet.grammar.process import Answer, GrammarProcess, Limits

from .turns import Turns

# Beside what the process has when it begins.
_MAX_BYTES = 512 << 20
_SECONDS = 2.0
# Grammars of which it is known what to say of them.
_KEPT = 1024
# Processes that seem to have died of one grammar before it is given up.
_MAX_LOSSES = 2


@dataclass(slots=True)
class _Asked:
    """What somebody waits for, in a loop of its own."""

    grammar: Grammar
    loop: asyncio.AbstractEventLoop
    answer: asyncio.Future[Answer]
    num_losses: int = 0

    def settle(self, answer: Answer) -> None:
        self.loop.call_soon_threadsafe(_resolve, self.answer, answer)


class GrammarCheck:
    """Asks for one of each tenant at a time; those take turns in the process. What was said of the last grammars is
    kept, but for what was too dear: that may be otherwise another time. What ends the process fails alone: the others
    are asked again."""

    def __init__(self) -> None:
        self._process = GrammarProcess(
            None, Limits(_MAX_BYTES, compile_seconds=_SECONDS, step_seconds=_SECONDS), self._answered, self._lost
        )
        # By tenant, as long as somebody waits.
        self._turns: weakref.WeakValueDictionary[str, Turns] = weakref.WeakValueDictionary()
        self._keys = itertools.count(1)
        self._asked: dict[int, _Asked] = {}
        self._known: OrderedDict[Grammar, str | None] = OrderedDict()

    async def check(self, grammar: Grammar, tenant: str, field: str) -> None:
        """Raises InvalidFieldError on `field` with what is wrong with a grammar, SwitchedOffError where the library is
        not installed."""
        problem = await self._problem(grammar, tenant)
        if problem is not None:
            raise InvalidFieldError(f"{field} cannot be followed: {problem}", field=field)

    def close(self) -> None:
        """Ends the process."""
        self._process.close()

    async def _problem(self, grammar: Grammar, tenant: str) -> str | None:
        if grammar not in self._known:
            check_installed()
            turns = self._turns.setdefault(tenant, Turns(1))
            async with turns.place(tenant):
                if grammar not in self._known:
                    answer = await self._try(grammar)
                    if answer.too_dear:
                        return answer.problem
                    self._known[grammar] = answer.problem
        self._known.move_to_end(grammar)
        if len(self._known) > _KEPT:
            self._known.popitem(last=False)
        return self._known[grammar]

    async def _try(self, grammar: Grammar) -> Answer:
        loop, key = asyncio.get_running_loop(), next(self._keys)
        asked = self._asked[key] = _Asked(grammar, loop, loop.create_future())
        try:
            # To begin a process takes some milliseconds.
            await asyncio.to_thread(self._process.probe, key, grammar)
            return await asked.answer
        finally:
            del self._asked[key]
            # Where nobody waits any more it does not have to be begun.
            self._process.drop(key)

    def _answered(self, key: int, answer: Answer) -> None:
        if (asked := self._asked.get(key)) is not None:
            asked.settle(answer)

    def _lost(self, culprit: int | None, problem: str, owners: frozenset[bytes]) -> None:
        for key, asked in sorted(self._asked.items(), key=lambda item: item[1].grammar.owner in owners):
            if key == culprit:
                asked.num_losses += 1
            # It may have been something else, once.
            if asked.num_losses == _MAX_LOSSES:
                asked.settle(Answer(problem, b"", too_dear=True))
            else:
                self._process.probe(key, asked.grammar)


def _resolve(wanted: asyncio.Future[Answer], answer: Answer) -> None:
    if not wanted.done():
        wanted.set_result(answer)
