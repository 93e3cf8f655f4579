"""All running requests of the gateway: takes them in, finds them by id, drains them."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections.abc import Callable, Iterator

import structlog

from tercet.errors import DeadlineError, DrainingError, DuplicateRequestError, RequestCancelledError, RequestError
from tercet.ids import new_request_id
from tercet.retry import UNKNOWN_RETRY_SECONDS
from tercet.sections import GatewaySettings
from tercet.tenants.directory import Directory
from tercet.tracing.context import TraceContext
from tercet.tracing.tracer import Tracer

from .books import Books
from .caller import Caller
from .cancel import CancelOrigin
from .generation import ACCOUNT_WAIT_S, Generation, Means
from .grammar_check import GrammarCheck
from .places import Places
from .refusal_counts import RefusalKind
from .schedulers import Schedulers
from .tokenizing import Tokenizing
from .traces import trace_refusal
from .validate import MAX_TRAFFIC_CLASS_CHARS, GenerationRequest

log = structlog.get_logger()


class Generations:
    """The running requests of this gateway, by tenant and id: two tenants may use the same id, and neither can tell. At
    most `settings.max_concurrent_requests`, of which each tenant has its `Places`."""

    def __init__(
        self,
        settings: GatewaySettings,
        link: Schedulers,
        books: Books,
        *,
        clock: Callable[[], float] = time.monotonic,
        draw_seed: Callable[[], int] = lambda: secrets.randbits(64),
        tracer: Tracer | None = None,
    ) -> None:
        self.settings = settings
        self.tokenizing = Tokenizing(settings.max_prompt_bytes)
        self.grammars = GrammarCheck()
        self._means = Means(settings, link, books, self.tokenizing, self.grammars, clock, draw_seed, tracer or Tracer())
        self.draining = False
        self._running: dict[tuple[str, str], Generation] = {}
        self._places = Places(settings.max_concurrent_requests)
        self._idle = asyncio.Event()
        self._idle.set()

    def __len__(self) -> int:
        return len(self._running)

    @property
    def num_turned_away(self) -> int:
        """Requests so far for which the gateway had no place."""
        return self._places.num_turned_away

    @property
    def num_behind(self) -> int:
        """Running requests whose clients are far behind."""
        return sum(each.stream is not None and each.stream.behind for each in self._running.values())

    def start(
        self,
        request: GenerationRequest,
        caller: Caller,
        time_left_s: float | None,
        parent: TraceContext | None = None,
    ) -> Generation:
        """Takes a request in. `time_left_s` is the time to the client's deadline, `parent` the trace that it is part
        of. Whoever has it must `close` it, and then `leave`.

        Raises DrainingError, DuplicateRequestError, QueueFullError, TenantQuotaError, DeadlineError, LedgerLostError.
        """
        self.refuse_if_draining()
        if time_left_s is not None and time_left_s <= 0:
            raise DeadlineError("the deadline has passed")
        request_id = request.request_id or new_request_id()
        if (caller.tenant, request_id) in self._running:
            raise DuplicateRequestError(
                f"a request with id {request_id!r} is running", metadata={"request_id": request_id}
            )
        self._places.check(caller)
        deadline_at = None if time_left_s is None else self._means.clock() + time_left_s
        entry = self._means.books.enter(request, request_id, caller.tenant)
        generation = Generation(self._means, request, request_id, caller, deadline_at, entry, self._forget, parent)
        self._running[caller.tenant, request_id] = generation
        self._places.take(caller.tenant)
        self._idle.clear()
        return generation

    def leave(self, generation: Generation) -> None:
        """Gives the place of a closed request back, once its call is over: until then what its client has not read is
        here."""
        self._places.leave(generation.caller.tenant)

    @contextlib.contextmanager
    def place(self, caller: Caller) -> Iterator[None]:
        """One of the caller's places for something else than a request, for as long as the scope lasts. Raises
        QueueFullError, TenantQuotaError."""
        self._places.check(caller)
        self._places.take(caller.tenant)
        try:
            yield
        finally:
            self._places.leave(caller.tenant)

    def note_refusal(
        self, tenant: str | None, traffic_class: str, error: RequestError, parent: TraceContext | None = None
    ) -> None:
        """Counts a request that was refused before it was taken in; `tenant` is None for callers who are not known, of
        whom nothing is traced."""
        if tenant is not None:
            trace_refusal(self._means.tracer, parent, error)
        self._means.link.note_refusal(RefusalKind(tenant, traffic_class[:MAX_TRAFFIC_CLASS_CHARS], error.reason))
        self._means.books.refuse(tenant or "", traffic_class, "", error.reason, "")

    def cancel(self, request_id: str, tenant: str | None) -> bool:
        """Cancels a tenant's running request, or, if `tenant` is None, every one of that id. Whether there was one."""
        owners = {owner for owner, _ in self._running} if tenant is None else {tenant}
        found = [each for owner in owners if (each := self._running.get((owner, request_id))) is not None]
        error = RequestCancelledError("the request was cancelled by its id")
        ended = [generation.end(error, CancelOrigin.OPERATOR) for generation in found]
        return any(ended)

    def end_revoked(self, directory: Directory) -> None:
        """Cancels the requests whose key is no longer among those of `directory`. One that has only expired still is:
        what it started goes on."""
        for generation in list(self._running.values()):
            if generation.caller.key_id not in directory.keys:
                error = RequestCancelledError("the key of the request was revoked")
                generation.end(error, CancelOrigin.REVOKED)

    def refuse_if_draining(self) -> None:
        """Raises DrainingError once the gateway stops."""
        if self.draining:
            raise draining_error()

    async def drain(self, grace_s: float) -> None:
        """Takes no more requests, waits for the running ones, and after `grace_s` seconds ends those that are left."""
        self.draining = True
        await self._wait_idle(grace_s)
        for generation in list(self._running.values()):
            generation.end(draining_error(begun=generation.has_begun), CancelOrigin.SHUTDOWN)
        await self._wait_idle(ACCOUNT_WAIT_S)

    def _forget(self, generation: Generation) -> None:
        """Takes a closed request out."""
        self._running.pop((generation.caller.tenant, generation.request_id), None)
        if not self._running:
            self._idle.set()

    async def _wait_idle(self, timeout_s: float) -> None:
        try:
            await asyncio.wait_for(self._idle.wait(), timeout_s)
        except asyncio.TimeoutError:
            log.info("drain_incomplete", requests=len(self._running))


def draining_error(*, begun: bool = False) -> DrainingError:
    """The refusal of a gateway that stops. What has begun is not to be repeated behind its client's back."""
    return DrainingError("the gateway is shutting down", retry_after_s=None if begun else UNKNOWN_RETRY_SECONDS)
