"""Who asks: tenants with their keys, traffic classes and priorities, each as often as its weight says."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tercet.tenants.plan import MAX_PRIORITY, MOST_URGENT

from .workload_error import WorkloadError, number, whole


@dataclass(frozen=True, slots=True)
class Tenant:
    """A tenant by the name that rows have. Without an `api_key` it asks with the target's own. None: as the classes and
    priorities of all are drawn."""

    name: str
    api_key: str = field(default="", repr=False)
    weight: float = 1.0
    traffic_class: str | None = None
    priority: int | None = None


@dataclass(frozen=True, slots=True)
class Principal:
    """Who asks one request. An empty class is what the tenant's requests have by default."""

    tenant: str = ""
    api_key: str = field(default="", repr=False)
    traffic_class: str = ""
    priority: int = 0


@dataclass(frozen=True, slots=True)
class Principals:
    """Of all requests. Without tenants there is one without a name."""

    tenants: tuple[Tenant, ...] = ()
    # Name or priority -> weight.
    classes: Mapping[str, float] = field(default_factory=dict)
    priorities: Mapping[int, float] = field(default_factory=dict)

    def draw(self, rng: random.Random) -> Principal:
        """One of them. Always takes as many random numbers, so that what else is drawn stays the same."""
        tenants: Sequence[Tenant] = self.tenants or (Tenant(""),)
        (tenant,) = rng.choices(tenants, [each.weight for each in tenants])
        (traffic_class,) = rng.choices(list(self.classes) or [""], list(self.classes.values()) or [1.0])
        (priority,) = rng.choices(list(self.priorities) or [0], list(self.priorities.values()) or [1.0])
        return Principal(
            tenant.name,
            tenant.api_key,
            traffic_class if tenant.traffic_class is None else tenant.traffic_class,
            priority if tenant.priority is None else tenant.priority,
        )


def parse_tenant(text: str) -> Tenant:
    """``NAME`` or ``NAME:KEY=VALUE,...`` with the keys key, weight, class and priority. The value of key is a tenant's
    key, or ``@FILE`` that holds it. Raises WorkloadError."""
    name, _, rest = text.partition(":")
    if not name:
        raise WorkloadError("tenants", f"{text!r} has no name")
    values = dict(_pair("tenants", each) for each in rest.split(",") if each)
    unknown = values.keys() - {"key", "weight", "class", "priority"}
    if unknown:
        raise WorkloadError("tenants", f"{name} has no {min(unknown)}; keys are key, weight, class, priority")
    return Tenant(
        name,
        _key(name, values.get("key", "")),
        number("tenants", values.get("weight", "1"), least=1e-6),
        values.get("class"),
        _priority("tenants", values["priority"]) if "priority" in values else None,
    )


def parse_classes(text: str) -> dict[str, float]:
    """``NAME[=WEIGHT],...``. Raises WorkloadError."""
    return dict(_weighted("classes", text))


def parse_priorities(text: str) -> dict[int, float]:
    """``N[=WEIGHT],...``. Raises WorkloadError."""
    return {_priority("priorities", name): weight for name, weight in _weighted("priorities", text)}


def _weighted(where: str, text: str) -> Iterable[tuple[str, float]]:
    for each in text.split(","):
        name, equals, weight = each.strip().partition("=")
        if not name:
            raise WorkloadError(where, f"{text!r} has an empty name")
        yield name, number(where, weight, least=1e-6) if equals else 1.0


def _pair(where: str, text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise WorkloadError(where, f"{name} has no value")
    return name, value


def _priority(where: str, text: str) -> int:
    sign, digits = (-1, text[1:]) if text.startswith("-") else (1, text)
    priority = sign * whole(where, digits)
    if not MOST_URGENT <= priority <= MAX_PRIORITY:
        raise WorkloadError(where, f"priority {priority} is not between {MOST_URGENT} and {MAX_PRIORITY}")
    return priority


def _key(name: str, text: str) -> str:
    if text.startswith("@"):
        try:
            text = Path(text[1:]).read_text(encoding="ascii").strip()
        except (OSError, UnicodeDecodeError):
            raise WorkloadError("tenants", f"cannot read the key of {name} in {text[1:]}") from None
        if not text:
            raise WorkloadError("tenants", f"the key of {name} is an empty file")
    if not all("!" <= character <= "~" for character in text):
        # Not shown: it may be most of one.
        raise WorkloadError("tenants", f"the key of {name} is none")
    return text
