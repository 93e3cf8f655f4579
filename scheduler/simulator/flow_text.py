"""Flows, tenants, classes and lengths as they are written on a command line."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from tercet.class_settings import class_fields
from tercet.config import load_config
from tercet.errors import ConfigError
from tercet.tenants import plan

from ..tenant import NamedPlan
from ..traffic_class import TrafficClass, class_of
from .workload import MAX_TOKENS, Arrivals, Flow, Lengths

# Each token of a text takes a byte, and a text some 100 besides.
_MOST_PREFIX_TOKENS = 100_000_000
_MOST_PREFIXES = 1_000_000
_SHARES = (1e-6, 1e6)
_NAME = re.compile(r"[\w.-]+")


def flag(option: str) -> str:
    """The flag of an option of a study."""
    return "--" + option.replace("_", "-")


def to_lengths(where: str, text: str) -> Lengths:
    """``MEAN[:SIGMA[:MOST]]``. Raises ConfigError, as all here do; `where` is the flag it names."""
    parts = text.split(":")
    try:
        mean = int(parts[0])
        sigma = float(parts[1]) if len(parts) > 1 else 0.0
        most = int(parts[2]) if len(parts) > 2 else Lengths(mean).most
    except ValueError:
        mean = 0
        sigma, most = 0.0, 0
    if len(parts) > 3 or mean < 1 or not 0 <= sigma <= 4 or not mean <= most <= MAX_TOKENS:
        raise ConfigError(
            where,
            f"{text!r} is not MEAN[:SIGMA[:MOST]] with MEAN >= 1, SIGMA from 0 to 4 and MOST from MEAN to {MAX_TOKENS}",
        )
    return Lengths(mean, sigma, most)


def to_prefix(where: str, text: str, mean: int) -> dict[str, Any]:
    """``RATIO[:TOKENS[:COUNT]]`` as fields of a flow whose prompts have `mean` tokens."""
    parts = text.split(":")
    try:
        ratio = float(parts[0])
        tokens = int(parts[1]) if len(parts) > 1 else mean // 2
        count = int(parts[2]) if len(parts) > 2 else 1
    except ValueError:
        ratio, tokens, count = -1.0, 0, 0
    if len(parts) > 3 or not 0 <= ratio <= 1 or tokens < 0 or not 1 <= count <= _MOST_PREFIXES:
        problem = f"{text!r} is not RATIO[:TOKENS[:COUNT]] with RATIO from 0 to 1 and COUNT from 1 to {_MOST_PREFIXES}"
        raise ConfigError(where, problem)
    if tokens * count > _MOST_PREFIX_TOKENS:
        problem = f"{text!r}: COUNT texts of TOKENS tokens are more than {_MOST_PREFIX_TOKENS} tokens"
        raise ConfigError(where, problem)
    return {"prefix_ratio": ratio, "prefix_tokens": tokens, "prefixes": count}


def to_arrivals(where: str, text: str) -> Arrivals:
    """One of the kinds, by its name."""
    try:
        return Arrivals(text)
    except ValueError:
        names = ", ".join(each.value for each in Arrivals)
        raise ConfigError(where, f"{text!r} is none of {names}") from None


def to_classes(where: str, text: str, served: Collection[str]) -> list[tuple[str, float]]:
    """``NAME=WEIGHT,...``: classes and their shares."""
    found = []
    for part in text.split(","):
        name, _, weight = part.strip().partition("=")
        try:
            share = float(weight or 1)
        except ValueError:
            share = -1.0
        if name not in served or not _SHARES[0] <= share <= _SHARES[1]:
            raise ConfigError(
                where,
                f"{part.strip()!r} is not NAME=WEIGHT with NAME one of {', '.join(served)} and WEIGHT from "
                f"{_SHARES[0]:g} to {_SHARES[1]:g}",
            )
        found.append((name, share))
    return found


def to_flow(where: str, text: str, base: Flow, served: Collection[str]) -> Flow:
    """``NAME:KEY=VALUE,...``; what it does not say is as in `base`."""
    name, values = _named(where, text, (*_TEXTS, *_NUMBERS))
    changes: dict[str, Any] = {
        _NUMBERS[key].field: _number(where, text, key, value) for key, value in values.items() if key in _NUMBERS
    }
    for key in ("prompt", "output"):
        if key in values:
            changes[key] = to_lengths(where, values[key])
    if "prefix" in values:
        changes |= to_prefix(where, values["prefix"], changes.get("prompt", base.prompt).mean)
    if "arrivals" in values:
        changes["arrivals"] = to_arrivals(where, values["arrivals"])
    made = dataclasses.replace(
        base,
        name=name,
        traffic_class=values.get("class", base.traffic_class),
        tenant=values.get("tenant", base.tenant),
        **changes,
    )
    if made.traffic_class and made.traffic_class not in served:
        raise ConfigError(where, f"{text!r}: there is no class {made.traffic_class!r}")
    return made


def to_tenant(where: str, text: str, served: Collection[str]) -> NamedPlan:
    """``NAME:KEY=VALUE,...`` with the limits of a plan as keys; several classes are joined by +."""
    name, values = _named(where, text, ("classes", "default_class", *_LIMITS))
    named = tuple(filter(None, values.get("classes", "").split("+")))
    default = values.get("default_class", "")
    for each in filter(None, (*named, default)):
        if each not in served:
            raise ConfigError(where, f"{text!r}: there is no class {each!r}")
    limits: dict[str, Any] = {key: _number(where, text, key, value) for key, value in values.items() if key in _LIMITS}
    return NamedPlan(name, classes=named, default_class=default, **limits)


def to_traffic_classes(where: str, texts: Sequence[str]) -> dict[str, TrafficClass]:
    """All classes by name: the default ones, changed and joined by each ``NAME:KEY=VALUE,...`` with the settings of a
    class as keys."""
    flags: dict[str, str] = {}
    for text in texts:
        name, values = _named(where, text, tuple(class_fields()))
        flags |= {f"classes.{name}.{key}": value for key, value in values.items()}
    try:
        settings = load_config(flags=flags).classes
    except ConfigError as error:
        raise ConfigError(where, str(error)) from None
    return {name: class_of(name, each) for name, each in settings.items()}


@dataclass(frozen=True, slots=True)
class _Number:
    """A number that a key takes, and the field that it is."""

    field: str
    kind: type[int] | type[float]
    least: float
    most: float


_TEXTS = ("class", "tenant", "prompt", "output", "prefix", "arrivals")
_NUMBERS = {
    "share": _Number("share", float, *_SHARES),
    "max_tokens": _Number("max_tokens", int, 0, MAX_TOKENS),
    "n": _Number("n", int, 1, 1024),
    "priority": _Number("priority", int, -100, 100),
    "deadline": _Number("deadline_s", float, 0.001, 1e9),
    "burst": _Number("burst_size", int, 1, 10_000_000),
    "cancel": _Number("cancel_ratio", float, 0, 1),
}
_LIMITS = {
    "weight": _Number("weight", float, plan.MIN_WEIGHT, plan.MAX_WEIGHT),
    "requests_per_minute": _Number("requests_per_minute", int, 0, plan.MAX_COUNT),
    "tokens_per_minute": _Number("tokens_per_minute", int, 0, plan.MAX_TOKENS),
    "max_concurrent": _Number("max_concurrent", int, 0, plan.MAX_COUNT),
    "kv_share": _Number("kv_share", float, 0, 1),
    "max_context": _Number("max_context", int, 0, plan.MAX_COUNT),
    "min_priority": _Number("min_priority", int, plan.MOST_URGENT, -plan.MOST_URGENT),
}


def _named(where: str, text: str, keys: Sequence[str]) -> tuple[str, dict[str, str]]:
    name, _, rest = text.partition(":")
    pairs = [part.partition("=") for part in rest.split(",") if part]
    if not _NAME.fullmatch(name) or any(key not in keys or not value for key, _, value in pairs):
        raise ConfigError(where, f"{text!r} is not NAME:KEY=VALUE,... with keys of {', '.join(keys)}")
    return name, {key: value for key, _, value in pairs}


def _number(where: str, text: str, key: str, value: str) -> float:
    allowed = {**_NUMBERS, **_LIMITS}[key]
    try:
        number = allowed.kind(value)
    except ValueError:
        number = float("nan")
    if not allowed.least <= number <= allowed.most:
        shown = "a whole number from {:,} to {:,}" if allowed.kind is int else "a number from {:g} to {:g}"
        bounds = shown.format(allowed.least, allowed.most)
        raise ConfigError(where, f"{text!r}: {key} must be {bounds}, is {value!r}")
    return number
