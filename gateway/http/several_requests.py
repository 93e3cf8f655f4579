"""The requests of one call, whose plan has to allow them all: what it never can is refused before any is submitted."""

from __future__ import annotations

import asyncio

from tercet.errors import TenantQuotaError
from tercet.tenants.plan import most_at_once, quota_names

from ..caller import Caller


def check_count(count: int, caller: Caller) -> None:
    """Raises TenantQuotaError, without a time to retry, if the plan never allows so many requests at once."""
    for quota in ("max_concurrent", "requests_per_minute"):
        limit: int = getattr(caller.plan, quota)
        if 0 < limit < count:
            raise TenantQuotaError(
                f"a call with {count} prompts is as many requests; the plan never allows more than {limit} at once"
                f" ({quota} {limit})",
                metadata=quota_names(caller.tenant, quota, limit),
            )


class SeveralRequests:
    """`count` of one caller, which are submitted in order when all of them are ready for it."""

    def __init__(self, count: int, caller: Caller) -> None:
        self._num_missing = count
        self._caller = caller
        self._most_tokens = 0
        self._loop = asyncio.get_running_loop()
        self._turns: list[asyncio.Future[None]] = [self._loop.create_future() for _ in range(count)]

    async def wait(self, index: int, most_tokens: int) -> None:
        """That one is ready, and may use so many tokens at worst. Waits for the others.

        Raises TenantQuotaError, without a time to retry, if the plan never allows what they may use together. Of one
        alone the scheduler says so.
        """
        self._most_tokens += most_tokens
        self._num_missing -= 1
        if not self._num_missing:
            # Later: who finds its turn come does not wait, and would be ahead of all.
            self._loop.call_soon(self._release)
        await self._turns[index]
        limit = self._caller.plan.tokens_per_minute
        at_most = most_at_once(limit)
        if len(self._turns) > 1 and 0 < at_most < self._most_tokens:
            raise TenantQuotaError(
                f"the {len(self._turns)} prompts of the call may use {self._most_tokens} tokens with their outputs;"
                f" the plan never allows more than {at_most} at once (tokens_per_minute {limit})",
                metadata={
                    **quota_names(self._caller.tenant, "tokens_per_minute", limit),
                    "tokens_at_most": str(at_most),
                },
            )

    def _release(self) -> None:
        for turn in self._turns:
            if not turn.done():
                turn.set_result(None)
