"""How much text a token stands for: no text has fewer tokens than is said, and what is not certain is not said."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers

from gateway.served_model import load_model
from gateway.token_reach import token_reach
from gateway.tokenizer import Tokenizer, from_hugging_face
from tercet.sections import ModelSettings
from tercet.token_pieces import character_of_byte

ALPHABET = character_of_byte()
TEXTS = st.text(alphabet="hello wor\n\x04é世😀\U000fffff<s>", max_size=60)


def byte_level(*, unspelt: str = "", unk: str | None = None) -> tokenizers.Tokenizer:
    merges = [("h", "e"), ("l", "l"), ("he", "ll"), ("hell", "o"), ("Ġ", "Ġ")]
    words = [*(each for each in ALPHABET if each not in unspelt), *(left + right for left, right in merges)]
    vocabulary = {word: i for i, word in enumerate(words)}
    backend = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=merges, unk_token=unk))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken("<s>", normalized=False)])
    return backend


def word_mark(*, byte_fallback: bool = True) -> tokenizers.Tokenizer:
    words = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), *"helo▁wr", "he", "ll", "hell", "hello"]
    merges = [("h", "e"), ("l", "l"), ("he", "ll"), ("hell", "o")]
    backend = tokenizers.Tokenizer(
        models.BPE(
            vocab={word: i for i, word in enumerate(words)},
            merges=merges,
            unk_token="<unk>",
            fuse_unk=True,
            byte_fallback=byte_fallback,
        )
    )
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    backend.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    return backend


def read(backend: tokenizers.Tokenizer) -> Tokenizer:
    return from_hugging_face(backend.to_str(), {}, source="test")


@pytest.mark.parametrize("make", [byte_level, lambda: byte_level(unspelt=ALPHABET[4] + ALPHABET[0xF3]), word_mark])
def test_no_text_has_fewer(make: Callable[[], tokenizers.Tokenizer]) -> None:
    tokens = read(make())

    @settings(max_examples=150, deadline=None)
    @given(TEXTS)
    def holds(text: str) -> None:
        assert tokens.least_tokens(text) <= len(tokens.encode(text, add_bos=False))

    holds()
    # And it says something: five letters a token, or the six of <0xNN>.
    assert tokens.least_tokens("hello" * 600) >= 500


def test_it_is_exact_where_tokens_are_the_longest() -> None:
    tokens = read(byte_level())
    assert tokens.least_tokens("hello" * 100) == len(tokens.encode("hello" * 100, add_bos=False)) == 100
    assert tokens.least_tokens("世" * 5) == 3
    assert tokens.least_tokens("") == 0


def test_bytes_without_a_token_are_none() -> None:
    tokens = read(byte_level(unspelt=ALPHABET[4]))
    assert tokens.encode("\x04" * 1000, add_bos=False) == []
    assert tokens.least_tokens("\x04" * 1000) == 0


def test_a_normal_form_is_certain_of_ascii() -> None:
    backend = byte_level()
    backend.normalizer = normalizers.NFC()
    tokens = read(backend)
    assert tokens.least_tokens("hello" * 100) == 100
    assert tokens.least_tokens("e\u0301" * 1000) == 0
    # One character beyond it does not make all the rest uncertain.
    assert tokens.least_tokens("hello" * 100 + "é") == 100


@pytest.mark.parametrize("form", [normalizers.NFC, normalizers.NFD, normalizers.NFKC, normalizers.NFKD])
@pytest.mark.parametrize("unspelt", ["", ALPHABET[ord("K")]])
def test_no_text_has_fewer_in_a_normal_form(form: Callable[[], Any], unspelt: str) -> None:
    backend = byte_level(unspelt=unspelt) if unspelt else byte_level()
    backend.normalizer = form()
    tokens = read(backend)
    # What composes with what is before it, and what becomes one byte, or none of its own.
    parts = st.sampled_from(["hello", "e", "K", "\u0301", "\u0323\u0301", "\u212a", "\u1fef", "\ufb01", "é", "世"])

    @settings(max_examples=60, deadline=None)
    @given(st.one_of(TEXTS, st.lists(parts, max_size=20).map("".join)))
    def holds(text: str) -> None:
        assert tokens.least_tokens(text) <= len(tokens.encode(text, add_bos=False))

    holds()


def _stripping(backend: tokenizers.Tokenizer) -> None:
    backend.add_special_tokens([AddedToken("<wide>", lstrip=True, normalized=False)])


def _removing(backend: tokenizers.Tokenizer) -> None:
    split = pre_tokenizers.Split(Regex(r"\s"), behavior="removed")
    backend.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False)])


def _shortening(backend: tokenizers.Tokenizer) -> None:
    backend.normalizer = normalizers.Replace("hello", "o")


def _trimming(backend: tokenizers.Tokenizer) -> None:
    backend.normalizer = normalizers.Strip()


@pytest.mark.parametrize("change", [_stripping, _removing, _shortening, _trimming])
def test_what_may_drop_text_is_not_certain(change: Callable[[tokenizers.Tokenizer], None]) -> None:
    backend = byte_level()
    change(backend)
    assert token_reach(backend, ALPHABET) is None
    assert read(backend).least_tokens("hello " * 1000) == 0


def test_one_token_for_all_that_is_unknown_is_not_certain() -> None:
    assert token_reach(byte_level(unk="h"), ALPHABET) is None
    assert token_reach(word_mark(byte_fallback=False), None) is None


@pytest.mark.model
def test_the_embedded_model() -> None:
    tokens = load_model(ModelSettings()).tokenizer
    for text in ("a" * 50_000, " " * 50_000, "#" * 50_000, "Word " * 10_000, "é世😀" * 5000, "\x04\U000fffff" * 5000):
        assert 0 < tokens.least_tokens(text) <= len(tokens.encode(text, add_bos=False))
