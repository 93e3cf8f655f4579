"""Every order in which the moves of a small world can happen, breadth first.

A world is stored as bytes, so that each move starts from a copy, and two orders that lead to the same state go on as
one. Knows no protocol.
"""

from __future__ import annotations

import copyreg
import io
import pickle
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Protocol

from scheduler.traffic import Traffic

# The name of a move and what it is about.
Move = tuple[Any, ...]

# What is only counted is left out: no decision depends on it, and states that differ in nothing else are one.
_DISPATCH = {**copyreg.dispatch_table, Traffic: lambda _traffic: (Traffic, ())}


class World(Protocol):
    """What is explored. It must be picklable, and a move do the same from the same state."""

    def moves(self) -> Sequence[Move]:
        """All that can happen now; empty at the end of a story."""
        ...

    def make(self, move: Move) -> None:
        """Lets it happen. Raises AssertionError, or anything else, if it shows that something is wrong."""
        ...

    def check(self) -> None:
        """Raises AssertionError if the state, which any move may have led to, is wrong."""
        ...

    def check_rest(self) -> None:
        """The same of a state in which nothing is on its way any more."""
        ...

    @property
    def at_rest(self) -> bool:
        """Whether nothing happens unless somebody outside asks for it, or breaks something."""
        ...


class ViolationError(AssertionError):
    """Something was wrong behind `path`; no shorter one leads to it."""

    def __init__(self, problem: BaseException, path: Sequence[Move]) -> None:
        told = "\n".join(" ".join(map(str, move)) for move in path)
        super().__init__(f"{type(problem).__name__}: {problem}\nafter {len(path)} moves:\n{told}")
        self.path = tuple(path)


@dataclass(frozen=True, slots=True)
class Explored:
    """What was seen. `interleavings` are different orders of moves from the beginning to an end; None if some were cut
    short by the bound on states."""

    states: int
    transitions: int
    rests: int
    deepest: int
    interleavings: int | None


def explore(world: World, max_states: int) -> Explored:
    """Sees all states that can be reached, or the first `max_states`. Raises ViolationError."""
    return _Exploration(world, max_states).run()


def walk(world: World, choose: Callable[[Sequence[Move]], Move]) -> tuple[Move, ...]:
    """One order, to its end. Returns it. Raises ViolationError."""
    path: list[Move] = []
    try:
        while moves := world.moves():
            path.append(choose(moves))
            world.make(path[-1])
            _check(world)
    except Exception as problem:
        raise ViolationError(problem, path) from problem
    return tuple(path)


def _check(world: World) -> None:
    world.check()
    if world.at_rest:
        world.check_rest()


class _Exploration:
    def __init__(self, world: World, max_states: int) -> None:
        self._max_states = max_states
        self._numbers: dict[bytes, int] = {}
        # By state: how it was first reached, and what it leads to.
        self._reached: list[tuple[int, Move] | None] = []
        self._depths: list[int] = []
        self._next: list[list[int]] = []
        self._frontier: deque[tuple[int, bytes]] = deque()
        self._transitions = self._rests = 0
        self._cut_short = False
        _check(world)
        self._add(world, None, 0)

    def run(self) -> Explored:
        while self._frontier:
            number, state = self._frontier.popleft()
            for move in pickle.loads(state).moves():
                self._follow(number, state, move)
        return Explored(
            len(self._reached),
            self._transitions,
            self._rests,
            max(self._depths),
            None if self._cut_short else self._count_paths(),
        )

    def _follow(self, number: int, state: bytes, move: Move) -> None:
        world = pickle.loads(state)
        self._transitions += 1
        try:
            world.make(move)
            _check(world)
        except Exception as problem:
            raise ViolationError(problem, [*self._path(number), move]) from problem
        self._next[number].append(self._add(world, (number, move), self._depths[number] + 1))

    def _add(self, world: World, reached: tuple[int, Move] | None, depth: int) -> int:
        state = _dump(world)
        name = blake2b(state, digest_size=16).digest()
        number = self._numbers.setdefault(name, len(self._reached))
        if number == len(self._reached):
            self._reached.append(reached)
            self._depths.append(depth)
            self._next.append([])
            self._rests += world.at_rest
            if number < self._max_states:
                self._frontier.append((number, state))
            else:
                self._cut_short = True
        return number

    def _path(self, number: int) -> list[Move]:
        path: list[Move] = []
        while (reached := self._reached[number]) is not None:
            number = reached[0]
            path.append(reached[1])
        return path[::-1]

    def _count_paths(self) -> int:
        """Raises ViolationError for a circle: what goes round and round never comes to an end."""
        left = [0] * len(self._next)
        for followers in self._next:
            for follower in followers:
                left[follower] += 1
        paths = [0] * len(self._next)
        paths[0] = 1
        ready, seen, ends = [0], 0, 0
        while ready:
            number = ready.pop()
            seen += 1
            if not self._next[number]:
                ends += paths[number]
            for follower in self._next[number]:
                paths[follower] += paths[number]
                left[follower] -= 1
                if not left[follower]:
                    ready.append(follower)
        if seen < len(self._next):
            inside = next(number for number, count in enumerate(left) if count)
            raise ViolationError(AssertionError("this can go on for ever"), self._path(inside))
        return ends


def _dump(world: World) -> bytes:
    buffer = io.BytesIO()
    pickler = pickle.Pickler(buffer, pickle.HIGHEST_PROTOCOL)
    pickler.dispatch_table = _DISPATCH
    pickler.dump(world)
    return buffer.getvalue()
