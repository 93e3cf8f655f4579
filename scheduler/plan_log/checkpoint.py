"""All of a core's state at one moment, as data from which the same core can be made again.

It is taken in two halves, since the core stands still meanwhile: `Snapshot` copies what can change, class by class and
in it field by field, and writes it out later. Knows nothing of what the state means.
"""

from __future__ import annotations

import gc
from array import array
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import chain, count, groupby, islice
from operator import attrgetter
from typing import Any

from tercet.errors import PlanFileError, RequestError

from .columns import Column, Containers, Counted, Kept, Mixed, References, Table, Tuples
from .conform import strange_field
from .shape import ATOMS, BLANK_CLASSES, Shape, shape_of
from .values import class_of, decode, encode, fields_of

# Containers that can change, by name; they are numbered like objects.
_CONTAINERS: dict[str, type] = {
    "list": list, "set": set, "deque": deque, "dict": dict, "OrderedDict": OrderedDict, "Counter": Counter,
}  # fmt: skip
_MAPPINGS = frozenset({"dict", "OrderedDict", "Counter"})
_NAMES = {cls: name for name, cls in _CONTAINERS.items()}


class Snapshot:
    """The state of everything reachable from `root`; later changes of it do not show. Number 0 is the root.

    Raises UnknownClassError.
    """

    def __init__(self, root: object) -> None:
        # By identity, in the order in which they were found, which their numbers are in, too.
        self._numbers: dict[int, int] = {id(root): 0}
        self._found: list[Any] = [root]
        # What was found at a time: how many objects of which class follow each other, and the columns of each class.
        self._waves: list[tuple[list[tuple[type, int]], dict[type, Column]]] = []
        # Thousands of objects that all live on: looking for garbage among them takes as long as making them.
        collecting = gc.isenabled()
        gc.disable()
        try:
            begin = 0
            while begin < len(self._found):
                wave = self._found[begin:]
                begin += len(wave)
                self._copy(wave)
        finally:
            if collecting:
                gc.enable()
        self._len = begin
        # The originals are free to change, and to go.
        self._found.clear()
        self._numbers.clear()

    def __len__(self) -> int:
        return self._len

    def encoded(self) -> Iterator[dict[str, Any]]:
        """JSON data of each object, in order of their numbers."""
        for runs, columns in self._waves:
            cells = {cls: column.encoded() for cls, column in columns.items()}
            for cls, length in runs:
                yield from islice(cells[cls], length)

    def _copy(self, wave: list[Any]) -> None:
        """Copies what has been found and not been copied."""
        runs: list[tuple[type, int]] = []
        by_class: dict[type, list[Any]] = {}
        for cls, group in groupby(wave, type):
            run = list(group)
            runs.append((cls, len(run)))
            by_class.setdefault(cls, []).extend(run)
        self._waves.append((runs, {cls: self._objects(cls, values) for cls, values in by_class.items()}))

    def _objects(self, cls: type, values: list[Any]) -> Column:
        """Objects of one class that have numbers."""
        name = _NAMES.get(cls)
        if name is not None:
            return Containers(name, [self._contents(name, value) for value in values])
        return self._table(shape_of(cls), values)

    def _contents(self, container: str, value: Any) -> tuple[Column, ...]:
        if container in _MAPPINGS:
            return self._column(list(value)), self._column(list(value.values()))
        return (self._column(list(value)),)

    def _table(self, shape: Shape, values: list[Any]) -> Table:
        columns: dict[str, Column] = {}
        for index, name in enumerate(shape.fields):
            if index in shape.counted:
                tag = "zero_list" if index in shape.lists else "zeros"
                columns[name] = Counted(tag, list(map(len, map(attrgetter(name), values))))
            elif index in shape.open:
                columns[name] = self._column(list(map(attrgetter(name), values)))
        return Table(shape, list(map(shape.read_kept, values)), columns)

    def _column(self, values: list[Any]) -> Column:
        """A copy of values, which is theirs alone: of what can change its number."""
        kinds = dict.fromkeys(map(type, values))
        if kinds.keys() <= ATOMS:
            return Kept(values)
        if len(kinds) > 1:
            return Mixed(
                list(map(type, values)),
                {kind: self._column([value for value in values if type(value) is kind]) for kind in kinds},
            )
        (cls,) = kinds
        if cls is tuple:
            return Tuples(list(map(len, values)), self._column(list(chain.from_iterable(values))))
        if cls in _NAMES:
            return self._references(values)
        if issubclass(cls, RequestError):
            return Kept([encode(value) for value in values])
        shape = shape_of(cls)
        if shape.plain:
            return Kept(values)
        return self._table(shape, values) if shape.inline else self._references(values)

    def _references(self, values: list[Any]) -> References:
        ids = list(map(id, values))
        numbers = self._numbers
        with suppress(KeyError):
            # Most are found several times.
            return References(array("Q", map(numbers.__getitem__, ids)))
        new = dict(zip(ids, values, strict=True))
        for known in numbers.keys() & new.keys():
            del new[known]
        numbers.update(zip(new, count(len(self._found))))
        self._found += new.values()
        return References(array("Q", map(numbers.__getitem__, ids)))


