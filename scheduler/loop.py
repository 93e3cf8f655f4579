"""The one task that runs the core: takes events from an inbox, gives actions to the peers' outboxes.

Knows the clock and the log; decides nothing.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial

import structlog

from tercet.errors import QueueFullError, SloUnreachableError, SwitchedOffError
from tercet.refusal_lines import RefusalLines
from tercet.tracing.tracer import Tracer

from .actions import (
    REQUEST_REFUSED,
    Action,
    CostsSoFar,
    DropWorker,
    GatewayMessage,
    Log,
    ToGateway,
    TokenBatch,
    Unknown,
    WorkerCommand,
)
from .class_view import ClassesView
from .core import Core
from .events import (
    CancelReason,
    CancelReceived,
    DrainExpired,
    DrainStarted,
    Event,
    GatewayLost,
    TimePassed,
    WorkerLost,
)
from .fleet_view import FleetView
from .loop_counts import LoopCounts
from .outbox import Outbox
from .plan_log.recorder import Recorder
from .traces import Traces
from .traffic_view import TrafficView

# Commands that a worker has not read: a minute's at 10 ms a step.
MAX_UNREAD_COMMANDS = 8192
# What a gateway has not read, about. Pings wait for a peer for 40 s, in which eight workers with 64 sequences each make
# two million tokens at 10 ms a step: 40 MiB.
MAX_UNREAD_BYTES = 128 * 1024 * 1024
# Of a message, its end of a sequence, and its token: the numbers themselves are those of the sequence.
_MESSAGE_BYTES, _END_BYTES, _TOKEN_BYTES = 256, 512, 16
# A release is answered within a step; a worker that does not answer must not keep us from stopping.
RELEASE_SECONDS = 2.0
# Gateways that are told goodbye leave at once; so does a worker that is told to release what they had.
PART_SECONDS = 1.0
# Why requests are refused that would be served if there were fewer others.
_FOR_ROOM = frozenset({QueueFullError.reason, SloUnreachableError.reason})


class Loop:
    """Numbers the streams, serialises their events, and lets the core plan once per batch of events."""

    def __init__(
        self, core: Core, clock: Callable[[], float], recorder: Recorder | None = None, traces: Traces | None = None
    ) -> None:
        # Which of the requests are traced; nothing is decided by it.
        self.traces = Traces(Tracer()) if traces is None else traces
        self._core = core
        self._clock = clock
        self._started_at = clock()
        self._recorder = recorder
        self._log = structlog.get_logger()
        self._refusals = RefusalLines(self._log, "requests_refused")
        self._refused_for_room: Counter[str] = Counter()
        # To be looked at only.
        self.counts = LoopCounts()
        self._inbox: list[Event] = []
        # Events so far, and those of them that have been handled.
        self._posted = self._handled = 0
        # Set when the events that are being handled have been; another one for those after.
        self._round_over = asyncio.Event()
        self._wake = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._gateways: dict[int, Outbox[GatewayMessage]] = {}
        self._workers: dict[int, Outbox[WorkerCommand]] = {}
        self._last_stream = 0

    def post(self, event: Event) -> None:
        """Hands over an event; it is handled in order of posting."""
        self._inbox.append(event)
        self._posted += 1
        self._wake.set()

    def open_gateway(self) -> tuple[int, Outbox[GatewayMessage]]:
        """A number and an outbox for a gateway's stream. Post GatewayAttached next, and `close_gateway` at the end."""
        self._last_stream += 1
        outbox: Outbox[GatewayMessage] = Outbox(MAX_UNREAD_BYTES, _bytes_of)
        self._gateways[self._last_stream] = outbox
        return self._last_stream, outbox

    def close_gateway(self, gateway: int) -> None:
        self._gateways.pop(gateway).close()
        self.traces.gateway_lost(gateway)
        self.post(GatewayLost(gateway))

    def open_worker(self) -> tuple[int, Outbox[WorkerCommand]]:
        """A number and an outbox for a worker's stream. Post WorkerAttached next, and `close_worker` at the end."""
        self._last_stream += 1
        outbox: Outbox[WorkerCommand] = Outbox(MAX_UNREAD_COMMANDS)
        self._workers[self._last_stream] = outbox
        return self._last_stream, outbox

    def close_worker(self, link: int) -> None:
        self._workers.pop(link).close()
        self.post(WorkerLost(link))

    def view(self) -> FleetView:
        """The mesh now."""
        return self._core.view()

    def traffic(self, max_tenants: int) -> TrafficView:
        """What classes and tenants ask for and get; of at most so many tenants."""
        return self._core.traffic(self._clock(), max_tenants)

    def class_view(self) -> ClassesView:
        """The same of classes alone, whatever waits."""
        return self._core.class_view(self._clock())

    @property
    def num_gateways(self) -> int:
        """Gateways that are connected."""
        return len(self._gateways)

    @property
    def keeps_tenants(self) -> bool:
        """Whether a gateway ever named tenants."""
        return self._core.keeps_tenants

    def count_refused(self, tenant: str | None, traffic_class: str, reason: str, count: int) -> None:
        """Counts requests that a gateway refused by itself; `tenant` is None for those of nobody it knows."""
        self._core.count_refused(tenant, traffic_class, reason, count)

    async def reconcile(self, gateway: int, keys: Iterable[int]) -> None:
        """Compares what a gateway takes for running with what is. Nothing that the gateway says next may be posted
        before this returns."""
        # What it said before has to have taken effect: then a difference is one, whatever is on its way.
        until = self._posted
        while self._handled < until:
            await self._round_over.wait()
        orphans, unknown = self._core.compare(gateway, set(keys))
        self.counts.orphans += len(orphans)
        for key in orphans:
            self._log.error("orphan_found", gateway=gateway, request_key=key)
            self.post(CancelReceived(gateway, key, CancelReason.ORPHAN))
        outbox = self._gateways.get(gateway)
        if outbox is None:
            return
        if unknown:
            outbox.put(Unknown(tuple(unknown)))
        costs = self._core.costs_so_far(gateway)
        if any(account.gpu_us for _, account in costs.accounts):
            # A scheduler that is lost cannot say it any more.
            outbox.put(costs)

    @property
    def num_handled(self) -> int:
        """Events that have been handled."""
        return self._handled

    @property
    def num_unhandled(self) -> int:
        """Those that have not."""
        return self._posted - self._handled

    @property
    def refused_for_room(self) -> Mapping[str, int]:
        """Requests refused since the start for want of room, by their class."""
        return self._refused_for_room

    @property
    def uptime_s(self) -> float:
        """Seconds since the start."""
        return self._clock() - self._started_at

    def dump_plan_log(self, written_at: float) -> Iterator[bytes]:
        """The plan log's file in parts, as it is now; `written_at` is now in seconds since 1970.

        Raises SwitchedOffError, EngineFaultError.
        """
        if self._recorder is None:
            raise SwitchedOffError(
                "the plan log is off; scheduler.plan_log_rounds turns it on",
                metadata={"setting": "scheduler.plan_log_rounds"},
            )
        return self._recorder.dump(self._clock(), written_at)

    async def run(self) -> None:
        """For ever. An exception of the core ends it: state that a bug has touched is not to be served from."""
        timer: asyncio.TimerHandle | None = None
        while True:
            await self._wake.wait()
            self._wake.clear()
            events, self._inbox = self._inbox, []
            self._handled += len(events)
            now = self._clock()
            actions = [action for event in events for action in self._core.apply(event, now)]
            actions += self._core.plan(now)
            self._perform(actions)
            if self._recorder is not None:
                self._recorder.note(now, events, actions)
            self.counts.round_s.add(self._clock() - now)
            if timer is not None:
                timer.cancel()
                timer = None
            wake_at = self._core.wake_at()
            if wake_at is not None:
                delay = max(0.0, wake_at - self._clock())
                timer = asyncio.get_running_loop().call_later(delay, self.post, TimePassed())
            self._note_idle()
            self._round_over.set()
            self._round_over = asyncio.Event()

    async def drain(self, grace_s: float) -> None:
        """Takes no new requests, lets running ones end for `grace_s` seconds, then ends them."""
        self.post(DrainStarted())
        if await self._wait_idle(grace_s):
            return
        self.post(DrainExpired())
        await self._wait_idle(RELEASE_SECONDS)

    def close(self) -> None:
        """Ends all gateway streams once they have read what is waiting for them."""
        for outbox in self._gateways.values():
            outbox.close()

    async def part(self) -> None:
        """Ends them while requests run. Returns when nothing of these is left on the workers, or that takes long."""
        self.close()
        await self._wait_idle(PART_SECONDS)

    def costs_so_far(self, gateway: int) -> CostsSoFar:
        """As of Core."""
        return self._core.costs_so_far(gateway)

    async def _wait_idle(self, timeout_s: float) -> bool:
        try:
            # Let what was posted be handled first.
            await asyncio.sleep(0)
            await asyncio.wait_for(self._idle.wait(), timeout_s)
        except asyncio.TimeoutError:
            return False
        return True

    def _perform(self, actions: list[Action]) -> None:
        if self.traces:
            self.traces.look(actions)
        # A worker that waits costs more than a gateway that waits, and a line in the log can wait for both. Streams are
        # independent of each other, so only the order within each matters, and sorting keeps that.
        for action in sorted(actions, key=_urgency) if len(actions) > 1 else actions:
            if isinstance(action, ToGateway):
                gateway = self._gateways.get(action.gateway)
                if gateway is not None and not gateway.put(action.message):
                    self._log.warning("gateway_too_slow", gateway=action.gateway, bytes=MAX_UNREAD_BYTES)
            elif isinstance(action, Log):
                if action.event == REQUEST_REFUSED and action.fields["reason"] in _FOR_ROOM:
                    self._refused_for_room[action.fields["traffic_class"]] += 1
                self.counts.facts[action.event] += 1
                # In the loop's next round, behind the writers that the messages before it have woken.
                tell = self._refusals.tell if action.event == REQUEST_REFUSED else self._log.info
                asyncio.get_running_loop().call_soon(partial(tell, action.event, **action.fields))
            elif isinstance(action, DropWorker):
                if action.link in self._workers:
                    self._workers[action.link].close()
            else:
                self.counts.command(action.command)
                worker = self._workers.get(action.link)
                if worker is not None and not worker.put(action.command):
                    self._log.warning("worker_too_slow", link=action.link, commands=MAX_UNREAD_COMMANDS)

    def _note_idle(self) -> None:
        if not self._core.idle:
            self._idle.clear()
        elif not self._idle.is_set():
            self._idle.set()
            for problem in self._core.check():
                self.counts.audit_problems += 1
                self._log.error("books_do_not_balance", problem=problem)


def _bytes_of(message: GatewayMessage) -> int:
    """About, of what is kept for it alone."""
    if not isinstance(message, TokenBatch):
        return _MESSAGE_BYTES
    logprobs = sum(len(data) + _TOKEN_BYTES for _, data in message.logprobs)
    return _MESSAGE_BYTES + _TOKEN_BYTES * len(message.token_ids) + _END_BYTES * len(message.ends) + logprobs


def _urgency(action: Action) -> int:
    return 2 if isinstance(action, Log) else 1 if isinstance(action, ToGateway) else 0
