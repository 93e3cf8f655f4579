"""JSON schemas that generated text can be made to keep to. Pure; knows no requests.

The grammar library leaves out what it does not know of a schema, and then a text need not be valid. So what it knows is
listed here, and all else is refused by name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from .one_of import check_one_of
from .string_pattern import for_json

# Say nothing about a text.
_ANNOTATIONS = frozenset(
    {
        "title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly", "discriminator",
        "$schema", "$id", "$comment", "$defs", "definitions",
    }
)  # fmt: skip
# Those that only texts of one type keep to.
_OF_TYPE: Mapping[str, frozenset[str]] = {
    "object": frozenset(
        {
            "properties", "required", "additionalProperties", "patternProperties", "propertyNames", "minProperties",
            "maxProperties",
        }
    ),
    "array": frozenset({"items", "prefixItems", "minItems", "maxItems"}),
    "string": frozenset({"minLength", "maxLength", "pattern", "format"}),
    "integer": frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}),
    "number": frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}),
    "boolean": frozenset(),
    "null": frozenset(),
}  # fmt: skip
# Of these the library looks at the first alone.
_ALONE = ("$ref", "const", "enum", "anyOf", "oneOf", "allOf")
_LENGTHS = frozenset({"minLength", "maxLength"})
# Others are any text to the library.
_FORMATS = (
    "email", "date", "time", "date-time", "duration", "ipv4", "ipv6", "hostname", "uuid", "uri", "uri-reference",
    "uri-template", "json-pointer", "relative-json-pointer",
)  # fmt: skip


def enforceable(schema: Any) -> Any:
    """A schema whose texts are all valid by `schema`, as the library reads it. Raises ValueError, which names what in
    the schema cannot be kept to."""
    rewritten = _rewritten(schema, "")
    check_one_of(schema)
    return rewritten


def _rewritten(schema: Any, path: str) -> Any:
    if isinstance(schema, bool):
        return schema
    if not isinstance(schema, dict):
        raise ValueError(f"{_at(path)} must be an object, true or false")
    said = schema.keys() - _ANNOTATIONS
    out: dict[str, Any] = {name: value for name, value in schema.items() if name in said}
    for name in ("$defs", "definitions"):
        if name in schema:
            out[name] = _members(schema[name], f"{path}/{name}")
    alone = next((name for name in _ALONE if name in said), None)
    if alone is not None:
        return out | {alone: _one(schema, alone, said, path)}
    _check_type(schema, said, path)
    for name, rewrite in _INNER.items():
        if name in said:
            out[name] = rewrite(schema[name], f"{path}/{name}")
    if "pattern" in said:
        out["pattern"] = _pattern(schema, path)
    return out


def _one(schema: dict[str, Any], name: str, said: set[str], path: str) -> Any:
    """A keyword that must be alone, but for a type beside values."""
    others = said - {name} - ({"type"} if name in ("const", "enum") else set())
    if others:
        raise ValueError(f"{_at(path)} has {name} and {min(others)}, which cannot be kept to together")
    value = schema[name]
    if name == "$ref":
        if not isinstance(value, str) or not value.startswith("#"):
            raise ValueError(f"{_at(path)}/$ref must begin with #: other documents are not read")
        return value
    if name in ("const", "enum"):
        values = [value] if name == "const" else value
        if not isinstance(values, list) or not values:
            raise ValueError(f"{_at(path)}/enum must be a list that is not empty")
        for each in values:
            if "type" in schema and not any(_is(each, kind) for kind in _types(schema, path)):
                raise ValueError(f"{_at(path)}/{name} has a value that is not of its type")
        return value
    if not isinstance(value, list) or not value:
        raise ValueError(f"{_at(path)}/{name} must be a list that is not empty")
    if name == "allOf" and len(value) > 1:
        raise ValueError(f"{_at(path)}/allOf has more than one schema, which cannot be kept to")
    return [_rewritten(each, f"{path}/{name}/{index}") for index, each in enumerate(value)]


def _check_type(schema: dict[str, Any], said: set[str], path: str) -> None:
    """Raises ValueError for a keyword that no text would keep to."""
    kinds = _types(schema, path)
    known = {"type"}.union(*(_OF_TYPE[kind] for kind in kinds))
    for name in sorted(said - known):
        if any(name in names for names in _OF_TYPE.values()):
            raise ValueError(f"{_at(path)} has {name}, and not the type that it is about")
        raise ValueError(f"{_at(path)} has {name}, which cannot be kept to")
    properties = schema.get("properties", {})
    names = [name for name in ("patternProperties", "propertyNames", "properties") if schema.get(name)]
    if len(names) > 1:
        raise ValueError(f"{_at(path)} has {names[1]} and {names[0]}, which cannot be kept to together")
    if isinstance(properties, dict):
        for required in _required(schema, path):
            if required not in properties:
                raise ValueError(f"{_at(path)}/required has {required!r}, which is not among its properties")
    closed = not (schema.get("additionalProperties") or schema.get("patternProperties") or schema.get("propertyNames"))
    for name in ("minProperties", "maxProperties"):
        if name in schema and not closed:
            raise ValueError(f"{_at(path)} has {name} and names that are open, which cannot be kept to together")
    if "format" in schema and schema["format"] not in _FORMATS:
        raise ValueError(
            f"{_at(path)}/format is {str(schema['format'])[:32]!r}; it must be one of {', '.join(_FORMATS)}"
        )
    if "format" in schema and (others := said & (_LENGTHS | {"pattern"})):
        raise ValueError(f"{_at(path)} has format and {min(others)}, which cannot be kept to together")


def _types(schema: dict[str, Any], path: str) -> list[str]:
    given = schema.get("type")
    if given is None:
        return ["object"] if schema.keys() & {"properties", "required"} else [*_OF_TYPE][-2:]
    kinds = given if isinstance(given, list) else [given]
    for kind in kinds or [kinds]:
        if not isinstance(kind, str) or kind not in _OF_TYPE:
            raise ValueError(f"{_at(path)}/type is {str(kind)[:32]!r}; it must be one of {', '.join(_OF_TYPE)}")
    return kinds


def _required(schema: dict[str, Any], path: str) -> list[str]:
    names = schema.get("required", [])
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ValueError(f"{_at(path)}/required must be a list of names")
    return names


def _pattern(schema: dict[str, Any], path: str) -> str:
    if others := schema.keys() & _LENGTHS:
        raise ValueError(f"{_at(path)} has pattern and {min(others)}, which cannot be kept to together")
    if not isinstance(schema["pattern"], str):
        raise ValueError(f"{_at(path)}/pattern must be a text")
    return _for_json(schema["pattern"], f"{path}/pattern")


def _for_json(pattern: str, path: str) -> str:
    try:
        return for_json(pattern)
    except ValueError as error:
        raise ValueError(f"{_at(path)} {error}") from None


def _members(value: Any, path: str) -> Any:
    if not isinstance(value, dict):
        raise ValueError(f"{_at(path)} must be an object")
    return {name: _rewritten(each, f"{path}/{name}") for name, each in value.items()}


def _items(value: Any, path: str) -> Any:
    if not isinstance(value, list):
        raise ValueError(f"{_at(path)} must be a list")
    return [_rewritten(each, f"{path}/{index}") for index, each in enumerate(value)]


def _patterns(value: Any, path: str) -> Any:
    return {_for_json(name, path): each for name, each in _members(value, path).items()}


_INNER: Mapping[str, Callable[[Any, str], Any]] = {
    "properties": _members,
    "patternProperties": _patterns,
    "additionalProperties": _rewritten,
    "propertyNames": _rewritten,
    "items": _rewritten,
    "prefixItems": _items,
}


def _is(value: Any, kind: str) -> bool:
    if isinstance(value, bool):
        return kind == "boolean"
    types: dict[str, tuple[type, ...]] = {
        "object": (dict,), "array": (list,), "string": (str,), "integer": (int,), "number": (int, float),
        "boolean": (), "null": (type(None),),
    }  # fmt: skip
    return isinstance(value, types[kind])


def _at(path: str) -> str:
    """A place in the schema."""
    return f"the schema at {path[:128]}" if path else "the schema"
