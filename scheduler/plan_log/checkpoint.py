"""All of a core's state at one moment, as data from which the same core can be made again.

It is taken in two halves, since the core stands still meanwhile: `Snapshot` copies what can change, which is quick, and
writes it out later. Knows nothing of what the state means.
"""

from __future__ import annotations

import gc
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from tercet.errors import PlanFileError, RequestError

from .shape import ATOMS, BLANK_CLASSES, Shape, is_blank, is_counted, shape_of
from .values import Copied, class_of, copied, counted, decode, decode_field, encode, encode_fields, fields_of

# Containers that can change, by name; they are numbered like objects.
_CONTAINERS: dict[str, type] = {
    "list": list, "set": set, "deque": deque, "dict": dict, "OrderedDict": OrderedDict, "Counter": Counter,
}  # fmt: skip
_MAPPINGS = frozenset({"dict", "OrderedDict", "Counter"})
# Most fields that could hold something hold this.
_NOTHING: tuple[()] = ()
_NAMES = {cls: name for name, cls in _CONTAINERS.items()}


class Snapshot:
    """The state of everything reachable from `root`; later changes of it do not show. Number 0 is the root.

    `left_out` are attributes that are not state, by name of their class. Raises UnknownClassError.
    """

    def __init__(self, root: object, left_out: Mapping[str, frozenset[str]] | None = None) -> None:
        self._left_out = left_out or {}
        self._references: dict[int, dict[str, int]] = {id(root): {"ref": 0}}
        self._found: list[object] = [root]
        # The shape of each, or the name of what kind of container it is, and its content.
        self._entries: list[tuple[Shape | str, Any]] = []
        # Thousands of objects that all live on: looking for garbage among them takes as long as making them.
        collecting = gc.isenabled()
        gc.disable()
        try:
            while len(self._entries) < len(self._found):
                self._copy_found()
        finally:
            if collecting:
                gc.enable()
        # The originals are free to change, and to go.
        self._found.clear()
        self._references.clear()

    def __len__(self) -> int:
        return len(self._entries)

    def encoded(self) -> Iterator[dict[str, Any]]:
        """JSON data of each object, in order of their numbers."""
        for kind, content in self._entries:
            if isinstance(kind, str):
                yield {kind: [encode(each) for each in content]}
            elif isinstance(content, dict):
                yield {"is": kind.name, **{name: encode(each) for name, each in content.items()}}
            else:
                yield encode_fields(kind, content)

    def _copy_found(self) -> None:
        """Copies what has been found and not been copied: class by class, and in it field by field, since of the many
        sequences that there may be each costs microseconds."""
        begin = len(self._entries)
        found = self._found[begin:]
        self._entries += [("", None)] * len(found)
        by_class: dict[type, list[int]] = {}
        for index, value in enumerate(found):
            by_class.setdefault(type(value), []).append(index)
        for cls, indices in by_class.items():
            values = [found[index] for index in indices]
            kind: Shape | str = _NAMES.get(cls) or shape_of(cls)
            copies: list[Any]
            if isinstance(kind, str):
                copies = [self._contents(kind, value) for value in values]
            elif cls in BLANK_CLASSES:
                copies = [{}] * len(values)
            elif kind.fields is None:
                copies = [self._attributes(kind, value) for value in values]
            else:
                copies = self._fields(kind, values)
            for index, copy in zip(indices, copies, strict=True):
                self._entries[begin + index] = kind, copy

    def _contents(self, container: str, value: Any) -> list[Any]:
        freeze = self._freeze
        if container not in _MAPPINGS:
            return [each if type(each) in ATOMS else freeze(each) for each in value]
        return [
            (key if type(key) in ATOMS else freeze(key), each if type(each) in ATOMS else freeze(each))
            for key, each in value.items()
        ]

    def _fields(self, shape: Shape, values: list[Any]) -> list[list[Any]]:
        """The fields of each of several objects of one class."""
        rows = copied(shape, values)
        for index in shape.open:
            kinds = {type(row[index]) for row in rows}
            if len(kinds) == 1 and (part := _inline_shape(kinds.pop())) is not None:
                for row, fields in zip(rows, self._fields(part, [row[index] for row in rows]), strict=True):
                    row[index] = Copied(part, fields)
                continue
            for row in rows:
                each = row[index]
                if each is not None and each is not _NOTHING:
                    row[index] = self._references.get(id(each)) or self._freeze(each)
        return rows

    def _attributes(self, shape: Shape, value: Any) -> dict[str, Any]:
        left_out = self._left_out.get(shape.name, ())
        return {
            name: None if is_blank(name) else counted(each) if is_counted(name) else self._freeze(each)
            for name, each in vars(value).items()
            if name not in left_out
        }

    def _freeze(self, value: Any) -> Any:
        """What stands for a value: itself if it cannot change, a copy, or a reference."""
        cls = type(value)
        if cls is tuple:
            return tuple([each if type(each) in ATOMS else self._freeze(each) for each in value])
        if cls in ATOMS:
            return value
        reference = self._references.get(id(value))
        if reference is not None:
            return reference
        if cls not in _NAMES:
            if isinstance(value, RequestError):
                return encode(value)
            shape = shape_of(cls)
            if shape.plain:
                return value
            if shape.inline:
                return Copied(shape, self._fields(shape, [value])[0])
        reference = self._references[id(value)] = {"ref": len(self._found)}
        self._found.append(value)
        return reference


def _inline_shape(cls: type) -> Shape | None:
    """How values of the class are copied, None if they are kept as they are, or are no values."""
    if cls in ATOMS or cls is tuple or cls in _NAMES or issubclass(cls, RequestError):
        return None
    shape = shape_of(cls)
    return shape if shape.inline and not shape.plain else None


def restore(entries: Iterable[Any], root: type, left_out: Mapping[str, Mapping[str, Any]] | None = None) -> Any:
    """The object that `Snapshot.encoded` wrote, a `root`, with everything that it refers to.

    `left_out` are values for attributes that the snapshot left out, by name of their class. Raises PlanFileError.
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
    cls = type(shell)
    if cls in BLANK_CLASSES:
        return
    names = shape_of(cls).fields
    if names is None:
        for name, content in data.items():
            if name != "is":
                vars(shell)[name] = decode_field(name, content, resolve)
        return
    for name, value in fields_of(data, names, resolve).items():
        setattr(shell, name, value)
