"""Types of options that are numbers. Python reads ``nan`` and ``inf`` as numbers, and ``nan`` is in every range."""

from __future__ import annotations

import math
from typing import Any

import click
from click.types import FloatParamType

from tercet.setting_check import MAX_SECONDS


class FiniteNumber(FloatParamType):
    """Any number but ``inf`` and ``nan``."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Raises click.BadParameter for what is none."""
        return _finite(self, super().convert(value, param, ctx), param, ctx)


class FiniteRange(click.FloatRange):
    """A number of a range."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Raises click.BadParameter for what is none."""
        return _finite(self, super().convert(value, param, ctx), param, ctx)


def _finite(
    kind: FloatParamType | click.FloatRange, number: Any, param: click.Parameter | None, ctx: click.Context | None
) -> Any:
    if not math.isfinite(number):
        kind.fail(f"{number} is not a finite number", param, ctx)
    return number


# Seconds that something may take; and the same where none is a choice.
SOME_SECONDS = FiniteRange(min=0, min_open=True, max=MAX_SECONDS)
SECONDS = FiniteRange(min=0, max=MAX_SECONDS)
