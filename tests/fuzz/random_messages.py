"""Messages of any kind with random fields."""

from __future__ import annotations

from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from hypothesis import strategies as st

_RANGES = {
    FieldDescriptor.CPPTYPE_INT32: (-(2**31), 2**31 - 1),
    FieldDescriptor.CPPTYPE_INT64: (-(2**63), 2**63 - 1),
    FieldDescriptor.CPPTYPE_UINT32: (0, 2**32 - 1),
    FieldDescriptor.CPPTYPE_UINT64: (0, 2**64 - 1),
}
_TEXTS = st.one_of(
    st.text(max_size=40),
    st.sampled_from(["", "\x00", "default", "user", "system", "assistant", "interactive", "{{ 7 * 7 }}", "a" * 5000]),
)


@st.composite
def messages(draw: st.DrawFn, descriptor: Descriptor) -> Message:
    """Some of the fields of a message, each with any value that its type allows; of a oneof the last one stays."""
    message: Message = descriptor._concrete_class()
    if fields := list(descriptor.fields):
        for field in draw(st.lists(st.sampled_from(fields), max_size=6, unique_by=lambda each: each.number)):
            _set(draw, message, field)
    return message


def _set(draw: st.DrawFn, message: Message, field: FieldDescriptor) -> None:
    values = _values(field) if field.message_type is None else messages(field.message_type)
    if field.is_repeated:
        getattr(message, field.name).extend(draw(st.lists(values, max_size=4)))
    elif field.message_type is not None:
        getattr(message, field.name).CopyFrom(draw(values))
    else:
        setattr(message, field.name, draw(values))


def _values(field: FieldDescriptor) -> st.SearchStrategy[Any]:
    kind = field.cpp_type
    if kind == FieldDescriptor.CPPTYPE_STRING:
        return _TEXTS
    if kind == FieldDescriptor.CPPTYPE_BOOL:
        return st.booleans()
    if kind in (FieldDescriptor.CPPTYPE_FLOAT, FieldDescriptor.CPPTYPE_DOUBLE):
        # Often such as are asked for.
        return st.one_of(st.floats(-2, 3, width=16), st.floats(width=32))
    if kind == FieldDescriptor.CPPTYPE_ENUM:
        # proto3 keeps numbers that an enum does not name.
        return st.integers(-1, 8)
    low, high = _RANGES[kind]
    return st.one_of(st.integers(max(low, -3), 8), st.sampled_from([low, high]), st.integers(low, high))
