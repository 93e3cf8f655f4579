"""The gateway's places for running requests, and how many of them one tenant may take. Knows no requests."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable

from tercet.errors import QueueFullError
from tercet.mean import Mean
from tercet.retry import UNKNOWN_RETRY_SECONDS, bounded_retry
from tercet.tenants.plan import used_up

from .caller import Caller

# A tenant has at most so many times the places that it leaves free: one alone 3/4 of all, two 3/7 each.
TIMES_FREE = 3
# A tenant has at most so many times its max_concurrent: what runs, and as much on its way to the scheduler, whose
# refusal is exact and knows when to come again.
TIMES_CONCURRENT = 2


class Places:
    """At most `limit` requests at a time. A tenant that has several never takes the last of them: who comes next finds
    one, however many the others want. Where nobody keeps tenants whoever comes takes any. `num_turned_away` counts
    those who came when all were taken, not those who have their share. `clock` gives seconds."""

    def __init__(self, limit: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._taken: Counter[str] = Counter()
        self._limit = self._free = limit
        self.num_turned_away = 0
        self._clock = clock
        # Seconds for which all places together were held since one was left, up to the last change; and the mean of
        # that from one leaving to the next, which is how long a place is held.
        self._held_s = 0.0
        self._changed_at = clock()
        self._mean_held_s = Mean()

    def check(self, caller: Caller) -> None:
        """Raises QueueFullError, or TenantQuotaError, if there is none for one more request of the caller's."""
        mine, most = self._taken[caller.tenant], caller.plan.max_concurrent
        if most and mine >= TIMES_CONCURRENT * most:
            retry_s = self._retry_after(1 + mine - TIMES_CONCURRENT * most, mine)
            raise used_up(caller.tenant, "max_concurrent", most, retry_s)
        if not self._free or (caller.tenant and mine >= TIMES_FREE * self._free):
            self.num_turned_away += not self._free
            short = mine // TIMES_FREE + 1 - self._free if caller.tenant else 1
            raise QueueFullError(
                "the gateway has as many requests as it takes (gateway.max_concurrent_requests)",
                retry_after_s=self._retry_after(short, self._limit - self._free),
            )

    def take(self, tenant: str) -> None:
        """A request that passed the check."""
        self._pass()
        self._taken[tenant] += 1
        self._free -= 1

    def leave(self, tenant: str) -> None:
        """One that has its place no more."""
        self._pass()
        self._mean_held_s.add(self._held_s)
        self._held_s = 0.0
        self._taken[tenant] -= 1
        self._free += 1
        if not self._taken[tenant]:
            del self._taken[tenant]

    def _pass(self) -> None:
        now = self._clock()
        self._held_s += (self._limit - self._free) * (now - self._changed_at)
        self._changed_at = now

    def _retry_after(self, ends: int, held: int) -> float:
        """Seconds until so many of `held` places are left."""
        if not self._mean_held_s.count:
            return UNKNOWN_RETRY_SECONDS
        self._pass()
        # Where nobody leaves, that says more than how it was before.
        held_s = max(self._mean_held_s.value, self._held_s)
        return bounded_retry(ends * held_s / held)
