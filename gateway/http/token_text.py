"""Tokens and their logprobs as OpenAI shows them. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Any

from ..token_logprobs import TokenLogprobs
from ..tokenizer import Tokenizer
from .long_json import Rows

# JSON has no infinity.
_LEAST = -9999.0


def token_text(tokenizer: Tokenizer, token_id: int) -> str:
    """A token by itself: its text, or its bytes where those are no whole characters, or how the vocabulary spells one
    that adds no text."""
    piece = tokenizer.piece(token_id)
    if isinstance(piece, bytes):
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in piece)
    return piece or tokenizer.spelling(token_id)


def token_bytes(tokenizer: Tokenizer, token_id: int) -> list[int]:
    """What a token adds to the text, in UTF-8."""
    piece = tokenizer.piece(token_id)
    return list(piece if isinstance(piece, bytes) else piece.encode("utf-8", "replace"))


def chat_logprobs(tokenizer: Tokenizer, ids: Sequence[int], logprobs: Sequence[TokenLogprobs]) -> dict[str, Any]:
    """The `logprobs` of a chat's choice."""

    def entry(token_id: int, logprob: float) -> dict[str, Any]:
        return {
            "token": token_text(tokenizer, token_id),
            "logprob": max(logprob, _LEAST),
            "bytes": token_bytes(tokenizer, token_id),
        }

    def content() -> Iterator[dict[str, Any]]:
        for token_id, each in zip(ids, logprobs, strict=True):
            top = [entry(*pair) for pair in zip(each.top_ids, each.top_logprobs, strict=True)]
            yield {**entry(token_id, each.logprob), "top_logprobs": top}

    return {"content": Rows(content), "refusal": None}


def echoed_logprobs(
    tokenizer: Tokenizer, ids: Sequence[int], logprobs: Sequence[TokenLogprobs], offsets: Sequence[int]
) -> dict[str, Any]:
    """The same of a prompt of `ids`, of which the first token has none."""
    shown = completion_logprobs(tokenizer, ids[1:], logprobs, offsets[1:])
    return {
        "tokens": Rows(lambda: [token_text(tokenizer, ids[0])]) + shown["tokens"],
        "token_logprobs": Rows(lambda: [None]) + shown["token_logprobs"],
        "top_logprobs": Rows(lambda: [None]) + shown["top_logprobs"],
        "text_offset": list(offsets),
    }


def prompt_logprobs(
    tokenizer: Tokenizer, ids: Sequence[int], parts: Sequence[Iterable[TokenLogprobs]], num_top: int
) -> Rows:
    """vLLM's `prompt_logprobs` of a prompt of `ids`, of which the first token has none: at each place the token itself
    and the likeliest ones, by their ids. Nobody has counted the rank of a token that is not among these."""
    spelt: dict[int, str] = {}

    def entry(token_id: int, logprob: float, rank: int | None) -> dict[str, Any]:
        text = spelt.get(token_id)
        if text is None:
            text = spelt[token_id] = token_text(tokenizer, token_id)
        return {"logprob": max(logprob, _LEAST), "rank": rank, "decoded_token": text}

    def shown() -> Iterator[dict[str, Any] | None]:
        yield None
        for token_id, each in zip(ids[1:], chain.from_iterable(parts), strict=True):
            top = each.only(num_top)
            # The token itself first, whatever its rank.
            place = {str(token_id): entry(token_id, each.logprob, None)}
            for index, (other, logprob) in enumerate(zip(top.top_ids, top.top_logprobs, strict=True)):
                place[str(other)] = entry(other, logprob, index + 1)
            yield place

    return Rows(shown)


def completion_logprobs(
    tokenizer: Tokenizer, ids: Sequence[int], logprobs: Sequence[TokenLogprobs], offsets: Sequence[int]
) -> dict[str, Any]:
    """The `logprobs` of a completion's choice. The likeliest tokens are by their texts, the token itself among them;
    `offsets` are where tokens begin in the output's text, in characters."""

    def top() -> Iterator[dict[str, float]]:
        for token_id, each in zip(ids, logprobs, strict=True):
            pairs = zip((*each.top_ids, token_id), (*each.top_logprobs, each.logprob), strict=True)
            # Two special tokens may be spelt alike; the likelier one comes first.
            best: dict[str, float] = {}
            for other, logprob in pairs:
                best.setdefault(token_text(tokenizer, other), max(logprob, _LEAST))
            yield best

    return {
        "tokens": Rows(lambda: (token_text(tokenizer, token_id) for token_id in ids)),
        "token_logprobs": Rows(lambda: (max(each.logprob, _LEAST) for each in logprobs)),
        "top_logprobs": Rows(top),
        "text_offset": list(offsets),
    }
