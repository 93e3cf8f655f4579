"""The traffic classes of a mesh: what each promises, how much of it may wait, and who gives way to whom.

Three are there by default, each of which can be changed key by key; others can be added, and any taken away.
"""

from __future__ import annotations

import dataclasses
import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from tercet import setting_check as checks
from tercet.errors import ConfigError
from tercet.setting_field import build, setting
from tercet.tenants.plan import MAX_WEIGHT, MIN_WEIGHT

SECTION = "classes"

_NAME = re.compile(r"[a-z][a-z0-9_]{0,31}", re.ASCII)


@dataclass(frozen=True, slots=True)
class ClassSettings:
    """One class. Times in seconds or, where their name says so, milliseconds."""

    enabled: bool = setting(True, "false: there is no such class")
    rank: int = setting(1, "of two running sequences that of the higher rank gives way first", checks.count(0, 1000))
    ttft_ms: float = setting(0.0, "target for the first token; 0: none", checks.between(0, 86_400_000))
    ttft_percentile: float = setting(
        95.0, "part of the requests, in percent, that shall have it in time", checks.between(1, 99.9)
    )
    gap_ms: float = setting(
        0.0, "target for the mean time from one token to the next; 0: none", checks.between(0, 86_400_000)
    )
    gap_percentile: float = setting(
        95.0, "part of the requests, in percent, that shall have it", checks.between(1, 99.9)
    )
    weight: float = setting(
        1.0, "its share of the work where no target is at stake", checks.between(MIN_WEIGHT, MAX_WEIGHT)
    )
    patience_seconds: float = setting(
        0.0, "where it has no ttft_ms: for how long its requests let those of other classes go ahead",
        checks.between(0, 86_400),
    )  # fmt: skip
    max_queued_requests: int = setting(
        0, "requests of it waiting in one pool before QUEUE_FULL; 0: as scheduler.max_queued_requests", checks.count(0)
    )
    max_queued_tokens: int = setting(
        0, "prompt tokens of it waiting in one pool before QUEUE_FULL; 0: as scheduler.max_queued_tokens",
        checks.whole(0),
    )  # fmt: skip
    max_queue_seconds: float = setting(
        0.0, "longest wait for a first start before QUEUE_EXPIRED; 0: for ever", checks.between(0, 86_400)
    )
    max_prefill_tokens: int = setting(
        0, "most prefill tokens of it in a step while sequences decode; 0: no limit but that of all", checks.count(0)
    )
    preemptible: bool = setting(True, "whether requests of a lower rank may take its place")
    max_steps: int = setting(0, "most steps of a plan in which it takes part; 0: no limit", checks.count(0))
    max_running: int = setting(
        0, "most of its sequences on one worker, or one request of more outputs; 0: no limit", checks.count(0)
    )


DEFAULT_CLASSES: Mapping[str, ClassSettings] = MappingProxyType(
    {
        "interactive": ClassSettings(rank=0, ttft_ms=1000.0, gap_ms=200.0, weight=8.0, preemptible=False),
        "rag": ClassSettings(rank=1, ttft_ms=5000.0, gap_ms=500.0, weight=4.0),
        "batch": ClassSettings(rank=2, patience_seconds=60.0),
    }
)

_FIELDS: Mapping[str, dataclasses.Field[Any]] = MappingProxyType(
    {item.name: item for item in dataclasses.fields(ClassSettings)}
)


def class_fields() -> Mapping[str, dataclasses.Field[Any]]:
    """The settings of a class by name, in order."""
    return _FIELDS


def class_key(key: str) -> tuple[str, str]:
    """Class and setting of a dotted key, ``classes.interactive.ttft_ms``. Raises ConfigError naming it."""
    name, _, item = key.removeprefix(f"{SECTION}.").partition(".")
    if not _NAME.fullmatch(name):
        raise ConfigError(
            key, f"a class is called with lower-case letters, digits and underscores, 32 at most, not {name!r}"
        )
    if item not in _FIELDS:
        raise ConfigError(key, f"unknown setting; [{SECTION}.NAME] has: {', '.join(_FIELDS)}{_hint(item, _FIELDS)}")
    return name, item


def class_variable(text: str) -> tuple[str, str] | None:
    """Class and setting of what follows ``TERCET_CLASSES_`` in a variable, in lower case; None if it is neither."""
    for item in _FIELDS:
        name = text.removesuffix(f"_{item}")
        if name != text and _NAME.fullmatch(name):
            return name, item
    return None


def build_classes(values: Mapping[str, Mapping[str, Any]], problems: list[ConfigError]) -> dict[str, ClassSettings]:
    """The classes that are enabled, the default ones first; what is wrong goes to `problems`.

    A new one has to say its rank: a name that is mistyped does not become a class of its own.
    """
    built: dict[str, ClassSettings] = {}
    for name in {**DEFAULT_CLASSES, **values}:
        given, key = values.get(name, {}), f"{SECTION}.{name}"
        made = build(key, DEFAULT_CLASSES.get(name, ClassSettings()), given, problems)
        if name not in DEFAULT_CLASSES and made.enabled and "rank" not in given:
            hint = _hint(name, DEFAULT_CLASSES)
            problems.append(ConfigError(key, f"there is no such class, and a new one needs its rank{hint}"))
        if made.enabled:
            built[name] = made
    return built


def class_values(classes: Mapping[str, ClassSettings]) -> dict[str, Any]:
    """Every setting of every class by its dotted key: what makes `build_classes` build the same."""
    out = {
        f"{SECTION}.{name}.{item}": getattr(settings, item) for name, settings in classes.items() for item in _FIELDS
    }
    return {**out, **{f"{SECTION}.{name}.enabled": False for name in DEFAULT_CLASSES if name not in classes}}


def _hint(name: str, known: Mapping[str, Any]) -> str:
    near = difflib.get_close_matches(name, known, n=1)
    return f"; did you mean {near[0]}?" if near else ""
