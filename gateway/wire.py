"""Requests as they come off the wire: what is wrong with their bytes has a name and a place, too.

gRPC answers UNKNOWN to bytes it cannot parse, and proto3 silently keeps fields it does not know. Here both are the
client's error, with the field named.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.empty_pb2 import Empty
from google.protobuf.message import DecodeError, Message
from google.protobuf.unknown_fields import UnknownFieldSet

from tercet.errors import InvalidFieldError

AnyMessage = TypeVar("AnyMessage", bound=Message)

_LENGTH_DELIMITED = 2


@dataclass(frozen=True, slots=True)
class Malformed:
    """Bytes that are no message. `field` is the dotted name of the field to blame, if it could be found."""

    problem: str
    field: str


def deserializer(cls: type[AnyMessage]) -> Callable[[bytes], AnyMessage | Malformed]:
    """A gRPC deserializer that never raises: the handler is the one that answers."""

    def parse(data: bytes) -> AnyMessage | Malformed:
        try:
            return cls.FromString(data)
        except DecodeError:
            field = _first_bad_text(data, cls.DESCRIPTOR)
            if field is None:
                return Malformed(f"the request is not a {cls.DESCRIPTOR.full_name}", "")
            return Malformed(f"{field} is not valid UTF-8", field)

    return parse


def checked(received: AnyMessage | Malformed) -> AnyMessage:
    """The message, if its bytes were one and had no fields unknown to this version. Raises InvalidFieldError."""
    if isinstance(received, Malformed):
        raise InvalidFieldError(received.problem, field=received.field)
    _refuse_unknown(received, "")
    return received


def _refuse_unknown(message: Message, path: str) -> None:
    unknown = UnknownFieldSet(message)
    if len(unknown):
        number, name = unknown[0].field_number, message.DESCRIPTOR.full_name
        raise InvalidFieldError(
            f"field number {number} of {name} is not known to this version",
            field=path.rstrip("."),
            metadata={"field_number": str(number), "message": name},
        )
    for field, value in message.ListFields():
        if field.type != FieldDescriptor.TYPE_MESSAGE:
            continue
        if isinstance(value, Message):
            _refuse_unknown(value, f"{path}{field.name}.")
        else:
            for index, item in enumerate(value):
                _refuse_unknown(item, f"{path}{field.name}[{index}].")


def _first_bad_text(data: bytes, descriptor: Any) -> str | None:
    return next(_bad_texts(data, descriptor, ""), None)


def _bad_texts(data: bytes, descriptor: Any, path: str) -> Iterator[str]:
    try:
        fields = UnknownFieldSet(Empty.FromString(data))
    except DecodeError:
        return
    seen: dict[int, int] = {}
    for position in range(len(fields)):
        item = fields[position]
        field = descriptor.fields_by_number.get(item.field_number)
        if field is None or item.wire_type != _LENGTH_DELIMITED:
            continue
        index = seen.get(field.number, 0)
        seen[field.number] = index + 1
        name = f"{path}{field.name}[{index}]" if field.is_repeated else f"{path}{field.name}"
        if field.type == FieldDescriptor.TYPE_STRING:
            try:
                item.data.decode("utf-8")
            except UnicodeDecodeError:
                yield name
        elif field.type == FieldDescriptor.TYPE_MESSAGE and field.message_type is not None:
            yield from _bad_texts(item.data, field.message_type, f"{name}.")
