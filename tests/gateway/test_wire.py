"""Bytes off the wire: whatever they are, the answer is a message or one typed error."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.wire import Malformed, checked, deserializer
from tercet.errors import InvalidFieldError
from tercet.v1 import inference_pb2 as pb

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
