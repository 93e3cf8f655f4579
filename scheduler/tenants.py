"""All tenants, as the gateways say."""

from __future__ import annotations

from dataclasses import dataclass, field

from .events import TenantsChanged
from .tenant import TenantPlan


@dataclass(slots=True, eq=False)
class Tenants:
    """The plans of the newest revision."""

    revision: int = 0
    plans: dict[str, TenantPlan] = field(default_factory=dict)

    def learn(self, event: TenantsChanged) -> None:
        """What an older revision says is ignored."""
        if event.revision >= self.revision:
            self.revision = event.revision
            self.plans = {plan.tenant: plan for plan in event.plans}
