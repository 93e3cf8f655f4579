"""What the scheduler would refuse a tenant for, known without asking: what it has just said, as long as that must hold.

Knows no prompts. Docs: docs/adr/0017-quotas-are-counted-at-the-door.md has why an answer is never wrong.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from tercet.errors import PermissionDeniedError, RequestError, TenantQuotaError
from tercet.retry import Spread
from tercet.tenants.plan import TenantPlan

# The scheduler is asked again after so many seconds, whatever it has said: it may have heard of another plan from
# another gateway. So long a key that was revoked may open as well.
ASK_AGAIN_S = 1.0
# Nobody is told to wait for longer than this for the sake of others: clients give up then.
_SPREAD_S = 30.0
_MINUTE_S = 60.0
# By so many seconds a time to retry was rounded up on its way.
_ROUNDED_S = 0.001


@dataclass(frozen=True, slots=True)
class _Known:
    """A refusal. Until `ask_at` it holds; `retry_at` is when its client may try again, None if that does not come
    nearer with time."""

    error: RequestError
    ask_at: float
    retry_at: float | None
    # Of requests at a time; 0: it is not about these.
    limit: int


class KnownRefusals:
    """Of the scheduler that there is now, by tenant and class as the request names it.

    Times are seconds of one clock that never goes back.
    """

    def __init__(self) -> None:
        self._known: dict[str, dict[str, _Known]] = {}
        # Accepted by the scheduler, and not known to have ended.
        self._running: Counter[str] = Counter()
        # What those were told whose requests by the minute are used up, by tenant.
        self._told: dict[str, Spread] = {}
        self._forgotten_at = 0.0

    def forget(self, now: float) -> None:
        """Another scheduler, or other plans: what is on its way may be of before."""
        self._known.clear()
        self._told.clear()
        self._forgotten_at = now

    def accepted(self, tenant: str) -> None:
        """The scheduler runs one more of a tenant's requests. It may be the last of the minute, and these are
        looked at first: that as many run as may is not known any more."""
        self._running[tenant] += 1
        if known := self._known.get(tenant):
            self._known[tenant] = {name: each for name, each in known.items() if not each.limit}

    def over(self, tenant: str) -> None:
        """One of these has ended, or is about to since nobody wants it."""
        self._running[tenant] -= 1
        if not self._running[tenant]:
            del self._running[tenant]

    def note(self, tenant: str, traffic_class: str, error: RequestError, asked_at: float, now: float) -> None:
        """The scheduler has refused a request that was sent at `asked_at`."""
        if asked_at <= self._forgotten_at:
            return
        of, quota = error.metadata, error.metadata.get("quota") if isinstance(error, TenantQuotaError) else None
        ask_at, retry_at, limit = asked_at + ASK_AGAIN_S, None, 0
        if quota == "requests_per_minute" and error.retry_after_s is not None:
            # The bucket was looked at between `asked_at` and now: so long after the one it does not hold a request yet,
            # so long after the other it does.
            ask_at = min(ask_at, asked_at + error.retry_after_s - _ROUNDED_S)
            retry_at = now + error.retry_after_s
            told = self._told.setdefault(tenant, Spread())
            told.expected_at = max(told.expected_at, retry_at)
        elif quota == "max_concurrent" and of.get("limit", "").isdecimal():
            limit = int(of["limit"])
        elif not (isinstance(error, PermissionDeniedError) and "traffic_class" in of):
            # What else there is depends on the prompt, or on others.
            return
        self._known.setdefault(tenant, {})[traffic_class] = _Known(error, ask_at, retry_at, limit)

    def find(self, tenant: str, traffic_class: str, plan: TenantPlan, now: float) -> RequestError | None:
        """What the scheduler would say to a request of that tenant and class, whatever its prompt, once its size has
        been found good. None if it has to be asked."""
        of_tenant = self._known.get(tenant, {})
        known = of_tenant.get(traffic_class)
        if known is None:
            return None
        if now >= known.ask_at:
            del of_tenant[traffic_class]
            return None
        error = known.error
        # True if all that it runs came through here: nobody has been told of an end. Tokens would be looked at before.
        full = not plan.tokens_per_minute and self._running[tenant] >= known.limit
        if known.limit and not full:
            return None
        retry_after_s = error.retry_after_s
        if known.retry_at is not None:
            soonest_s = known.retry_at - now
            over_s = max(0.0, _SPREAD_S - soonest_s)
            each_s = _MINUTE_S / max(1, plan.requests_per_minute)
            retry_after_s = self._told[tenant].retry_after(soonest_s, each_s, over_s, now)
        # Another one, since what is raised keeps where that was.
        return type(error)(error.message, metadata=error.metadata, retry_after_s=retry_after_s)
