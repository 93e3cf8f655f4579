"""Who makes a call."""

from __future__ import annotations

from dataclasses import dataclass, field

from tercet.tenants.plan import TenantPlan


@dataclass(frozen=True, slots=True)
class Caller:
    """The tenant that a call's key stands for, and its plan as last read. `salt_key`, 32 bytes, makes its salts; None:
    nobody keeps tenants."""

    tenant: str
    key_id: str
    operator: bool
    salt_key: bytes | None = field(default=None, repr=False)
    plan: TenantPlan = TenantPlan()


# Whoever calls where nobody keeps tenants: may do everything.
ANYONE = Caller("", "", operator=True)
