"""Many values of a core's state, copied at once: by kind, field by field, since a Python object for each of thousands
of values costs more than the values.

What is in a column never changes, and holds no token. `encoded` writes its values out one after the other, and can be
called again.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple, Protocol

from .shape import Shape
from .values import encode


class Column(Protocol):
    """A copy of values, in order."""

    def encoded(self) -> Iterator[Any]:
        """JSON data of each value."""


class Kept(NamedTuple):
    """Values that are kept as they are."""

    values: Sequence[Any]

    def encoded(self) -> Iterator[Any]:
        return map(encode, self.values)


class Counted(NamedTuple):
    """Values of which only the length is kept; `tag` says what they come back as."""

    tag: str
    lengths: Sequence[int]

    def encoded(self) -> Iterator[Any]:
        return ({self.tag: length} for length in self.lengths)


class References(NamedTuple):
    """Objects that have a number of their own."""

    numbers: array[int]

    def encoded(self) -> Iterator[Any]:
        return ({"ref": number} for number in self.numbers)


class Tuples(NamedTuple):
    """Tuples: how long each is, and what is in them, one after the other."""

    lengths: Sequence[int]
    content: Column

    def encoded(self) -> Iterator[Any]:
        content = self.content.encoded()
        return (list(islice(content, length)) for length in self.lengths)


class Mixed(NamedTuple):
    """Values of several kinds: which one each is of, and a column for each kind."""

    kinds: Sequence[type]
    columns: Mapping[type, Column]

    def encoded(self) -> Iterator[Any]:
        cells = {kind: column.encoded() for kind, column in self.columns.items()}
        return (next(cells[kind]) for kind in self.kinds)


class Table(NamedTuple):
    """Objects of one class: rows of the fields that can be kept as they are, and columns of the others by their names.
    Of fields that are in neither nothing is kept."""

    shape: Shape
    rows: Sequence[Sequence[Any]]
    columns: Mapping[str, Column]

    def encoded(self) -> Iterator[Any]:
        start = {"is": self.shape.name, **dict.fromkeys(self.shape.fields)}
        cells = {name: column.encoded() for name, column in self.columns.items()}
        for row in self.rows:
            yield {
                **start,
                **dict(zip(self.shape.kept, map(encode, row), strict=True)),
                **{name: next(column) for name, column in cells.items()},
            }


class Containers(NamedTuple):
    """Containers of one kind: of each a column, or two, those of keys and values."""

    name: str
    contents: Sequence[tuple[Column, ...]]

    def encoded(self) -> Iterator[Any]:
        for columns in self.contents:
            cells = [column.encoded() for column in columns]
            yield {self.name: list(cells[0]) if len(cells) == 1 else list(map(list, zip(*cells, strict=True)))}
