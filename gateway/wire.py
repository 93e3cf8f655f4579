"""Requests as they come off the wire: what is wrong with their bytes has a name and a place, too.

gRPC answers UNKNOWN to bytes it cannot parse, and proto3 silently keeps fields it does not know. Here both are the
client's error, with the field named. A byte or two may become a message of its own, which costs a hundred times as
much: so the fields are counted before anything is made of them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError, Message

from tercet.errors import InvalidFieldError

AnyMessage = TypeVar("AnyMessage", bound=Message)

# Fields on the wire, those of messages in it as well: a packed list is one, however long. The most that validation
# lets pass with a content each is a chat of 10,000 messages, which has 30,000, and the lists of `sampling`.
MAX_FIELDS = 40_000

_VARINT, _I64, _LENGTH_DELIMITED, _I32 = 0, 1, 2, 5
# That of groups, which are no longer used, as well.
_BEGIN_FIELDS = frozenset({_VARINT, _I64, _LENGTH_DELIMITED, 3, _I32})
_SIZES = {_I64: 8, _I32: 4}
_WIRE_TYPES = {
    FieldDescriptor.TYPE_DOUBLE: _I64,
    FieldDescriptor.TYPE_FIXED64: _I64,
    FieldDescriptor.TYPE_SFIXED64: _I64,
    FieldDescriptor.TYPE_FLOAT: _I32,
    FieldDescriptor.TYPE_FIXED32: _I32,
    FieldDescriptor.TYPE_SFIXED32: _I32,
    FieldDescriptor.TYPE_STRING: _LENGTH_DELIMITED,
    FieldDescriptor.TYPE_BYTES: _LENGTH_DELIMITED,
    FieldDescriptor.TYPE_MESSAGE: _LENGTH_DELIMITED,
}


@dataclass(frozen=True, slots=True)
class Malformed:
    """Bytes that are no request. `field` is the dotted name of the field to blame, if it could be found."""

    problem: str
    field: str
    metadata: Mapping[str, str] = dataclasses.field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Field:
    """What may stand on the wire for a field; `inner` are the fields of its messages."""

    name: str
    wire_types: frozenset[int]
    repeated: bool
    text: bool
    inner: _Schema | None


@dataclass(frozen=True, slots=True)
class _Schema:
    """A message's fields by number."""

    name: str
    fields: Mapping[int, _Field]


def deserializer(cls: type[AnyMessage]) -> Callable[[bytes], AnyMessage | Malformed]:
    """A gRPC deserializer that never raises: the handler is the one that answers. `cls` has no message within one of
    its own kind."""
    schema = _schema(cls.DESCRIPTOR)

    no_message = Malformed(f"the request is not a {schema.name}", "")

    def parse(data: bytes) -> AnyMessage | Malformed:
        try:
            _Walk(data, texts=False).message(schema, 0, len(data))
        except _WrongError as wrong:
            return Malformed(wrong.problem, wrong.path, wrong.metadata)
        except (_BrokenError, IndexError):
            return no_message
        try:
            return cls.FromString(data)
        except DecodeError:
            pass
        try:
            _Walk(data, texts=True).message(schema, 0, len(data))
        except _WrongError as wrong:
            return Malformed(f"{wrong.path} {wrong.problem}", wrong.path)
        return no_message

    return parse


def checked(received: AnyMessage | Malformed) -> AnyMessage:
    """The message, if its bytes were one and had no fields unknown to this version. Raises InvalidFieldError."""
    if isinstance(received, Malformed):
        raise InvalidFieldError(received.problem, field=received.field, metadata=received.metadata)
    return received


class _BrokenError(Exception):
    """These bytes are no message."""


class _WrongError(Exception):
    """They are one that nobody may send. `path` names the field, and grows on the way out of the messages it is in."""

    def __init__(self, problem: str, path: str, metadata: Mapping[str, str] | None = None) -> None:
        super().__init__(problem)
        self.problem = problem
        self.path = path
        self.metadata = metadata or {}


class _Walk:
    """Goes over the fields of a message without making anything of them, MAX_FIELDS at most. With `texts` it looks for
    one that is not UTF-8, which the parser finds faster, but does not name."""

    def __init__(self, data: bytes, *, texts: bool) -> None:
        self._data = data
        self._texts = texts
        self._fields_left = MAX_FIELDS

    def message(self, schema: _Schema, at: int, end: int) -> None:
        """Raises _WrongError or _BrokenError for the message in bytes `at` to `end`; IndexError where all bytes end."""
        data, fields = self._data, schema.fields
        seen: dict[int, int] = {}
        while at < end:
            tag, at = self._varint(at)
            number, wire_type = tag >> 3, tag & 7
            found = fields.get(number)
            if found is None or wire_type not in found.wire_types:
                raise _unknown(schema, number, wire_type)
            self._fields_left -= 1
            if self._fields_left < 0:
                raise _WrongError(f"the request has more than {MAX_FIELDS} fields", found.name)
            if wire_type == _VARINT:
                _, at = self._varint(at)
                continue
            if wire_type != _LENGTH_DELIMITED:
                at += _SIZES[wire_type]
                continue
            size, start = self._varint(at)
            at = start + size
            if at > end:
                raise _BrokenError
            name = found.name
            if found.repeated:
                index = seen[number] = seen.get(number, -1) + 1
                name = f"{name}[{index}]"
            if found.inner is not None:
                try:
                    self.message(found.inner, start, at)
                except _WrongError as wrong:
                    wrong.path = f"{name}.{wrong.path}".rstrip(".")
                    raise
            elif found.text and self._texts and not _is_utf8(data[start:at]):
                raise _WrongError("is not valid UTF-8", name)
        if at != end:
            raise _BrokenError

    def _varint(self, at: int) -> tuple[int, int]:
        """A number of at most ten bytes, and where it ends."""
        data = self._data
        byte = data[at]
        if byte < 128:
            return byte, at + 1
        value = byte & 127
        for shift in range(7, 70, 7):
            at += 1
            byte = data[at]
            value |= (byte & 127) << shift
            if byte < 128:
                return value, at + 1
        raise _BrokenError


def _unknown(schema: _Schema, number: int, wire_type: int) -> Exception:
    if not 0 < number <= FieldDescriptor.MAX_FIELD_NUMBER or wire_type not in _BEGIN_FIELDS:
        return _BrokenError()
    return _WrongError(
        f"field number {number} of {schema.name} is not known to this version",
        "",
        {"field_number": str(number), "message": schema.name},
    )


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def _schema(descriptor: Any) -> _Schema:
    return _Schema(descriptor.full_name, {each.number: _field(each) for each in descriptor.fields})


def _field(descriptor: Any) -> _Field:
    own = _WIRE_TYPES.get(descriptor.type, _VARINT)
    inner = descriptor.message_type
    return _Field(
        name=descriptor.name,
        # A list of numbers may be packed or not, whatever the proto says.
        wire_types=frozenset({own, _LENGTH_DELIMITED} if descriptor.is_repeated else {own}),
        repeated=descriptor.is_repeated,
        text=descriptor.type == FieldDescriptor.TYPE_STRING,
        inner=None if inner is None else _schema(inner),
    )
