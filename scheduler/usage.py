"""What one tenant uses of what its plan grants, and the refusal when that is not enough. Knows requests by numbers."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from tercet import errors
from tercet.mean import Mean
from tercet.retry import UNKNOWN_RETRY_SECONDS, Spread, bounded_retry
from tercet.tenants.plan import quota_names, used_up

from .quota import Bucket, Reservation, TokenBucket
from .tenant import NamedPlan

# So many outputs have to have ended before their mean length is expected of the next.
OUTPUTS_KNOWN = 4
# Nobody is told to wait for longer than this for the sake of others: clients give up then.
SPREAD_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Demand:
    """What a request asks for: n outputs of at most `max_tokens` each from one prompt."""

    prompt: int
    max_tokens: int
    n: int

    @property
    def most(self) -> int:
        """Tokens at worst."""
        return self.prompt + self.n * self.max_tokens


@dataclass(slots=True, eq=False)
class Usage:
    """One tenant's. Limits that its plan does not set have no bucket."""

    plan: NamedPlan
    # Requests from acceptance to end.
    running: int = 0
    requests: Bucket | None = None
    tokens: TokenBucket | None = None
    # Tokens of an output, by class.
    outputs: dict[str, Mean] = field(default_factory=dict)
    # Seconds from acceptance to end.
    seconds: Mean = field(default_factory=Mean)
    # When one of those that run ended last, or the first of them began.
    still_since: float = 0.0
    # What those were told for which tokens did not suffice.
    told: Spread = field(default_factory=Spread)

    def adopt(self, plan: NamedPlan, now: float) -> None:
        """The plan from now on. A bucket whose limit changes is as full as it was, for its size; that of a limit where
        there was none is full."""
        self.plan = plan
        if not (limit := plan.requests_per_minute):
            self.requests = None
        elif self.requests is None:
            self.requests = Bucket(limit, float(limit), now)
        elif limit != self.requests.per_minute:
            self.requests.resize(limit, now)
        if not (limit := plan.tokens_per_minute):
            self.tokens = None
        elif self.tokens is None:
            self.tokens = TokenBucket(limit, float(limit), now)
        elif limit != self.tokens.per_minute:
            self.tokens.resize(limit, now)

    def check(self, demand: Demand, traffic_class: str, now: float) -> None:
        """Raises TenantQuotaError, without a time to retry if the request can never be let in. Changes
        nothing but when the next one that lacks tokens is told to come."""
        if self.tokens is not None and demand.most > self.tokens.most_at_once:
            raise self._never(demand, self.tokens)
        if self.requests is not None and (wait := self.requests.seconds_until(1.0, now)):
            raise self._refusal("requests_per_minute", self.plan.requests_per_minute, wait)
        if self.tokens is not None:
            self._check_tokens(self.tokens, demand, traffic_class, now)
        if self.plan.max_concurrent and self.running >= self.plan.max_concurrent:
            raise self._refusal(
                "max_concurrent",
                self.plan.max_concurrent,
                # More than one if the limit was lowered.
                self._next_ends(self.running - self.plan.max_concurrent + 1, now),
            )

    def accept(self, demand: Demand, traffic_class: str, now: float) -> Reservation | None:
        """A request that passed the check is let in. What was taken for it is to be settled at its end."""
        if not self.running:
            self.still_since = now
        self.running += 1
        if self.requests is not None:
            self.requests.take(1.0, now)
        if self.tokens is None:
            return None
        return self.tokens.reserve(self._expected(demand, traffic_class), demand.most, now)

    def ended(self, reservation: Reservation | None, used: int, seconds: float, now: float) -> None:
        """A request that was let in is over: it used that many tokens, in so many seconds."""
        self.running -= 1
        self.still_since = now
        self.seconds.add(seconds)
        if reservation is not None:
            reservation.settle(used, now)

    def note_output(self, traffic_class: str, length: int) -> None:
        """How long an output got."""
        self.outputs.setdefault(traffic_class, Mean()).add(length)

    def _check_tokens(self, bucket: TokenBucket, demand: Demand, traffic_class: str, now: float) -> None:
        level = bucket.level_for(self._expected(demand, traffic_class), demand.most)
        wait = bucket.seconds_until(level, now)
        if level > bucket.per_minute:
            # Something under way has to end first.
            wait = max(wait, self._next_ends(1, now))
        if wait:
            # One behind the other, as the bucket fills for each.
            each = self._expected(demand, traffic_class) / bucket.rate
            over = max(0.0, SPREAD_SECONDS - wait)
            raise self._refusal("tokens_per_minute", bucket.per_minute, self.told.retry_after(wait, each, over, now))

    def _expected(self, demand: Demand, traffic_class: str) -> int:
        """Tokens, by the outputs of the class so far; the most that it may be while nothing is known."""
        outputs = self.outputs.get(traffic_class)
        if outputs is None or outputs.count < OUTPUTS_KNOWN:
            return demand.most
        return demand.prompt + demand.n * min(math.ceil(outputs.value), demand.max_tokens)

    def _next_ends(self, count: int, now: float) -> float:
        """Seconds until so many of its requests have ended, by how long they take and how many run."""
        if not self.running:
            return UNKNOWN_RETRY_SECONDS
        known = self.seconds.value / self.running if self.seconds.count else UNKNOWN_RETRY_SECONDS
        # Where none ends, that says more than how it was before.
        each = max(known, now - self.still_since)
        return bounded_retry(each * count)

    def _never(self, demand: Demand, bucket: TokenBucket) -> errors.TenantQuotaError:
        return errors.TenantQuotaError(
            f"a prompt of {demand.prompt} tokens and {demand.n} x max_tokens {demand.max_tokens} may use"
            f" {demand.most} tokens; the plan never allows more than {bucket.most_at_once} at once"
            f" (tokens_per_minute {bucket.per_minute})",
            metadata={
                **quota_names(self.plan.tenant, "tokens_per_minute", bucket.per_minute),
                "tokens_at_most": str(bucket.most_at_once),
            },
        )

    def _refusal(self, quota: str, limit: int, retry_after_s: float) -> errors.TenantQuotaError:
        return used_up(self.plan.tenant, quota, limit, retry_after_s)


def fresh_usage(plan: NamedPlan, now: float) -> Usage:
    """Of a tenant that has used nothing."""
    usage = Usage(plan)
    usage.adopt(plan, now)
    return usage
