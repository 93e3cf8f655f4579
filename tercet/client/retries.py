"""When a call that failed is made again. Knows neither channels nor how to wait."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from tercet import errors, setting_check

# A wait is drawn out by up to so much of itself, so that those who were refused together do not come back together.
_SPREAD = 0.5


@dataclass(frozen=True, slots=True)
class Retry:
    """How often a call that failed is made again, and when. What has begun never is.

    A refusal that says when to ask again is followed by another attempt then, never earlier. One that does not say it
    is final. A gateway that cannot be reached, or is lost before it answers, is asked again after `first_s` seconds,
    after twice as long the next time, and so on; but not for an answer in one piece, which may have been begun. There
    are `attempts` in all, the first included. A wait of more than `longest_s` seconds, or one beyond the call's
    timeout, is not begun: the error is raised at once. `draw` gives numbers from 0 to 1, by which waits are drawn out.

    Raises ValueError for what is none of that.
    """

    attempts: int = 4
    first_s: float = 0.2
    longest_s: float = 30.0
    draw: Callable[[], float] = field(default=random.random, repr=False)

    def __post_init__(self) -> None:
        if self.attempts < 1:
            raise ValueError(f"attempts must be at least 1, is {self.attempts}")
        # Written so that NaN fails.
        if not 0 < self.first_s <= self.longest_s <= setting_check.MAX_SECONDS:
            raise ValueError(
                f"first_s and longest_s must be above 0, the first not above the second, are {self.first_s:g} and "
                f"{self.longest_s:g}"
            )

    def wait_s(
        self, num_made: int, error: errors.RequestError, left_s: float | None, *, repeatable: bool
    ) -> float | None:
        """Seconds to wait before the next attempt; None: there is none.

        `num_made` have been made, the last of which ended with `error`; `left_s` is what is left of the call's time,
        None without limit. `repeatable`: nothing is doubled if the last attempt was heard after all.
        """
        if num_made >= self.attempts:
            return None
        if error.retry_after_s is not None:
            told_s = error.retry_after_s
        elif repeatable and _is_lost(error):
            # The exponent is bounded by what a float can hold.
            told_s = min(self.first_s * 2.0 ** min(num_made - 1, 64), self.longest_s)
        else:
            return None
        wait_s = told_s * (1 + _SPREAD * self.draw())
        if told_s > self.longest_s or (left_s is not None and wait_s >= left_s):
            return None
        return wait_s


def _is_lost(error: errors.RequestError) -> bool:
    # What answers, but is no gateway, will not become one.
    return isinstance(error, errors.GatewayLostError) and "code" not in error.metadata


class Tries:
    """The attempts of one call, and the time that they share.

    Raises ValueError for a `timeout_s` of more than a year; None is no limit.
    """

    def __init__(
        self,
        retry: Retry | None,
        timeout_s: float | None,
        *,
        repeatable: bool,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        # gRPC takes what overflows there for a time that has passed. Written so that NaN fails.
        if timeout_s is not None and not timeout_s <= setting_check.MAX_SECONDS:
            raise ValueError(
                f"timeout_s must be at most {setting_check.MAX_SECONDS:,}, is {timeout_s:g}; None is no limit"
            )
        self._retry = retry
        self._repeatable = repeatable
        self._clock = clock
        self._ends_at = None if timeout_s is None else clock() + timeout_s
        self._num_made = 0
        self._begun = False

    def begin(self) -> float | None:
        """Counts one more attempt. Seconds it may take, None without limit."""
        self._num_made += 1
        return self._left_s()

    def note_begun(self) -> None:
        """From now on there is no other attempt: the mesh has begun, and said so."""
        self._begun = True

    def wait_s(self, error: errors.RequestError) -> float:
        """Seconds to wait before the next attempt. Raises `error` if there is none."""
        wait_s = None
        if self._retry is not None and not self._begun:
            wait_s = self._retry.wait_s(self._num_made, error, self._left_s(), repeatable=self._repeatable)
        if wait_s is None:
            raise error
        return wait_s

    def _left_s(self) -> float | None:
        return None if self._ends_at is None else self._ends_at - self._clock()
