"""What a request wants done to logits before a token is chosen: penalties, biases, bans."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass

from tercet.errors import InvalidFieldError
from tercet.v1 import inference_pb2 as pb

from .bad_words import check_bad_words, read_bad_words
from .vocabulary import check_token_ids

MAX_LISTED_TOKENS = 1024
MAX_PENALTY = 2.0
MAX_BIAS = 100.0
MIN_REPETITION, MAX_REPETITION = 0.01, 100.0


@dataclass(frozen=True, slots=True)
class Penalties:
    """The meaning of tercet.v1.SamplingParams and StopConditions; as it stands, nothing is done."""

    repetition: float = 1.0
    frequency: float = 0.0
    presence: float = 0.0
    bias: tuple[tuple[int, float], ...] = ()  # by token id
    allowed_ids: tuple[int, ...] = ()  # empty: all
    min_tokens: int = 0
    bad_words: tuple[str, ...] = ()
    bad_ids: tuple[tuple[int, ...], ...] = ()  # what those are in tokens, once that is known


NO_PENALTIES = Penalties()


def read_penalties(
    sampling: pb.SamplingParams, stop: pb.StopConditions, vocab_size: int, repetition: float
) -> Penalties:
    """Checks what a request asks; where it is silent the penalty for repetition is `repetition`. Raises
    InvalidFieldError naming the field. How many tokens `min_tokens` may be is not known here."""
    if sampling.HasField("repetition_penalty"):
        repetition = sampling.repetition_penalty
    # Written so that NaN fails. The float of the wire that is nearest to 0.01 lies below it.
    if not MIN_REPETITION <= round(repetition, 6) <= MAX_REPETITION:
        raise InvalidFieldError(
            f"repetition_penalty is {repetition:g}; it must be in [{MIN_REPETITION:g}, {MAX_REPETITION:g}]",
            field="sampling.repetition_penalty",
        )
    for name in ("frequency_penalty", "presence_penalty"):
        value = getattr(sampling, name)
        if not abs(value) <= MAX_PENALTY:
            raise InvalidFieldError(
                f"{name} is {value:g}; it must be in [-{MAX_PENALTY:g}, {MAX_PENALTY:g}]", field=f"sampling.{name}"
            )
    for name in ("logit_bias", "allowed_token_ids"):
        if (count := len(getattr(sampling, name))) > MAX_LISTED_TOKENS:
            raise InvalidFieldError(
                f"{name} has {count} tokens; at most {MAX_LISTED_TOKENS} are allowed", field=f"sampling.{name}"
            )
    bias: dict[int, float] = {}
    for index, item in enumerate(sampling.logit_bias):
        token_id, value, field = item.token_id, item.bias, f"sampling.logit_bias[{index}]"
        if token_id >= vocab_size:
            raise InvalidFieldError(
                f"token id {token_id} is not in the vocabulary of {vocab_size}", field=f"{field}.token_id"
            )
        if token_id in bias:
            raise InvalidFieldError(f"token id {token_id} has a bias already", field=f"{field}.token_id")
        if not abs(value) <= MAX_BIAS:
            raise InvalidFieldError(
                f"the bias of token {token_id} is {value:g}; it must be in [-{MAX_BIAS:g}, {MAX_BIAS:g}]",
                field=f"{field}.bias",
            )
        bias[token_id] = value
    check_token_ids(sampling.allowed_token_ids, vocab_size, "sampling.allowed_token_ids")
    return Penalties(
        repetition=repetition,
        frequency=sampling.frequency_penalty,
        presence=sampling.presence_penalty,
        bias=tuple(bias.items()),
        allowed_ids=tuple(dict.fromkeys(sampling.allowed_token_ids)),
        min_tokens=stop.min_tokens,
        bad_words=read_bad_words(sampling.bad_words),
    )


def check_choice(penalties: Penalties, max_tokens: int, ends: Set[int], vocab_size: int) -> None:
    """Raises InvalidFieldError if at most `max_tokens`, of which `ends` end an output, are fewer than the least asked
    for, or if it could be that no token may be chosen."""
    if penalties.min_tokens > max_tokens:
        raise InvalidFieldError(
            f"min_tokens is {penalties.min_tokens}; the output has at most {max_tokens} tokens", field="stop.min_tokens"
        )
    if penalties.min_tokens and penalties.allowed_ids and ends >= set(penalties.allowed_ids):
        raise InvalidFieldError(
            f"every allowed token ends the output, and min_tokens {penalties.min_tokens} bans those",
            field="sampling.allowed_token_ids",
        )
    check_bad_words(penalties.bad_ids, penalties.allowed_ids, ends if penalties.min_tokens else (), vocab_size)
