"""Grammars that wait to be compiled, and those at which threads are. Tenants take turns, and each has one at a time.

So whoever sends what takes long waits for it himself. Knows neither grammars nor pipes.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any


@dataclass(slots=True, eq=False)
class Compile:
    """What was asked, and whose it is."""

    key: int
    owner: bytes
    asked: dict[str, Any]
    # Others were compiled meanwhile, and took memory of the same bound.
    was_shared: bool = False
    is_alone: bool = False
    is_dropped: bool = False


class Compiles:
    """At most `places` are taken at a time. Used by any thread."""

    def __init__(self, places: int) -> None:
        self._places = places
        self._changed = threading.Condition()
        # By owner, whose turn is next first. No queue is empty.
        self._waiting: dict[bytes, deque[Compile]] = {}
        # Those begin when nothing else is taken, and nothing is beside them.
        self._alone: deque[Compile] = deque()
        self._taken: list[Compile] = []

    def put(self, compile_: Compile) -> None:
        """It waits for its turn."""
        with self._changed:
            self._waiting.setdefault(compile_.owner, deque()).append(compile_)
            self._changed.notify_all()

    def drop(self, key: int) -> None:
        """Nobody wants it any more: it is never taken, or `finish` says so."""
        with self._changed:
            for each in self._taken:
                each.is_dropped |= each.key == key
            self._alone = deque(each for each in self._alone if each.key != key)
            kept = {owner: deque(each for each in queue if each.key != key) for owner, queue in self._waiting.items()}
            self._waiting = {owner: queue for owner, queue in kept.items() if queue}
            self._changed.notify_all()

    def take(self) -> Compile:
        """The next one, as soon as there is one that may begin. Whoever takes it finishes it, or puts it back."""
        with self._changed:
            while (found := self.take_now()) is None:
                self._changed.wait()
            return found

    def take_now(self) -> Compile | None:
        """The next one that may begin now, if there is one."""
        with self._changed:
            found = next(self._ready(), None)
            if found is None:
                return None
            self._leave_queue(found)
            self._taken.append(found)
            if len(self._taken) > 1:
                for each in self._taken:
                    each.was_shared = True
            return found

    def finish(self, taken: Compile) -> bool:
        """Its place is free. Whether somebody still wants it."""
        with self._changed:
            self._taken.remove(taken)
            self._changed.notify_all()
            return not taken.is_dropped

    def put_back_alone(self, taken: Compile) -> bool:
        """It is taken once more with nothing beside it, if there was something; whether that is so."""
        with self._changed:
            if not taken.was_shared or taken.is_dropped:
                return False
            self._taken.remove(taken)
            taken.was_shared, taken.is_alone = False, True
            self._alone.append(taken)
            self._changed.notify_all()
            return True

    def _ready(self) -> Iterator[Compile]:
        if self._alone:
            if not self._taken:
                yield self._alone[0]
        elif len(self._taken) < self._places and not any(each.is_alone for each in self._taken):
            busy = {each.owner for each in self._taken}
            yield from (queue[0] for owner, queue in self._waiting.items() if owner not in busy)

    def _leave_queue(self, found: Compile) -> None:
        if found.is_alone:
            self._alone.popleft()
            return
        queue = self._waiting.pop(found.owner)
        queue.popleft()
        if queue:
            self._waiting[found.owner] = queue
