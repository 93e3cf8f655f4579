"""The gateway's one stream to the scheduler: all requests go down it, all their tokens come back on it.

Knows no text.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping
from itertools import count

import grpc
import grpc.aio
import structlog

from tercet import errors
from tercet.dialer import Dialer
from tercet.mesh.v1 import scheduler_pb2 as pb
from tercet.mesh.v1 import scheduler_pb2_grpc
from tercet.ration import Ration
from tercet.retry import UNKNOWN_RETRY_SECONDS
from tercet.tenants.directory import Directory
from tercet.tenants.kept import KEPT
from tercet.tenants.plan import TenantPlan

from .cancel import CancelOrigin
from .known_refusals import KnownRefusals
from .mesh_messages import Pool, Submission, to_pools, to_refusal_counts, to_tenant_update
from .outgoing import Outgoing
from .refusal_counts import RefusalCounts, RefusalKind
from .scheduler_calls import SchedulerCalls, scheduler_lost
from .sent_request import SentRequest
from .sent_requests import ProtocolError, SentRequests, nobody
from .stream import Stream

log = structlog.get_logger()

_BACKOFF_FIRST_S = 0.1
_BACKOFF_MOST_S = 1.0
# What the gateway refused by itself the scheduler knows so many seconds later.
TELL_S = 1.0
# Requests that get their last word in a turn of the event loop, 0.1 ms each, when many were cancelled.
LAST_WORDS_A_TURN = 4
# Between two comparisons of what runs here with what runs at the scheduler.
RECONCILE_S = 2.0


class Link:
    """Dials, and dials again for as long as `run` runs. `on_change` is called when `up` or `pools` changed.

    Every submitted request gets its end: from the scheduler, or, when the stream is lost, SchedulerLostError, unless
    `hand_over` takes it. `keys` are those of its requests, `hands_over` says whether there is another scheduler.
    """

    def __init__(
        self,
        dialer: Dialer,
        gateway_id: str,
        on_change: Callable[[], None],
        keys: Iterator[int] | None = None,
        hand_over: Callable[[SentRequest], bool] = nobody,
        *,
        hands_over: bool = False,
    ) -> None:
        self.up = False
        # It takes no more requests, and what it has it lets end.
        self.draining = False
        self.pools: Mapping[tuple[str, str], Pool] = {}
        # When its scheduler began to lead, 0: it does not, or has not said so. Of two the later one is larger.
        self.term = 0
        # No worker serves anything else.
        self._complete = False
        # What it is asked for beside the stream.
        self.calls = SchedulerCalls(dialer, self._guarded)
        self._dialer = dialer
        self._address = dialer.address
        self._gateway_id = gateway_id
        self._on_change = on_change
        # Another one after each dial.
        self._outgoing = Outgoing()
        self._known = KnownRefusals()
        self._keys = keys or count(1)
        self._hands_over = hands_over
        self._last_words = Ration(LAST_WORDS_A_TURN)
        self._requests = SentRequests(self._send, self._known, time.monotonic, hand_over, self._last_words.do)
        self._refusals = RefusalCounts()
        # When the scheduler is told of them; None while there are none.
        self._telling: asyncio.TimerHandle | None = None
        self._epoch = 0
        self._left = asyncio.Event()
        # What every scheduler is told first, if there are tenants.
        self._directory: Directory | None = None

    async def run(self) -> None:
        """Keeps the stream up until cancelled."""
        backoff_s = _BACKOFF_FIRST_S
        try:
            while True:
                was_up = await self._attach()
                backoff_s = _BACKOFF_FIRST_S if was_up else min(backoff_s * 2, _BACKOFF_MOST_S)
                await asyncio.sleep(backoff_s)
        finally:
            if self._telling is not None:
                self._telling.cancel()
            self._last_words.finish()
            await self._dialer.close()

    @property
    def has_workers(self) -> bool:
        """Whether requests can go to it."""
        return self.up and not self.draining and any(pool.workers_live for pool in self.pools.values())

    def pool(self, model: str, revision: str) -> Pool:
        """The pool that can serve a model now. Raises SchedulerLostError, NoWorkerError, RevisionMismatchError, and
        ModelNotFoundError if all workers are known and none has that model."""
        if not self.up:
            raise self.lost("there is no connection to the scheduler")
        found = self.pools.get((model, revision))
        if found is not None and found.workers_live:
            return found
        others = [other for (name, other), pool in self.pools.items() if name == model and pool.workers_live]
        if found is None and others:
            have = ", ".join(others)
            raise errors.RevisionMismatchError(
                f"the gateway has revision {revision} of {model}, the workers {have}; start both with the same files",
                metadata={"model": model, "gateway": revision, "workers": have},
            )
        served = ", ".join(sorted({name for name, _ in self.pools}))
        if self._complete and model not in {name for name, _ in self.pools}:
            raise errors.ModelNotFoundError(
                f"no worker serves model {model!r}; served: {served}", metadata={"model": model, "served": served}
            )
        raise errors.NoWorkerError(
            f"no live worker serves {model}", metadata={"model": model}, retry_after_s=UNKNOWN_RETRY_SECONDS
        )

    def ready(self, model: str, revision: str) -> bool:
        """Whether a request for the model would find a worker now."""
        try:
            self.pool(model, revision)
        except errors.RequestError:
            return False
        return True

    def tell_tenants(self, directory: Directory) -> None:
        """Tells the scheduler, and each that is dialled later, what tenants may do, ahead of all that is submitted."""
        self._directory = directory
        self._known.forget(time.monotonic())
        self._send(pb.GatewayMessage(tenants=to_tenant_update(directory)))

    def submit(self, submission: Submission, stream: Stream) -> int:
        """Sends a request; its answers go to `stream`. Returns its key. Raises SchedulerLostError."""
        if not self.up:
            raise self.lost("there is no connection to the scheduler")
        key = next(self._keys)
        self._requests.submit(key, submission, stream)
        return key

    def is_in_vain(self, latest_term: int) -> bool:
        """Whether it is up and has requests, and its scheduler has no worker, whatever it says: one that began to lead
        in `latest_term` has them."""
        has_any = any(pool.workers_live for pool in self.pools.values()) and self.term >= latest_term
        return self.up and bool(len(self._requests)) and not has_any

    def leave(self) -> None:
        """Gives the stream up, and with it the requests."""
        self._left.set()

    def take_over(self, request: SentRequest) -> None:
        """Sends a request that another scheduler had; this one is up."""
        self._requests.take_over(request)

    def cancel(self, key: int, origin: CancelOrigin) -> None:
        """Tells the scheduler to stop, once; nothing if the request has ended."""
        self._requests.cancel(key, origin)

    def known_refusal(self, tenant: str, traffic_class: str, plan: TenantPlan) -> errors.RequestError | None:
        """What the scheduler would say to such a request if its size is good; None if it has to be asked."""
        return self._known.find(tenant, traffic_class, plan, time.monotonic())

    def note_refusal(self, kind: RefusalKind) -> None:
        """Counts a request that was never submitted. The scheduler is told once in TELL_S."""
        self._refusals.note(kind)
        if self._telling is None:
            self._telling = asyncio.get_running_loop().call_later(TELL_S, self._tell_refusals)

    def _tell_refusals(self) -> None:
        self._telling = None
        # Without a scheduler they wait for the next one.
        if self.up and (counts := self._refusals.take()):
            self._send(pb.GatewayMessage(refusals=to_refusal_counts(counts)))

    def _guarded(self) -> tuple[tuple[str, str], ...]:
        """Whether callers are asked for keys, as metadata."""
        return () if self._directory is None else (KEPT,)

    async def _attach(self) -> bool:
        """One life of the stream. Returns whether it ever was up."""
        self._outgoing = Outgoing()
        hello = pb.GatewayHello(gateway_id=self._gateway_id, hands_over=self._hands_over, takes_cancels_done=True)
        self._send(pb.GatewayMessage(hello=hello))
        if self._directory is not None:
            self.tell_tenants(self._directory)
        await self._dialer.connected()
        call = scheduler_pb2_grpc.SchedulerStub(self._dialer.channel).Attach()
        reader = asyncio.create_task(self._read(call))
        writer = asyncio.create_task(self._write(call, self._outgoing))
        teller = asyncio.create_task(self._tell_running())
        self._left = asyncio.Event()
        leaver = asyncio.create_task(self._await_left())
        was_up, reason = False, ""
        try:
            await asyncio.wait({reader, writer, leaver}, return_when=asyncio.FIRST_COMPLETED)
            # Half a link is none: when writing fails, nothing more is heard either. Of several ends, the reader's says
            # why.
            reason = next(task for task in (reader, writer, leaver) if task.done()).result()
        finally:
            was_up = self.up
            reader.cancel()
            writer.cancel()
            teller.cancel()
            leaver.cancel()
            # Without this the call outlives its scope; grpc does not end it when it is dropped.
            call.cancel()
            if was_up and reason:
                log.warning("scheduler_lost", address=self._address, reason=reason, requests=len(self._requests))
            self._lose()
            await asyncio.gather(reader, writer, teller, leaver, return_exceptions=True)
        return was_up

    async def _await_left(self) -> str:
        await self._left.wait()
        return "another scheduler has the workers"

    async def _tell_running(self) -> None:
        """Says again and again what this gateway takes for running."""
        while True:
            await asyncio.sleep(RECONCILE_S)
            self._requests.tell_unanswered()
            running = pb.RunningRequests(request_keys=self._requests.keys())
            self._send(pb.GatewayMessage(running=running))

    async def _read(self, call: grpc.aio.StreamStreamCall) -> str:
        """Takes what comes until the stream ends. Returns why it ended."""
        try:
            while (message := await call.read()) is not grpc.aio.EOF:
                if message.WhichOneof("message") == "goodbye":
                    self._requests.take_goodbye(message.goodbye)
                    return "the scheduler stops"
                self._receive(message)
            return f"{(await call.code()).name}: {await call.details()}"
        except grpc.aio.AioRpcError as error:
            return f"{error.code().name}: {error.details()}"
        except ProtocolError as error:
            return str(error)

    async def _write(self, call: grpc.aio.StreamStreamCall, outgoing: Outgoing) -> str:
        """Sends what is put there until that fails. Returns why it failed."""
        while True:
            for message in await outgoing.take():
                try:
                    await call.write(message)
                except (grpc.aio.BaseError, grpc.aio.AioRpcError, asyncio.InvalidStateError) as error:
                    return f"cannot write: {type(error).__name__}: {error}"
                except Exception as error:
                    log.exception("write_failed", kind=message.WhichOneof("message"))
                    return f"cannot write: {type(error).__name__}"

    def _lose(self) -> None:
        changed, self.up, self.pools, self._complete = self.up, False, {}, False
        self.draining, self.term = False, 0
        self._known.forget(time.monotonic())
        self._requests.lose(lambda: self.lost("the connection to the scheduler was lost"))
        if changed:
            self._on_change()

    def _send(self, message: pb.GatewayMessage) -> None:
        self._outgoing.put(message)

    def lost(self, message: str) -> errors.SchedulerLostError:
        """What ends requests that it has lost, or cannot have."""
        return scheduler_lost(message, self._address)

    def _receive(self, message: pb.SchedulerMessage) -> None:
        which = message.WhichOneof("message")
        if which == "tokens":
            self._requests.take_tokens(message.tokens)
        elif which == "accepted":
            self._requests.take_accepted(message.accepted)
        elif which == "refused":
            self.draining = self.draining or message.refused.failure.reason == errors.DrainingError.reason
            self._requests.take_refused(message.refused)
        elif which == "cancel_done":
            self._requests.take_cancel_done(message.cancel_done)
        elif which == "cancels_done":
            for done in message.cancels_done.done:
                self._requests.take_cancel_done(done)
        elif which == "unknown":
            self._requests.take_unknown(message.unknown)
        elif which == "costs":
            self._requests.take_costs(message.costs.sequences)
        elif which == "pools":
            self.pools, self._complete = to_pools(message.pools), message.pools.complete
            self._on_change()
        elif which == "standing":
            self.term = message.standing.term
            self._on_change()
        elif which == "hello":
            epoch, before = message.hello.epoch, self._epoch
            if epoch < before:
                # One stream at a time goes to it, so nothing older is mixed in; and its clock may have been put back.
                log.warning("scheduler_clock_behind", address=self._address, epoch=epoch, former_epoch=before)
            self._epoch = epoch
            self._outgoing.takes_cancels = message.hello.takes_cancels
            self.up = True
            self._tell_refusals()
            log.info("scheduler_attached", address=self._address, epoch=self._epoch)
            self._on_change()
