"""A tenant, as its gateway says. Knows no keys and no requests."""

from __future__ import annotations

from dataclasses import dataclass, field

from tercet.tenants.plan import TenantPlan


@dataclass(frozen=True, slots=True)
class NamedPlan(TenantPlan):
    """A plan and whose it is. Raises PlanError as a plan does."""

    tenant: str
    # Its alone, whoever had the name before; empty where nobody keeps tenants.
    uid: str = field(default="", kw_only=True)

    @property
    def identity(self) -> tuple[str, str]:
        """Who it is: under one name there may be another one later."""
        return self.tenant, self.uid


# Whoever asks where nobody keeps tenants: without limits.
ANYONE = NamedPlan("")
