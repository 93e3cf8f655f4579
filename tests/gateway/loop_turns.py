"""What happens in each turn of an event loop."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any


class Turns:
    """Counts what happens in each turn of the event loop, until it is stopped; `most` is the most in one."""

    def __init__(self) -> None:
        self.happened: Counter[str] = Counter()
        self.most: Counter[str] = Counter()
        self._handle = asyncio.get_running_loop().call_soon(self._turn)

    def counted(self, name: str, doing: Callable[..., Any]) -> Callable[..., Any]:
        def do(*given: Any, **options: Any) -> Any:
            self.happened[name] += 1
            return doing(*given, **options)

        return do

    def stop(self) -> None:
        self._handle.cancel()

    def _turn(self) -> None:
        self.most |= self.happened
        self.happened.clear()
        self._handle = asyncio.get_running_loop().call_soon(self._turn)
