"""How much text one token of a vocabulary can stand for, where that is certain: a text that is much longer has too many
tokens, whatever they are."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tokenizers
from tokenizers import models

# Normal forms may make a text shorter, but leave ASCII as it is.
_NORMAL_FORMS = frozenset({"NFC", "NFD", "NFKC", "NFKD"})
# These cut a text and drop nothing of it, unless they are told to by a behaviour.
_CUTS = frozenset({"ByteLevel", "Digits", "Metaspace", "Punctuation", "Split"})


@dataclass(frozen=True, slots=True)
class TokenReach:
    """A token stands for at most `most` bytes of a text, or, if `unspelt` is None, characters. `unspelt` are bytes that
    no token stands for: they are dropped. With `ascii_only` that holds of ASCII: a character beyond it may become none,
    and take the one before it along."""

    most: int
    unspelt: bytes | None
    ascii_only: bool

    def least_tokens(self, text: str) -> int:
        """A text has at least so many tokens; 0 if that takes work to know."""
        if self.ascii_only and not text.isascii():
            plain = text.encode("ascii", "ignore")
            size = len(plain) - (len(text) - len(plain))
            size -= 0 if self.unspelt is None else len(plain) - len(plain.translate(None, self.unspelt))
            return max(0, -(-size // self.most))
        size = len(text) if self.unspelt is None else len(text.encode().translate(None, self.unspelt))
        return -(-size // self.most)


def token_reach(backend: tokenizers.Tokenizer, alphabet: Sequence[str] | None) -> TokenReach | None:
    """That of a tokenizer whose vocabulary spells bytes by the characters of an `alphabet`, or, without one, by <0xNN>
    where it has no characters; None if it is not certain how much of a text it leaves."""
    added = list(backend.get_added_tokens_decoder().values())
    normalizing = [step for step in _steps(backend.normalizer, "normalizers") if not _lengthens(step)]
    cuts = list(_steps(backend.pre_tokenizer, "pretokenizers"))
    vocabulary: dict[str, int] = backend.get_vocab(with_added_tokens=False)
    if (
        not isinstance(backend.model, models.BPE)
        or any(token.lstrip or token.rstrip for token in added)
        or any(step["type"] not in _NORMAL_FORMS for step in normalizing)
        or any(step["type"] not in _CUTS or step.get("behavior") == "Removed" for step in cuts)
    ):
        return None
    if alphabet is None:
        if not backend.model.byte_fallback or any(f"<0x{byte:02X}>" not in vocabulary for byte in range(256)):
            return None
        unspelt, lengths = None, [len(token.content) for token in added]
    else:
        # What is unknown may be one token, however much of it there is.
        if backend.model.unk_token is not None or not any(step["type"] == "ByteLevel" for step in cuts):
            return None
        unspelt = bytes(byte for byte, character in enumerate(alphabet) if character not in vocabulary)
        lengths = [len(token.content.encode()) for token in added]
    return TokenReach(max(1, *map(len, vocabulary), *lengths), unspelt, ascii_only=bool(normalizing))


def _lengthens(step: Mapping[str, Any]) -> bool:
    """Whether a normalizer never makes a text shorter."""
    if step["type"] == "Replace":
        pattern = step["pattern"].get("String", "")
        return bool(pattern) and len(step["content"]) >= len(pattern)
    return bool(step["type"] == "Prepend")


def _steps(part: Any, inner: str) -> Iterator[Mapping[str, Any]]:
    """What a part of a tokenizer does, in order."""
    if part is not None:
        yield from _flat(json.loads(part.__getstate__()), inner)


def _flat(state: Mapping[str, Any], inner: str) -> Iterator[Mapping[str, Any]]:
    if state["type"] != "Sequence":
        yield state
        return
    for each in state[inner]:
        yield from _flat(each, inner)
