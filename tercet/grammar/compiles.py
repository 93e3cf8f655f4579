"""Grammars that wait to be compiled, and those at which threads are. Tenants take turns, and each has one at a time.

So whoever sends what takes long waits for it himself. Knows neither grammars nor pipes.
"""

from __future__ import annotations

import threading
from collections import deque
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
        # By owner, whose turn is next first; those of which one is taken have theirs behind all who wait when that is
        # over. No queue is empty. One that is to be alone begins when nothing else is taken, and nothing is beside it.
        self._waiting: dict[bytes, deque[Compile]] = {}
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
            found = self._next()
            if found is None:
                return None
            queue = self._waiting[found.owner]
            queue.popleft()
            if not queue:
                del self._waiting[found.owner]
            self._taken.append(found)
            if len(self._taken) > 1:
                for each in self._taken:
                    each.was_shared = True
            return found

    def finish(self, taken: Compile) -> bool:
        """Its place is free. Whether somebody still wants it."""
        with self._changed:
            self._leave(taken)
            return not taken.is_dropped

    def put_back_alone(self, taken: Compile) -> bool:
        """It is taken once more, as the next one of its owner, with nothing beside it, if there was something; whether
        that is so."""
        with self._changed:
            if not taken.was_shared or taken.is_dropped:
                return False
            taken.was_shared, taken.is_alone = False, True
            self._waiting.setdefault(taken.owner, deque()).appendleft(taken)
            self._leave(taken)
            return True

    def _next(self) -> Compile | None:
        """Whose turn it is, if it may begin."""
        if len(self._taken) == self._places or any(each.is_alone for each in self._taken):
            return None
        busy = {each.owner for each in self._taken}
        first = next((queue[0] for owner, queue in self._waiting.items() if owner not in busy), None)
        if first is not None and first.is_alone and self._taken:
            # Nobody passes it meanwhile, or it would wait for ever.
            return None
        return first

    def _leave(self, taken: Compile) -> None:
        """Its place is free, and its owner has had a turn."""
        self._taken.remove(taken)
        queue = self._waiting.pop(taken.owner, None)
        if queue is not None:
            self._waiting[taken.owner] = queue
        self._changed.notify_all()
