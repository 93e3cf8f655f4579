"""Bytes off the wire: whatever they are, the answer is a message or one typed error."""

from __future__ import annotations

import pytest
from google.protobuf.message import DecodeError, Message
from google.protobuf.unknown_fields import UnknownFieldSet
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.wire import MAX_FIELDS, Malformed, checked, deserializer
from tercet.errors import InvalidFieldError
from tercet.v1 import inference_pb2 as pb
from tercet.v1 import operations_pb2

from ..fuzz.random_messages import messages

parse = deserializer(pb.GenerateRequest)

WHOLE = pb.GenerateRequest(
    model="m",
    chat=pb.Chat(messages=[pb.ChatMessage(role="user", content="Grüße"), pb.ChatMessage(role="system", content="x")]),
    sampling=pb.SamplingParams(temperature=0.5, seed=7),
    stop=pb.StopConditions(max_tokens=3, strings=["one", "zwölf"], token_ids=[1, 2]),
    request_id="id",
)


def test_a_good_message_passes() -> None:
    assert checked(parse(WHOLE.SerializeToString())) == WHOLE


@settings(max_examples=300)
@given(st.binary(max_size=60))
def test_any_bytes(data: bytes) -> None:
    try:
        message = checked(parse(data))
    except InvalidFieldError:
        return
    # Nothing in it was ignored: the same bytes in another order at most.
    assert pb.GenerateRequest.FromString(message.SerializeToString()) == message


@settings(max_examples=300)
@given(st.integers(0, len(WHOLE.SerializeToString()) - 1), st.integers(0, 255))
def test_one_changed_byte(position: int, value: int) -> None:
    data = bytearray(WHOLE.SerializeToString())
    data[position] = value
    received = parse(bytes(data))
    if isinstance(received, Malformed):
        with pytest.raises(InvalidFieldError) as caught:
            checked(received)
        assert caught.value.metadata.get("field", "") == received.field


def test_the_field_that_is_not_utf8_is_named() -> None:
    data = WHOLE.SerializeToString()
    places = [
        (b"zw\xc3\xb6lf", b"zw\xc3lllf"[:6], "stop.strings[1]"),
        (b"Gr\xc3\xbc\xc3\x9fe", b"Gr\xc3\xbc\xc3xe", "chat.messages[0].content"),
        (b"system", b"s\xffstem", "chat.messages[1].role"),
    ]
    for good, bad, field in places:
        assert len(good) == len(bad)
        assert good in data
        received = parse(data.replace(good, bad))
        assert received == Malformed(f"{field} is not valid UTF-8", field)


def test_unknown_fields_are_found_at_any_depth() -> None:
    inner = pb.ChatMessage(role="user").SerializeToString() + b"\x18\x01"
    chat = b"\x0a" + bytes([len(inner)]) + inner
    data = b"\x22" + bytes([len(chat)]) + chat
    with pytest.raises(InvalidFieldError) as caught:
        checked(parse(data))
    assert caught.value.metadata == {
        "field": "chat.messages[0]",
        "field_number": "3",
        "message": "tercet.v1.ChatMessage",
    }


def has_unknown(message: Message) -> bool:
    """Whether there is a field in it, at any depth, that its type does not have."""
    if len(UnknownFieldSet(message)):
        return True
    inner = [value for field, value in message.ListFields() if field.message_type is not None]
    return any(has_unknown(each) for value in inner for each in ([value] if isinstance(value, Message) else value))


@settings(max_examples=300)
@given(st.data())
def test_what_passes_is_what_the_parser_takes_and_knows(data: st.DataObject) -> None:
    """Of messages with some bytes changed: no other is let through, and none of those is refused."""
    text = bytearray(data.draw(messages(pb.GenerateRequest.DESCRIPTOR)).SerializeToString())
    for _ in range(data.draw(st.integers(0, 2))):
        at = data.draw(st.integers(0, len(text)))
        text[at : at + data.draw(st.integers(0, 2))] = data.draw(st.binary(max_size=3))
    try:
        message = pb.GenerateRequest.FromString(bytes(text))
    except DecodeError:
        message = None
    received = parse(bytes(text))
    if isinstance(received, Malformed):
        # Of a oneof the parser drops what it knows nothing of as soon as another member follows.
        assert message is None or has_unknown(message) or received.metadata
    else:
        assert received == message
        assert not has_unknown(received)


@settings(max_examples=100)
@given(messages(pb.GenerateRequest.DESCRIPTOR))
def test_every_message_of_this_version_passes(message: Message) -> None:
    assert parse(message.SerializeToString()) == pb.GenerateRequest.FromString(message.SerializeToString())


def test_numbers_may_be_packed_or_not() -> None:
    ids = b"\x08\x01\x08\xac\x02\x0a\x02\x03\x04"
    assert checked(parse(b"\x1a" + bytes([len(ids)]) + ids)).token_ids.ids == [1, 300, 3, 4]


def nested(tag: int, inner: bytes) -> bytes:
    """A field that holds a message of these bytes."""
    size, prefix = len(inner), bytearray([tag])
    while size > 127:
        prefix.append(size & 127 | 128)
        size >>= 7
    return bytes([*prefix, size]) + inner


EMPTY_MANY = MAX_FIELDS + 1


@pytest.mark.parametrize(
    ("cls", "data", "field"),
    [
        (pb.GenerateRequest, nested(0x22, b"\x0a\x00" * EMPTY_MANY), "chat.messages"),
        (pb.TokenizeRequest, nested(0x1A, b"\x0a\x00" * EMPTY_MANY), "chat.messages"),
        (pb.GenerateRequest, nested(0x2A, b"\x42\x00" * EMPTY_MANY), "sampling.logit_bias"),
        (pb.GenerateRequest, nested(0x32, b"\x12\x00" * EMPTY_MANY), "stop.strings"),
        (pb.GenerateRequest, nested(0x1A, b"\x08\x01" * EMPTY_MANY), "token_ids.ids"),
        (pb.GenerateRequest, b"\x2a\x00" * EMPTY_MANY, "sampling"),
        (pb.DetokenizeRequest, b"\x10\x01" * EMPTY_MANY, "token_ids"),
        (operations_pb2.CancelGenerationRequest, b"\x0a\x00" * EMPTY_MANY, "request_id"),
    ],
)
def test_more_fields_than_anybody_needs_are_not_parsed(cls: type[Message], data: bytes, field: str) -> None:
    received = deserializer(cls)(data)
    assert received == Malformed(f"the request has more than {MAX_FIELDS} fields", field)
    # Nor is what follows looked at.
    assert deserializer(cls)(data + b"\xff" * 20) == received


def test_bad_text_behind_too_many_fields_is_not_looked_for() -> None:
    data = nested(0x22, b"\x0a\x00" * EMPTY_MANY + b"\x0a\x03\x12\x01\xff")
    assert parse(data) == Malformed(f"the request has more than {MAX_FIELDS} fields", "chat.messages")


def test_the_largest_chat_that_validation_takes_passes() -> None:
    chat = pb.Chat(messages=[pb.ChatMessage(role="user", content="x") for _ in range(10_000)])
    sampling = pb.SamplingParams(logit_bias=[pb.LogitBias(token_id=i + 1, bias=1.0) for i in range(1024)])
    whole = pb.GenerateRequest(chat=chat, sampling=sampling)
    assert checked(parse(whole.SerializeToString())) == whole


def test_a_number_without_end_is_no_message() -> None:
    assert parse(b"\x48" + b"\xff" * 5_000_000) == Malformed("the request is not a tercet.v1.GenerateRequest", "")
