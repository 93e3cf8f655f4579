"""Texts that must not come in an output, as the token sequences that a worker bans. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence

from tercet.errors import InvalidFieldError

MAX_BAD_WORDS = 128
MAX_BAD_WORD_BYTES = 256
MAX_BAD_TOKENS = 1024

_FIELD = "sampling.bad_words"


def read_bad_words(given: Sequence[str]) -> tuple[str, ...]:
    """Checks what can be checked of texts. Raises InvalidFieldError."""
    if len(given) > MAX_BAD_WORDS:
        raise InvalidFieldError(f"{len(given)} bad words; at most {MAX_BAD_WORDS} are allowed", field=_FIELD)
    for index, word in enumerate(given):
        if not word:
            raise InvalidFieldError(f"bad word {index} is empty", field=f"{_FIELD}[{index}]")
        if (size := len(word.encode())) > MAX_BAD_WORD_BYTES:
            raise InvalidFieldError(
                f"bad word {index} has {size} bytes; at most {MAX_BAD_WORD_BYTES} are allowed",
                field=f"{_FIELD}[{index}]",
            )
    return tuple(given)


def spell(words: Iterable[str], encode: Callable[[str], Sequence[int]]) -> tuple[tuple[int, ...], ...]:
    """Each word as the tokens that it is by itself and, where that makes another word of as many tokens, behind a
    space: what vLLM bans. Raises InvalidFieldError if that is nothing, or too much."""
    found: dict[tuple[int, ...], None] = {}
    for index, word in enumerate(words):
        # A word of nothing but space is what it is.
        stem = word.lstrip() or word
        alone, spaced = tuple(encode(stem)), tuple(encode(" " + stem))
        if not alone:
            raise InvalidFieldError(f"bad word {index} has no tokens", field=f"{_FIELD}[{index}]")
        found[alone] = None
        if len(spaced) == len(alone) and spaced[0] != alone[0]:
            found[spaced] = None
    if (count := sum(map(len, found))) > MAX_BAD_TOKENS:
        raise InvalidFieldError(
            f"the bad words have {count} tokens; at most {MAX_BAD_TOKENS} are allowed",
            field=_FIELD,
            metadata={"tokens": str(count), "max_tokens": str(MAX_BAD_TOKENS)},
        )
    return tuple(found)


def check_bad_words(
    bad: Iterable[Sequence[int]], allowed: Collection[int], ends: Collection[int], vocab_size: int
) -> None:
    """Raises InvalidFieldError if it could be that nothing may be chosen: every token, or every one that is `allowed`,
    completes something `bad` or is one of `ends`, which may not come yet."""
    lasts = {each[-1] for each in bad}
    if not lasts:
        return
    banned = lasts.union(ends)
    if banned.issuperset(allowed) if allowed else len(banned) >= vocab_size:
        raise InvalidFieldError("the bad words end in every token that may be chosen", field=_FIELD)
