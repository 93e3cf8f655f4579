"""What a tenant may do, as its gateway says. Knows no keys and no requests."""

from __future__ import annotations

from dataclasses import dataclass

from tercet.tenants.plan import MOST_URGENT

# No weight is less: nobody is divided by nothing.
LEAST_WEIGHT = 1e-3


@dataclass(frozen=True, slots=True)
class TenantPlan:
    """Limits of one tenant; 0 and empty are none."""

    tenant: str
    # Traffic classes it may name, and the one of requests that name none.
    classes: tuple[str, ...] = ()
    default_class: str = ""
    # Its share where tenants of one class compete; at least LEAST_WEIGHT.
    weight: float = 1.0
    requests_per_minute: int = 0
    # Prompt and output together.
    tokens_per_minute: int = 0
    max_concurrent: int = 0
    # Part of a pool's KV blocks that its running sequences may hold together. It starts none beyond; of those that have
    # grown beyond, the least urgent give way as soon as others find too few blocks. One may always run.
    kv_share: float = 0.0
    # Longest prompt + output.
    max_context: int = 0
    # The most urgent priority it may ask for.
    min_priority: int = MOST_URGENT
    # Its alone, whoever had the name before; empty where nobody keeps tenants.
    uid: str = ""

    @property
    def identity(self) -> tuple[str, str]:
        """Who it is: under one name there may be another one later."""
        return self.tenant, self.uid


# Whoever asks where nobody keeps tenants: without limits.
ANYONE = TenantPlan("")
