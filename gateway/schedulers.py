"""The schedulers of the mesh, a link to each. Requests go to the one that has workers; when that one leaves or is lost,
those that run go on at the next.

What a client has been sent is never sent again, nor is anything missing: the next scheduler is told all tokens so far,
and each token depends on those before it and on the seed alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import count

import structlog

from tercet import errors
from tercet.dialer import Dialer
from tercet.health import Conditions
from tercet.retry import UNKNOWN_RETRY_SECONDS
from tercet.tenants.directory import Directory
from tercet.tenants.plan import TenantPlan
from tercet.v1 import operations_pb2

from .cancel import CancelOrigin
from .handover import end_lost
from .link import Link
from .mesh_messages import Pool, Submission
from .refusal_counts import RefusalKind
from .sent_request import SentRequest
from .stream import Stream

log = structlog.get_logger()

# So long requests wait for a scheduler that takes over. It hears of a loss within a second, of one that hangs in five,
# and of its workers in another; a gateway has no reason to give up one that hangs for thrice as long.
TAKE_OVER_S = 15.0


@dataclass(frozen=True, slots=True)
class _Waiting:
    """A request between two schedulers since a moment on the clock, and what ends it if none takes over in time."""

    request: SentRequest
    since: float
    timer: asyncio.TimerHandle


class Schedulers:
    """`on_change` is called when a link went up or down, or heard of other pools. Methods are those of a link."""

    def __init__(
        self,
        dialers: Sequence[Dialer],
        gateway_id: str,
        on_change: Callable[[], None],
        clock: Callable[[], float],
        *,
        worker_grace_s: float = 0.0,
        replaces: bool = False,
    ) -> None:
        """`dialers` have the addresses, at least one; `clock` gives seconds. `worker_grace_s`: so long a scheduler lets
        what it has accepted wait for a worker. `replaces`: clients may come before a scheduler does, since another
        gateway has sent them away."""
        keys, several = count(1), len(dialers) > 1
        self._links = [
            Link(dialer, gateway_id, self._changed, keys, self._hand_over, hands_over=several) for dialer in dialers
        ]
        self._on_change = on_change
        self._clock = clock
        self._worker_grace_s = worker_grace_s
        # By key.
        self._waiting: dict[int, _Waiting] = {}
        # The one that had workers last, and until when another one may be about to take over from it.
        self._leader: Link | None = None
        self._settled_at = clock() + TAKE_OVER_S if replaces else clock()
        # Those who wait for that.
        self._waiters: set[asyncio.Future[None]] = set()

    async def run(self) -> None:
        """Keeps the links up until cancelled."""
        tasks = [asyncio.create_task(link.run()) for link in self._links]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for key in list(self._waiting):
                self._end(key)

    @property
    def up(self) -> bool:
        """Whether any scheduler is connected."""
        return any(link.up for link in self._links)

    @property
    def num_up(self) -> int:
        """Schedulers that are connected."""
        return sum(link.up for link in self._links)

    def num_workers(self, model: str, revision: str) -> int:
        """Live workers of a model, as the scheduler says that has most of them."""
        pools = [link.pools.get((model, revision)) for link in self._links]
        return max((pool.workers_live for pool in pools if pool is not None), default=0)

    def pool(self, model: str, revision: str) -> Pool:
        """As of a link."""
        return self._link_for(model, revision).pool(model, revision)

    def ready(self, model: str, revision: str) -> bool:
        """Whether a request for the model would find a worker now."""
        return any(link.ready(model, revision) for link in self._links)

    async def settled_pool(self, model: str, revision: str) -> Pool:
        """As `pool`, but where a scheduler has just gone it waits until another one has taken over."""
        while not self.ready(model, revision) and self._clock() < self._settled_at:
            waiter = asyncio.get_running_loop().create_future()
            self._waiters.add(waiter)
            timer = asyncio.get_running_loop().call_later(self._settled_at - self._clock(), _wake, waiter)
            try:
                await waiter
            finally:
                timer.cancel()
                self._waiters.discard(waiter)
        return self.pool(model, revision)

    def submit(self, submission: Submission, stream: Stream) -> int:
        """As of a link."""
        return self._link_for(submission.model, submission.model_revision).submit(submission, stream)

    def cancel(self, key: int, origin: CancelOrigin) -> None:
        """As of a link. One that no scheduler has is over at once."""
        waiting = self._waiting.pop(key, None)
        if waiting is None:
            for link in self._links:
                link.cancel(key, origin)
            return
        waiting.timer.cancel()
        stream = waiting.request.stream
        stream.cancels.ask(origin)
        stream.fail(errors.RequestCancelledError("the request was cancelled"))
        stream.close_account(None)

    def tell_tenants(self, directory: Directory) -> None:
        """As of a link, to all."""
        for link in self._links:
            link.tell_tenants(directory)

    def known_refusal(self, tenant: str, traffic_class: str, plan: TenantPlan) -> errors.RequestError | None:
        """As of a link."""
        return self._leading.known_refusal(tenant, traffic_class, plan)

    def note_refusal(self, kind: RefusalKind) -> None:
        """As of a link."""
        self._leading.note_refusal(kind)

    async def fleet(self) -> operations_pb2.Fleet:
        """As of a link."""
        return await self._leading.calls.fleet()

    async def scheduler_health(self, names: Iterable[str]) -> Conditions:
        """As of a link."""
        return await self._leading.calls.health(names)

    async def traffic(self, request: operations_pb2.GetTrafficRequest) -> operations_pb2.Traffic:
        """As of a link."""
        return await self._leading.calls.traffic(request)

    def plan_log(self) -> AsyncGenerator[bytes, None]:
        """As of a link."""
        return self._leading.calls.plan_log()

    @property
    def _leading(self) -> Link:
        """The scheduler that has the workers; if none has, the likeliest one to know why."""
        found = [link for link in self._links if link.has_workers] or [link for link in self._links if link.up]
        return _latest(found) or self._leader or self._links[0]

    def _link_for(self, model: str, revision: str) -> Link:
        return self._taker(model, revision) or self._leading

    def _taker(self, model: str, revision: str) -> Link | None:
        """The scheduler that can go on with requests for a model."""
        return _latest([link for link in self._links if not link.draining and link.ready(model, revision)])

    def _hand_over(self, request: SentRequest) -> bool:
        """A scheduler cannot go on with a request. Whether another one may."""
        if len(self._links) == 1:
            return False
        timer = asyncio.get_running_loop().call_later(TAKE_OVER_S, self._give_up, request.key)
        self._waiting[request.key] = _Waiting(request, self._clock(), timer)
        # Not now: who loses one request loses others, too.
        asyncio.get_running_loop().call_soon(self._take_over)
        return True

    def _take_over(self) -> None:
        for key, waiting in list(self._waiting.items()):
            submit = waiting.request.submit
            link = self._taker(submit.model, submit.model_revision)
            if link is not None:
                del self._waiting[key]
                waiting.timer.cancel()
                link.take_over(waiting.request)

    def _give_up(self, key: int) -> None:
        """A request has waited long enough for a scheduler. If one leads that has no worker yet, it waits for that as
        long as it would there."""
        waiting = self._waiting[key]
        left_s = waiting.since + self._worker_grace_s - self._clock()
        if left_s > 0 and self._lacks_worker(waiting.request):
            timer = asyncio.get_running_loop().call_later(left_s, self._give_up, key)
            self._waiting[key] = replace(waiting, timer=timer)
        else:
            self._end(key)

    def _end(self, key: int) -> None:
        waiting = self._waiting.pop(key)
        waiting.timer.cancel()
        request = waiting.request
        log.warning("not_taken_over", request_id=request.request_id)
        if not self._lacks_worker(request):
            end_lost(request, self._leading.lost("the scheduler was lost, and no other took over in time"))
            return
        num_tokens = request.stream.num_tokens
        error = errors.WorkerLostError(
            "all workers were lost, and the scheduler that took over found none in time",
            metadata={"model": request.submit.model, "tokens_emitted": str(num_tokens)},
            # What a client has seen the beginning of is not to be repeated behind its back.
            retry_after_s=None if num_tokens else UNKNOWN_RETRY_SECONDS,
        )
        request.stream.fail(error)
        request.stream.close_account(None)

    def _lacks_worker(self, request: SentRequest) -> bool:
        """Whether a scheduler leads that could go on with an accepted request if it had a worker."""
        return bool(request.outputs) and any(link.up and link.term and not link.draining for link in self._links)

    def _changed(self) -> None:
        if self._leader is not None and not self._leader.up and len(self._links) > 1:
            self._leader, self._settled_at = None, self._clock() + TAKE_OVER_S
        leader = _latest([link for link in self._links if link.has_workers])
        self._leader = leader or self._leader
        self._take_over()
        if leader is not None:
            for link in self._links:
                # A worker obeys one scheduler, the one that began to lead later: this one waits for what the other one
                # has, whether they hear of each other or not, or hangs.
                if link.is_in_vain(leader.term):
                    link.leave()
        for waiter in self._waiters:
            _wake(waiter)
        self._on_change()


def _latest(links: Sequence[Link]) -> Link | None:
    """Of those that say to have workers the one that does: a worker obeys the scheduler that began to lead later."""
    return max(links, key=lambda link: link.term, default=None)


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
