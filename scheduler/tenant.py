"""What a tenant may do, as its gateway says. Knows no keys and no requests."""

from __future__ import annotations

from dataclasses import dataclass

from tercet.tenants.plan import MOST_URGENT


@dataclass(frozen=True, slots=True)
class TenantPlan:
    """One tenant's: who it is, and the limits of tercet.tenants.plan.TenantPlan, which has what they mean and checks
    them before a gateway tells them; 0 and empty are none."""

    tenant: str
    classes: tuple[str, ...] = ()
    default_class: str = ""
    weight: float = 1.0
    requests_per_minute: int = 0
    tokens_per_minute: int = 0
    max_concurrent: int = 0
    kv_share: float = 0.0
    max_context: int = 0
    min_priority: int = MOST_URGENT
    # Its alone, whoever had the name before; empty where nobody keeps tenants.
    uid: str = ""

    @property
    def identity(self) -> tuple[str, str]:
        """Who it is: under one name there may be another one later."""
        return self.tenant, self.uid


# Whoever asks where nobody keeps tenants: without limits.
ANYONE = TenantPlan("")
