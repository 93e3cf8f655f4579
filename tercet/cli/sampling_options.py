"""Flags for how tokens are chosen, and when that ends."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import click

from tercet.cli.finite import FiniteNumber
from tercet.client import Options

Command = TypeVar("Command", bound=Callable[..., Any])

_UINT32 = click.IntRange(0, 2**32 - 1)


def _biases(context: click.Context, parameter: click.Parameter, values: Sequence[str]) -> Mapping[int, float]:
    """What is added to the logits of tokens, by their ids. Raises click.BadParameter."""
    biases: dict[int, float] = {}
    for value in values:
        token_id, equals, bias = value.partition("=")
        if not equals:
            raise click.BadParameter(f"{value!r} is not ID=X, such as 17=-2.5", param=parameter)
        number = _UINT32(token_id, parameter, context)
        if number in biases:
            raise click.BadParameter(f"there are two of token {number}", param=parameter)
        biases[number] = FiniteNumber()(bias, parameter, context)
    return biases


def sampling_options(command: Command) -> Command:
    """Adds flags for most of client.Options; the command passes its keywords to `options_of`."""
    flags = [
        click.option(
            "--temperature", type=FiniteNumber(), metavar="X", help="0 is greedy. Default: the model's own, else 1."
        ),
        click.option("--top-p", type=FiniteNumber(), metavar="X", help="Smallest set of tokens with this probability."),
        click.option("--top-k", type=_UINT32, metavar="N", help="Only the N most likely tokens; 0 is off."),
        click.option("--min-p", type=FiniteNumber(), metavar="X", help="Only tokens this likely relative to the best."),
        click.option("--seed", type=click.IntRange(0, 2**64 - 1), metavar="N", help="Same seed, same text."),
        click.option(
            "--max-tokens",
            type=click.IntRange(1, 2**32 - 1),
            metavar="N",
            help="Most tokens. Default: the model's own, else what the context leaves.",
        ),
        click.option("--stop", multiple=True, metavar="TEXT", help="Stop at this text; repeatable."),
        click.option(
            "--include-stop", "include_stop_string", is_flag=True, help="The text ends with the --stop that came."
        ),
        click.option("--stop-token-id", type=_UINT32, multiple=True, metavar="ID", help="Stop at it; repeatable."),
        click.option("--ignore-eos", is_flag=True, help="Go on past the model's end token."),
        click.option("--bad-word", multiple=True, metavar="TEXT", help="Must not come; repeatable."),
        click.option(
            "--logit-bias", multiple=True, callback=_biases, metavar="ID=X", help="Added to its logit; repeatable."
        ),
        click.option(
            "--allowed-token-id", type=_UINT32, multiple=True, metavar="ID", help="Only these tokens; repeatable."
        ),
        click.option("--min-tokens", type=_UINT32, metavar="N", help="Tokens before one that ends may come."),
        click.option(
            "--repetition-penalty", type=FiniteNumber(), metavar="X", help="Above 1: what is there already is rarer."
        ),
        click.option(
            "--frequency-penalty", type=FiniteNumber(), metavar="X", help="For each time a token was generated."
        ),
        click.option(
            "--logprobs", type=click.IntRange(0, 20), metavar="N", help="Of tokens and the N likeliest (--json)."
        ),
        click.option("--presence-penalty", type=FiniteNumber(), metavar="X", help="For a token that was generated."),
        click.option(
            "--class",
            "traffic_class",
            default="",
            metavar="NAME",
            help="Traffic class: interactive, rag, batch or what else the mesh has. Default: your tenant's.",
        ),
        click.option(
            "--priority",
            type=click.IntRange(-100, 100),
            metavar="N",
            help="Within a class lower goes first. Default: 0.",
        ),
        click.option(
            "--cache-salt",
            default="",
            metavar="TEXT",
            help="Share cached prompts only with requests of this salt. Default: with all that have none.",
        ),
    ]
    for flag in reversed(flags):
        command = flag(command)
    return command


def options_of(model: str, values: dict[str, Any]) -> Options:
    """The client's options from the keywords of `sampling_options`."""
    values = dict(values)
    return Options(
        model=model,
        stop_token_ids=tuple(values.pop("stop_token_id")),
        bad_words=tuple(values.pop("bad_word")),
        allowed_token_ids=tuple(values.pop("allowed_token_id")),
        **values,
    )
