"""Text of tokens as they come, against the text of all of them."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from gateway.detokenizer import Detokenizer

BYTES = [bytes([i]) for i in range(256)]


def piece_of(token_id: int) -> str | bytes:
    """Token i < 256 is byte i; 256 is special; then a few words."""
    if token_id < 256:
        return chr(token_id) if token_id < 128 else BYTES[token_id]
    return ["", " hello", "é", "\u4e16"][token_id - 256]


def raw_of(token_id: int) -> bytes:
    piece = piece_of(token_id)
    return piece if isinstance(piece, bytes) else piece.encode()


def run(token_ids: list[int], **options: Any) -> str:
    detokenizer = Detokenizer(piece_of, **options)
    return "".join([*(detokenizer.push(token_id) for token_id in token_ids), detokenizer.finish()])


@given(st.lists(st.integers(0, 259), max_size=40))
def test_any_bytes_decode_as_a_whole(token_ids: list[int]) -> None:
    assert run(token_ids) == b"".join(map(raw_of, token_ids)).decode("utf-8", "replace")


@given(st.text(max_size=20))
def test_text_cut_into_bytes_never_shows_a_replacement(text: str) -> None:
    detokenizer, seen, data = Detokenizer(piece_of), "", text.encode()
    for position, byte in enumerate(data):
        seen += detokenizer.push(byte)
        whole = data[: position + 1].decode("utf-8", "ignore")
        assert seen == whole
        assert detokenizer.pending == (whole.encode() != data[: position + 1])
    assert detokenizer.finish() == ""


def test_unfinished_character_is_replaced_only_at_the_end() -> None:
    detokenizer = Detokenizer(piece_of)
    assert [detokenizer.push(byte) for byte in "🙂".encode()[:3]] == ["", "", ""]
    assert detokenizer.pending
    assert detokenizer.finish() == "\ufffd"
    assert detokenizer.finish() == ""


def test_special_token_between_the_bytes_of_a_character() -> None:
    first, second = "é".encode()
    assert run([first, 256, second]) == "é"


def test_streams_are_independent() -> None:
    one, other = Detokenizer(piece_of), Detokenizer(piece_of)
    one.push(0xC3)
    assert other.push(0x41) == "A"
    assert one.push(0xA9) == "é"


def test_one_leading_space_is_stripped_once() -> None:
    assert run([256, 257, 257], strip_leading_space=True) == "hello hello"
    assert run([32, 32, 65], strip_leading_space=True) == " A"
    assert run([257]) == " hello"
