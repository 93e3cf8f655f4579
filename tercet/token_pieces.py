"""How vocabularies spell text in their tokens. Knows no tokenizer."""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping
from typing import Any

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_WORD_MARK = "▁"


class Spelling(enum.Enum):
    """How a vocabulary writes bytes in its tokens."""

    # One printable character per byte, as GPT-2 does.
    BYTE_LEVEL = "byte_level"
    # Text with ▁ for a space, and <0xNN> for bytes that no token spells.
    WORD_MARK = "word_mark"

    def piece(self, token: str) -> str | bytes:
        """What a token that is not an added one adds to a text: bytes if they are not valid UTF-8 by themselves."""
        if self is Spelling.WORD_MARK:
            if match := _BYTE_TOKEN.fullmatch(token):
                return _text_if_valid(bytes([int(match.group(1), 16)]))
            return token.replace(_WORD_MARK, " ")
        try:
            return _text_if_valid(bytes([_BYTE_OF_CHARACTER[character] for character in token]))
        except KeyError:
            return token


def spelling_of(decoder: Mapping[str, Any]) -> tuple[Spelling, bool]:
    """How tokens are spelt and whether a leading space is dropped, from the decoder of a tokenizer.json. Raises
    ValueError for one that is not supported."""
    parts: list[Mapping[str, Any]] = decoder["decoders"] if decoder.get("type") == "Sequence" else [decoder]
    types = [str(part.get("type")) for part in parts]
    unknown = set(types) - {"ByteLevel", "Replace", "ByteFallback", "Fuse", "Strip", "Metaspace"}
    if unknown or not types:
        raise ValueError(
            f"a decoder of type {', '.join(sorted(unknown)) or 'none'}; supported are ByteLevel, Metaspace, and "
            "Replace with ByteFallback"
        )
    if "ByteLevel" in types:
        return Spelling.BYTE_LEVEL, False
    strip = any(part["type"] == "Strip" and int(part.get("start", 0)) > 0 for part in parts)
    strip |= any(part["type"] == "Metaspace" and part.get("prepend_scheme") != "never" for part in parts)
    return Spelling.WORD_MARK, strip


def character_of_byte() -> list[str]:
    """GPT-2's alphabet: a printable character for each of the 256 bytes."""
    printable = {*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)}
    alphabet, shifted = [], 256
    for byte in range(256):
        if byte in printable:
            alphabet.append(chr(byte))
        else:
            alphabet.append(chr(shifted))
            shifted += 1
    return alphabet


def _text_if_valid(piece: bytes) -> str | bytes:
    try:
        return piece.decode("utf-8")
    except UnicodeDecodeError:
        return piece


_BYTE_OF_CHARACTER = {character: byte for byte, character in enumerate(character_of_byte())}
