"""What a tenant may do. Knows no keys and no requests."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from tercet.errors import TenantError, TenantQuotaError

# Written in logs and shown in tables, so nothing that could pass for something else there.
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
# Priorities of requests go from minus to plus this; lower is more urgent.
MAX_PRIORITY = 100
MOST_URGENT = -MAX_PRIORITY
# Counts of the contract: 32 bits, and for tokens what every language's integers hold.
MAX_COUNT = 2**32 - 1
MAX_TOKENS = 2**53
# As those of traffic classes: the shares of two are never further apart.
MIN_WEIGHT = 0.001
MAX_WEIGHT = 1000.0
# How far below empty a bucket of tokens may go when requests get longer than expected, as a part of what it holds.
DEBT = 0.25


class PlanError(TenantError):
    """A plan that cannot be; `field` is the name of its wrong field."""

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field} {problem}")
        self.field = field
        self.problem = problem


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantPlan:
    """Limits of one tenant; 0 and empty are none. Raises PlanError for values that make no sense."""

    # Traffic classes its requests may name, and the one of those that name none.
    classes: tuple[str, ...] = ()
    default_class: str = ""
    # Its share where tenants of one class compete.
    weight: float = 1.0
    requests_per_minute: int = 0
    # Prompt and output together.
    tokens_per_minute: int = 0
    # Requests at a time.
    max_concurrent: int = 0
    # Part of a pool's KV blocks that its running sequences may hold together. It starts none beyond; of those that have
    # grown beyond, the least urgent give way as soon as others find too few blocks. One may always run.
    kv_share: float = 0.0
    # Longest prompt + output in tokens.
    max_context: int = 0
    # The most urgent priority it may ask for: lower is more urgent.
    min_priority: int = MOST_URGENT

    def __post_init__(self) -> None:
        for field, problem in self._problems():
            raise PlanError(field, problem)

    def _problems(self) -> Iterator[tuple[str, str]]:
        for name in self.classes:
            if not NAME.fullmatch(name):
                yield "classes", f"must be names of traffic classes, has {name!r}"
        if self.default_class and not NAME.fullmatch(self.default_class):
            yield "default_class", f"must be the name of a traffic class, is {self.default_class!r}"
        elif self.default_class and self.classes and self.default_class not in self.classes:
            yield "default_class", f"is {self.default_class}, which is not among {', '.join(self.classes)}"
        if not MIN_WEIGHT <= self.weight <= MAX_WEIGHT:
            yield "weight", f"must be from {MIN_WEIGHT:g} to {MAX_WEIGHT:g}, is {self.weight}"
        if not 0 <= self.kv_share <= 1:
            yield "kv_share", f"must be from 0 to 1, is {self.kv_share}"
        if not MOST_URGENT <= self.min_priority <= -MOST_URGENT:
            yield "min_priority", f"must be from {MOST_URGENT} to {-MOST_URGENT}, is {self.min_priority}"
        for field, most in _COUNTS.items():
            if not 0 <= getattr(self, field) <= most:
                yield field, f"must be from 0 to {most:,}, is {getattr(self, field):,}"


def most_at_once(tokens_per_minute: int) -> int:
    """Tokens that may be used at worst by all that is under way at a time under that limit."""
    return int(tokens_per_minute * (1 + DEBT))


def used_up(tenant: str, quota: str, limit: int, retry_after_s: float) -> TenantQuotaError:
    """What refuses a request beyond that limit of its tenant's plan."""
    return TenantQuotaError(
        f"the plan's {quota} of {limit} is used up",
        metadata=quota_names(tenant, quota, limit),
        retry_after_s=retry_after_s,
    )


def quota_names(tenant: str, quota: str, limit: int) -> dict[str, str]:
    """The metadata of every refusal for a plan."""
    return {"quota": quota, "limit": str(limit), "tenant": tenant}


_COUNTS = {
    "requests_per_minute": MAX_COUNT,
    "tokens_per_minute": MAX_TOKENS,
    "max_concurrent": MAX_COUNT,
    "max_context": MAX_COUNT,
}
