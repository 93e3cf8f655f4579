"""Lines of refusals in a log: nobody shall fill it with them."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

# So many in so many seconds have a line each.
LINES, SECONDS = 10, 1.0
# Of the others the line that counts them names so many kinds, those of which there are most.
MAX_KINDS = 20


class RefusalLines:
    """Each refusal has a line while they are few; beyond, a line every `seconds` counts them by tenant and reason,
    until they are few again. `log` is a structlog logger, `counted` the event of the line that counts."""

    def __init__(self, log: Any, counted: str, *, lines: int = LINES, seconds: float = SECONDS) -> None:
        self._log = log
        self._counted = counted
        self._lines = self._left = lines
        self._seconds = seconds
        self._others: Counter[str] = Counter()
        # That in which the time runs; a process may have one after the other.
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def quiet(self) -> bool:
        """Whether none was told of late, and all that were have their line."""
        return self._loop is None

    def tell(self, event: str, *, reason: str, tenant: str | None = None, **fields: Any) -> None:
        """A refusal, in the running event loop."""
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            self._loop, self._left = loop, self._lines
            self._others.clear()
            loop.call_later(self._seconds, self._turn, loop)
        if self._left:
            self._left -= 1
            named = {} if tenant is None else {"tenant": tenant}
            self._log.info(event, reason=reason, **named, **fields)
        else:
            self._others[f"{tenant}/{reason}" if tenant else reason] += 1

    def _turn(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._loop is not loop:
            return
        total = self._others.total()
        quiet = self._left == self._lines
        if total:
            kinds = dict(self._others.most_common(MAX_KINDS))
            rest = total - sum(kinds.values())
            self._log.info(self._counted, seconds=self._seconds, **kinds, **({"others": rest} if rest else {}))
            self._others.clear()
        self._left = 0 if total > self._lines else self._lines
        if quiet:
            self._loop = None
        else:
            loop.call_later(self._seconds, self._turn, loop)
