"""A server that does what its script says: when each token comes, and what becomes of the request."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass

from tercet.load.ask import Ask
from tercet.load.record import ServerSample
from tercet.load.slo import Slo
from tercet.load.target import AnswerError, Begun, Described, Ended, Event, Piece


@dataclass(frozen=True)
class Script:
    """Seconds to the first token and from one to the next; `first_s` None is never."""

    first_s: float | None = 0.1
    gap_s: float = 0.01
    error: AnswerError | None = None
    # The error comes behind so many tokens; 0: at once, as a refusal does.
    error_after: int = 0


class Scripted:
    """A target; `script` says what becomes of each request. It stands still from `stall[0]` to `stall[1]`."""

    name = "a script"

    def __init__(
        self,
        script: Callable[[Ask], Script] = lambda ask: Script(),
        *,
        stall: tuple[float, float] = (0.0, 0.0),
        limits: Mapping[str, Slo] | None = None,
        max_model_len: int = 8192,
    ) -> None:
        self.asked: list[Ask] = []
        # How many had been closed by their client before they were over.
        self.left = 0
        self.running = self.most_running = 0
        self._script = script
        self._stall = stall
        self._limits = limits or {}
        self._described = Described("scripted", "r1", max_model_len, 50_000, takes_tokens=True)

    async def describe(self) -> Described:
        return self._described

    async def tokenize(self, text: str) -> tuple[int, ...] | None:
        return tuple(range(len(text.split())))

    async def limits(self) -> Mapping[str, Slo]:
        return self._limits

    async def look(self) -> ServerSample | None:
        return ServerSample(0, self.running, 1, 2, 3, None, ())

    async def stream(self, ask: Ask) -> AsyncGenerator[Event, None]:
        script = self._script(ask)
        self.asked.append(ask)
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        over = False
        try:
            if script.error is not None and not script.error_after:
                raise script.error
            yield Begun(f"r-{ask.index}", ask.prompt_tokens)
            for token in range(ask.max_tokens):
                wait_s = script.gap_s if token else script.first_s
                if wait_s is None:
                    await asyncio.Event().wait()
                    return
                await asyncio.sleep(wait_s)
                await self._stand_still()
                if script.error is not None and token == script.error_after:
                    raise script.error
                yield Piece()
            over = True
            yield Ended("length", ask.prompt_tokens, ask.max_tokens, 0, 0.25)
        finally:
            self.running -= 1
            self.left += not over

    async def _stand_still(self) -> None:
        now = asyncio.get_running_loop().time()
        if self._stall[0] <= now < self._stall[1]:
            await asyncio.sleep(self._stall[1] - now)
