"""Whether what a JSON schema offers by `oneOf` excludes each other: to the grammar library that is `anyOf`, and a text
that two of them allow is then not valid. Pure; for schemas that `enforceable` has found well-formed."""

from __future__ import annotations

import json
from collections.abc import Iterator, Set
from itertools import combinations
from typing import Any

_BY_NAME = ("$defs", "definitions", "properties", "patternProperties")
_SINGLE = ("additionalProperties", "propertyNames", "items")
_LISTED = ("prefixItems", "anyOf", "oneOf", "allOf")
_OPEN = ("additionalProperties", "patternProperties", "propertyNames")
# Of schemas within each other that are looked into; what is deeper is not told apart.
_MAX_DEPTH = 16
# Some 50 ms of them.
MAX_COMPARED = 10_000


def check_one_of(root: Any) -> None:
    """Raises ValueError if a text could be valid by two schemas of one `oneOf`, as far as that can be told."""
    schemas = list(_schemas(root, ""))
    comparison = _Comparison(root, {id(schema) for _, schema in schemas})
    for path, schema in schemas:
        for (i, one), (j, other) in combinations(enumerate(schema.get("oneOf", ())), 2):
            if not comparison.apart(one, other):
                raise ValueError(
                    f"the schema at {path[:128]}/oneOf has {i} and {j}, which are not told apart by types, or by "
                    "the values of a required property; anyOf takes either"
                )


def _schemas(schema: Any, path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """The schema and all within it, with where they are."""
    if not isinstance(schema, dict):
        return
    yield path, schema
    for keyword in _BY_NAME:
        for name, each in schema.get(keyword, {}).items():
            yield from _schemas(each, f"{path}/{keyword}/{name}")
    for keyword in _SINGLE:
        yield from _schemas(schema.get(keyword), f"{path}/{keyword}")
    for keyword in _LISTED:
        for index, each in enumerate(schema.get(keyword, ())):
            yield from _schemas(each, f"{path}/{keyword}/{index}")


class _Comparison:
    """Of the schemas of the document `root`, which have these `ids`. Takes no more than MAX_COMPARED steps in all: what
    is beyond is not told apart."""

    def __init__(self, root: Any, ids: Set[int]) -> None:
        self._root = root
        self._ids = ids
        # Of schemas by their ids: a list of values may be long, and compared with many.
        self._told: dict[int, tuple[Set[str] | None, Set[str]]] = {}
        self._num_compared = 0

    def apart(self, one: Any, other: Any, depth: int = _MAX_DEPTH) -> bool:
        """Whether no text of either is valid by the other one."""
        self._num_compared += 1
        if one is False or other is False:
            return True
        if not depth or self._num_compared > MAX_COMPARED or not isinstance(one, dict) or not isinstance(other, dict):
            return False
        for this, that in ((one, other), (other, one)):
            if "$ref" in this:
                return self.apart(self._target(this["$ref"]), that, depth - 1)
            for keyword in ("anyOf", "oneOf", "allOf"):
                if keyword in this:
                    return all(self.apart(each, that, depth - 1) for each in this[keyword])
        (values, kinds), (others, other_kinds) = self._values_and_kinds(one), self._values_and_kinds(other)
        if values is not None and others is not None:
            return not values & others
        shared = kinds & other_kinds
        if shared != {"object"} or values is not None or others is not None:
            return not shared
        names = set(one.get("required", ())) & set(other.get("required", ()))
        if any(self.apart(one["properties"][name], other["properties"][name], depth - 1) for name in names):
            return True
        return _never_valid(one, other) and _never_valid(other, one)

    def _values_and_kinds(self, schema: dict[str, Any]) -> tuple[Set[str] | None, Set[str]]:
        if id(schema) not in self._told:
            values = _values(schema)
            self._told[id(schema)] = values, _kinds(schema, values)
        return self._told[id(schema)]

    def _target(self, pointer: str) -> Any:
        """What a reference is to; True, which is any text, where there is no schema."""
        found = self._root
        for name in pointer.removeprefix("#").split("/")[1:]:
            found = found.get(name) if isinstance(found, dict) else None
        return found if id(found) in self._ids else True


def _never_valid(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether no object that is written by `one` is valid by `other`, by the names of its properties."""
    written, allowed = one.get("properties", {}).keys(), other.get("properties", {}).keys()
    closed = not any(one.get(keyword) for keyword in _OPEN)
    if closed and not set(other.get("required", ())) <= written:
        return True
    return other.get("additionalProperties") is False and not set(one.get("required", ())) <= allowed


def _values(schema: dict[str, Any]) -> Set[str] | None:
    """The only values there are, in a form that is the same for equal ones; None if others are."""
    if "const" in schema:
        return {_canonical(schema["const"])}
    return set(map(_canonical, schema["enum"])) if "enum" in schema else None


def _canonical(value: Any) -> str:
    # JSON has one kind of number.
    return json.dumps(json.loads(json.dumps(value), parse_int=float), sort_keys=True)


def _kinds(schema: dict[str, Any], values: Set[str] | None) -> Set[str]:
    """Types of the texts that are valid; an integer is a number."""
    if values is not None:
        return {_kind_of(json.loads(value)) for value in values}
    given = schema.get("type", ["object", "array", "string", "number", "boolean", "null"])
    return {"number" if kind == "integer" else kind for kind in ([given] if isinstance(given, str) else given)}


def _kind_of(value: Any) -> str:
    if isinstance(value, bool):
        return "boolean"
    kinds: dict[type, str] = {dict: "object", list: "array", str: "string", float: "number", type(None): "null"}
    return kinds[type(value)]