def restore(entries: Iterable[Any], root: type, left_out: Mapping[str, Mapping[str, Any]] | None = None) -> Any:
    """The object that `Snapshot.encoded` wrote, a `root`, with everything that it refers to.

    `left_out` are values for attributes that are no state, by name of their class. Raises PlanFileError.
    """
    written = list(entries)
    shells = [_shell(data) for data in written]
    if not shells or type(shells[0]) is not root:
        raise PlanFileError(f"the checkpoint does not begin with a {root.__name__}")

    def resolve(number: int) -> Any:
        if number >= len(shells):
            raise PlanFileError(f"the checkpoint refers to object {number} of {len(shells)}")
        return shells[number]

    for shell, data in zip(shells, written, strict=True):
        _fill(shell, data, resolve)
    for shell in shells:
        for name, value in (left_out or {}).get(type(shell).__name__, {}).items():
            setattr(shell, name, value)
        if (strange := strange_field(shell)) is not None:
            raise PlanFileError(f"{type(shell).__name__}.{strange} in the checkpoint has a value of a wrong type")
    return shells[0]


def _shell(data: Any) -> Any:
    """An object without content."""
    if not isinstance(data, dict) or not data:
        raise PlanFileError("the checkpoint has an object that is none")
    if "is" in data:
        cls = class_of(data)
        if cls in BLANK_CLASSES:
            return cls()
        if shape_of(cls).inline:
            raise PlanFileError(f"{cls.__name__} is a value and has no number")
        return object.__new__(cls)
    container = _CONTAINERS.get(next(iter(data)))
    if container is None or len(data) != 1:
        raise PlanFileError("the checkpoint has a container of an unknown kind")
    return container()


def _fill(shell: Any, data: dict[str, Any], resolve: Callable[[int], Any]) -> None:
    if "is" in data:
        _fill_object(shell, data, resolve)
        return
    ((name, content),) = data.items()
    if not isinstance(content, list):
        raise PlanFileError(f"the content of a {name} is no list")
    if name not in _MAPPINGS:
        add = shell.add if name == "set" else shell.append
        for each in content:
            add(_hashable(decode(each, resolve)) if name == "set" else decode(each, resolve))
        return
    for pair in content:
        if not isinstance(pair, list) or len(pair) != 2:
            raise PlanFileError(f"a {name} has an entry that is no pair")
        shell[_hashable(decode(pair[0], resolve))] = decode(pair[1], resolve)


def _hashable(value: Any) -> Any:
    try:
        hash(value)
    except TypeError:
        raise PlanFileError("a container cannot be a key") from None
    return value


def _fill_object(shell: Any, data: dict[str, Any], resolve: Callable[[int], Any]) -> None:
    for name, value in fields_of(data, shape_of(type(shell)).fields, resolve).items():
        setattr(shell, name, value)
