"""What a capacity run counts: the gateway of all simulated clients, and what passes between scheduler and workers."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from tercet.errors import RequestError

from ..actions import (
    Accepted,
    CancelDone,
    GatewayMessage,
    Plan,
    PoolUpdate,
    Refused,
    Release,
    ReleaseCause,
    TokenBatch,
    WorkerCommand,
)
from ..events import Event, PlanEnded, SequenceReleased, StepReported, Submission
from .flow_tally import FlowTally
from .gateway import VirtualGateway
from .spread import Spread


@dataclass(slots=True, eq=False)
class Ask:
    """A request on its way."""

    submission: Submission
    flow: FlowTally
    arrived_at: float
    # Outputs that have not ended.
    left: int
    sequence_ids: tuple[int, ...] = ()
    queue_s: float = 0.0
    first_token_s: float | None = None
    # Of its prompt and of the outputs that have ended.
    tokens: int = 0
    # The longest mean time between two tokens of an output that has ended.
    gap_s: float = 0.0
    # Why an output failed.
    failure: str = ""


@dataclass(slots=True, eq=False)
class _Stream:
    """One output: when its first and its last token came, and how many."""

    ask: Ask
    first: float = -1.0
    last: float = -1.0
    count: int = 0


@dataclass(slots=True)
class Tally:
    """Counts and spreads of all; times in seconds."""

    flows: dict[str, FlowTally]
    # What the first that was refused or failed for each reason was told.
    problems: dict[str, str] = field(default_factory=dict)
    tokens: int = 0
    first_token: Spread = field(default_factory=Spread)
    gap: Spread = field(default_factory=Spread)
    queue: Spread = field(default_factory=Spread)
    total: Spread = field(default_factory=Spread)
    plans: int = 0
    plan_steps: int = 0
    steps: int = 0
    revocations: int = 0
    preemptions: int = 0
    swaps: int = 0

    @property
    def completed(self) -> int:
        return sum(flow.completed for flow in self.flows.values())

    @property
    def cancelled(self) -> int:
        return sum(flow.cancelled for flow in self.flows.values())

    @property
    def failed(self) -> Counter[str]:
        """By reason."""
        return sum((flow.failed for flow in self.flows.values()), Counter())

    @property
    def refused(self) -> Counter[str]:
        """By reason."""
        return sum((flow.refused for flow in self.flows.values()), Counter())

    @property
    def over(self) -> int:
        """Requests that have had their terminal message."""
        return sum(flow.over for flow in self.flows.values())

    def sent(self, command: WorkerCommand) -> None:
        """A command is on its way to a worker."""
        if isinstance(command, Plan):
            self.plans += 1
            self.plan_steps += command.num_steps
        elif isinstance(command, Release) and command.cause is not ReleaseCause.CANCEL:
            self.preemptions += len(command.sequence_ids)

    def reported(self, event: Event) -> None:
        """A worker said something."""
        if isinstance(event, StepReported):
            self.steps += 1
        elif isinstance(event, PlanEnded):
            self.revocations += event.revoked
        elif isinstance(event, SequenceReleased):
            self.swaps += event.swapped


class CountingGateway(VirtualGateway):
    """All clients at once. Each request must get exactly one terminal message; raises AssertionError if not."""

    def __init__(self, number: int, tally: Tally) -> None:
        super().__init__(number)
        self.tally = tally
        self.asks: dict[int, Ask] = {}
        # Whether it is the time that counts: a quarter of the requests has arrived, and more are to come.
        self.under_load = False
        # When the last request was over.
        self.last_at = 0.0
        self._over: list[Submission] = []
        self._streams: dict[int, _Stream] = {}

    def open(self, submission: Submission, flow: str, now: float) -> None:
        """A request is submitted."""
        tally = self.tally.flows[flow]
        tally.offered += 1
        self.asks[submission.request_key] = Ask(
            submission, tally, now, submission.n, tokens=len(submission.prompt_token_ids)
        )

    def take_over(self) -> list[Submission]:
        """Requests that were over since the last call."""
        over, self._over = self._over, []
        return over

    def receive(self, message: GatewayMessage, now: float) -> None:
        if isinstance(message, TokenBatch):
            self._take(message, now)
        elif isinstance(message, Accepted):
            ask = self.asks[message.request_key]
            ask.flow.accepted += 1
            ask.sequence_ids = message.sequence_ids
            self._streams.update((sequence_id, _Stream(ask)) for sequence_id in message.sequence_ids)
        elif isinstance(message, Refused):
            self._refuse(self.asks[message.request_key], message.failure)
            self._close(message.request_key, now)
        elif isinstance(message, CancelDone):
            if message.found:
                self.asks[message.request_key].flow.cancelled += 1
                self._close(message.request_key, now)
        else:
            assert isinstance(message, PoolUpdate)

    def _take(self, batch: TokenBatch, now: float) -> None:
        streams, tally = self._streams, self.tally
        tally.tokens += len(batch.token_ids)
        # Those of one step mostly have had their last tokens in one step, too.
        gaps: dict[float, int] = {}
        for sequence_id in batch.sequence_ids:
            stream = streams[sequence_id]
            last = stream.last
            stream.last = now
            stream.count += 1
            if last >= 0.0:
                gaps[last] = gaps.get(last, 0) + 1
                continue
            stream.first = now
            if stream.ask.first_token_s is None:
                self._start(stream.ask, now)
        for last, times in gaps.items():
            tally.gap.add(now - last, times)
        for end in batch.ends:
            stream = streams.pop(end.sequence_id)
            ask = stream.ask
            ask.left -= 1
            ask.tokens += stream.count
            ask.queue_s = max(ask.queue_s, end.account.queue_us * 1e-6)
            if stream.count > 1:
                ask.gap_s = max(ask.gap_s, (stream.last - stream.first) / (stream.count - 1))
            if end.failure is not None:
                ask.failure = end.failure.reason
                tally.problems.setdefault(end.failure.reason, end.failure.message)
            if not ask.left:
                self._finish(ask, now)

    def _refuse(self, ask: Ask, failure: RequestError) -> None:
        self.tally.problems.setdefault(failure.reason, failure.message)
        ask.flow.refuse(failure)

    def _start(self, ask: Ask, now: float) -> None:
        waited = ask.first_token_s = now - ask.arrived_at
        self.tally.first_token.add(waited)
        ask.flow.first_token.add(waited)

    def _finish(self, ask: Ask, now: float) -> None:
        """All outputs have ended. One that failed makes the request a failed one."""
        flow = ask.flow
        if ask.failure:
            flow.failed[ask.failure] += 1
        else:
            assert ask.first_token_s is not None, "done without a token"
            flow.complete(ask.tokens, ask.first_token_s, ask.gap_s, under_load=self.under_load)
            self.tally.queue.add(ask.queue_s)
            self.tally.total.add(now - ask.arrived_at)
        self._close(ask.submission.request_key, now)

    def _close(self, key: int, now: float) -> None:
        ask = self.asks.pop(key)
        self.last_at = now
        for sequence_id in ask.sequence_ids:
            self._streams.pop(sequence_id, None)
        self._over.append(ask.submission)
