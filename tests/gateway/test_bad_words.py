"""Bad words: what they are in tokens, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.bad_words import MAX_BAD_TOKENS, MAX_BAD_WORDS, check_bad_words, read_bad_words, spell
from tercet.errors import InvalidFieldError


def encode(text: str) -> list[int]:
    """A token for each character, but for a space before a letter, which is part of that letter's."""
    ids: list[int] = []
    space = False
    for character in text:
        if space and character.isalpha():
            ids[-1] = 1000 + ord(character)
        else:
            ids.append(ord(character))
        space = character == " "
    return ids


def test_a_word_is_banned_alone_and_behind_a_space() -> None:
    assert spell(["ab"], encode) == ((97, 98), (1097, 98))
    assert spell([" ab", "ab", "ab"], encode) == ((97, 98), (1097, 98))


def test_a_space_that_is_a_token_of_its_own_makes_no_other_word() -> None:
    assert spell(["1", "\n"], encode) == ((49,), (10,))


def test_nothing_but_space_is_what_it_is() -> None:
    assert spell(["  "], encode)[0] == (32, 32)


def test_words_without_tokens_and_too_many_tokens() -> None:
    with pytest.raises(InvalidFieldError) as caught:
        spell(["a", "b"], lambda text: [] if "b" in text else [1])
    assert caught.value.metadata["field"] == "sampling.bad_words[1]"
    words = [chr(1000 + i) * 9 for i in range(MAX_BAD_WORDS)]
    with pytest.raises(InvalidFieldError) as caught:
        spell(words, encode)
    assert caught.value.metadata["field"] == "sampling.bad_words"
    assert caught.value.metadata["max_tokens"] == str(MAX_BAD_TOKENS)


@pytest.mark.parametrize(
    ("words", "field"),
    [(["a", ""], "sampling.bad_words[1]"), (["é" * 129], "sampling.bad_words[0]"), (["a"] * 129, "sampling.bad_words")],
)
def test_texts_that_are_refused(words: list[str], field: str) -> None:
    with pytest.raises(InvalidFieldError) as caught:
        read_bad_words(words)
    assert caught.value.metadata["field"] == field
    assert read_bad_words(["é" * 128]) == ("é" * 128,)


@pytest.mark.parametrize(
    ("bad", "allowed", "ends", "refused"),
    [
        ([], [5], [5], False),
        ([[5]], [5, 6], [], False),
        ([[5]], [5, 6], [6], True),
        ([[6, 5], [6]], [5, 6], [], True),
        ([[0], [1]], [], [], False),
        ([[0], [1]], [], [2], True),
        ([[0], [1], [1, 2]], [], [], True),
    ],
)
def test_something_must_always_be_left_to_choose(bad: Any, allowed: list[int], ends: list[int], refused: bool) -> None:
    if refused:
        with pytest.raises(InvalidFieldError):
            check_bad_words(bad, allowed, ends, 3)
    else:
        check_bad_words(bad, allowed, ends, 3)
