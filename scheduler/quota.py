"""What a tenant may use by the minute: buckets that fill with time. Pure; knows no tenants and no requests.

Docs: docs/adr/0017-quotas-are-counted-at-the-door.md has why a bucket never gives more than it promises.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tercet.tenants.plan import DEBT, most_at_once

MINUTE_S = 60.0


@dataclass(slots=True, eq=False)
class Bucket:
    """Holds at most `per_minute`, and gets that much in a minute. `level` was right at `filled_at`, in seconds."""

    per_minute: int
    level: float
    filled_at: float

    @property
    def rate(self) -> float:
        """What it gets in a second."""
        return self.per_minute / MINUTE_S

    def level_at(self, now: float) -> float:
        return min(float(self.per_minute), self.level + self.rate * (now - self.filled_at))

    def seconds_until(self, level: float, now: float) -> float:
        """How long it takes to hold that much, or to be full if it never can; 0 if it does now."""
        missing = min(level, self.per_minute) - self.level_at(now)
        return max(0.0, missing / self.rate)

    def take(self, amount: float, now: float) -> None:
        self.level, self.filled_at = self.level_at(now) - amount, now

    def resize(self, per_minute: int, now: float) -> None:
        """Another limit, > 0: it is as full as before, for its size."""
        self.level, self.filled_at = self.level_at(now) * per_minute / self.per_minute, now
        self.per_minute = per_minute


@dataclass(slots=True, eq=False)
class Reservation:
    """Tokens that were taken for a request under way: as many as are expected. `most`: what it can use at worst."""

    bucket: TokenBucket
    tokens: int
    most: int
    # Of these, what time has not brought back to the bucket yet: no more than that can be given back.
    missing: float

    def settle(self, used: int, now: float) -> None:
        """The request is over and used that many tokens. Once for each reservation."""
        self.bucket.settle(self, used, now)


@dataclass(slots=True, eq=False)
class TokenBucket(Bucket):
    """Takes what a request is expected to use, and settles when it is over.

    What requests use, counted when they were let in, is never more in any T seconds than
    per_minute x (1 + DEBT + T / 60).
    """

    # What those under way may use beyond what was taken for them.
    at_risk: int = 0
    # What is missing of what was used, and those under way of which something is missing, the oldest first.
    spent: float = 0.0
    taken: dict[Reservation, None] = field(default_factory=dict)

    @property
    def debt(self) -> float:
        """How far below empty it may go at worst."""
        return self.per_minute * DEBT

    @property
    def most_at_once(self) -> int:
        """What a request may use at worst to be let in when nothing else is under way."""
        return most_at_once(self.per_minute)

    def expected(self, tokens: int) -> int:
        """What is taken for a request of so many: a full bucket is enough."""
        return min(tokens, self.per_minute)

    def level_for(self, tokens: int, most: int) -> float:
        """The level at which a request may be let in: it holds what is expected, and even if all that is under way goes
        on to its end, it does not go deeper than its debt."""
        return max(self.expected(tokens), most + self.at_risk - self.debt)

    def resize(self, per_minute: int, now: float) -> None:
        """What is missing of reservations grows or shrinks with what is missing of the bucket, so that no more can be
        given back. What is at risk stays: requests under way may use what they could before."""
        self._pass(now)
        self.spent *= per_minute / self.per_minute
        for reservation in self.taken:
            reservation.missing *= per_minute / self.per_minute
        # Not by super(): a class with slots is made a second time, and does not find itself.
        Bucket.resize(self, per_minute, now)

    def reserve(self, tokens: int, most: int, now: float) -> Reservation:
        """Takes what a request is expected to use; `level_for` says whether that may be done."""
        self._pass(now)
        tokens = self.expected(tokens)
        self.level -= tokens
        self.at_risk += most - tokens
        reservation = Reservation(self, tokens, most, float(tokens))
        self.taken[reservation] = None
        return reservation

    def settle(self, reservation: Reservation, used: int, now: float) -> None:
        self._pass(now)
        back = min(float(reservation.tokens - used), reservation.missing)
        self.level += back
        self.spent += reservation.missing - back
        self.taken.pop(reservation, None)
        reservation.missing = 0.0
        self.at_risk -= reservation.most - reservation.tokens

    def _pass(self, now: float) -> None:
        """Fills it. What time brings back is first what was used, then what was taken for those under way, the oldest
        first: none of that is to be given back a second time."""
        grown = self.rate * (now - self.filled_at)
        self.take(0.0, now)
        paid = min(grown, self.spent)
        self.spent -= paid
        grown -= paid
        while grown > 0.0 and self.taken:
            oldest = next(iter(self.taken))
            paid = min(grown, oldest.missing)
            oldest.missing -= paid
            grown -= paid
            if not oldest.missing:
                del self.taken[oldest]
