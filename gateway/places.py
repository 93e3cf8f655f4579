"""The gateway's places for running requests, and how many of them one tenant may take. Knows no requests."""

from __future__ import annotations

from collections import Counter

from tercet.errors import QueueFullError, TenantQuotaError

from .caller import Caller
from .link import RETRY_AFTER_S

# A tenant has at most so many times the places that it leaves free: one alone 3/4 of all, two 3/7 each.
TIMES_FREE = 3
# A tenant has at most so many times its max_concurrent: what runs, and as much on its way to the scheduler, whose
# refusal is exact and knows when to come again.
TIMES_CONCURRENT = 2


class Places:
    """At most `limit` requests at a time. A tenant that has several never takes the last of them: who comes next finds
    one, however many the others want. Where nobody keeps tenants whoever comes takes any."""

    def __init__(self, limit: int) -> None:
        self._taken: Counter[str] = Counter()
        self._free = limit

    def check(self, caller: Caller) -> None:
        """Raises QueueFullError, or TenantQuotaError, if there is none for one more request of the caller's."""
        mine, most = self._taken[caller.tenant], caller.plan.max_concurrent
        if most and mine >= TIMES_CONCURRENT * most:
            raise TenantQuotaError(
                f"the plan's max_concurrent of {most} is used up",
                metadata={"quota": "max_concurrent", "limit": str(most), "tenant": caller.tenant},
                retry_after_s=RETRY_AFTER_S,
            )
        if not self._free or (caller.tenant and mine >= TIMES_FREE * self._free):
            raise QueueFullError(
                "the gateway has as many requests as it takes (gateway.max_concurrent_requests)",
                retry_after_s=RETRY_AFTER_S,
            )

    def take(self, tenant: str) -> None:
        """A request that passed the check."""
        self._taken[tenant] += 1
        self._free -= 1

    def leave(self, tenant: str) -> None:
        """One that has its place no more."""
        self._taken[tenant] -= 1
        self._free += 1
        if not self._taken[tenant]:
            del self._taken[tenant]
