"""The scheduler's core and its workers, joined by streams that a story can break.

The core is the real one; a worker is the simulator's, which checks every block that it touches. Each command and each
event travels by itself, so each place where another one can come between is a state. Time stands still but for moves of
its own.
"""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, replace

from scheduler.actions import Action, DropWorker, Release, ReleaseCause, Rest, ToGateway, ToWorker
from scheduler.admission import AdmissionMode, QueueBounds
from scheduler.core import Core
from scheduler.core_settings import CoreSettings
from scheduler.events import (
    CancelReason,
    CancelReceived,
    DrainExpired,
    DrainStarted,
    EndReason,
    Event,
    GatewayAttached,
    GatewayLost,
    PauseReceived,
    SequenceStopped,
    Submission,
    Submitted,
    TimePassed,
    UnpauseReceived,
    WorkerAttached,
    WorkerDraining,
    WorkerInfo,
    WorkerLost,
)
from scheduler.lifecycle import State
from scheduler.policy import Policy
from scheduler.simulator.cost import StepCost
from scheduler.simulator.gateway import Call, VirtualGateway

from .explorer import Move
from .process import Process, Wire

WORKER_GRACE_S = 5.0
# At the clock, until the scheduler must have given up a worker that hangs.
MAX_LOOKS = 200
BUDGETS = (
    "cancels",
    "stops",
    "stalls",
    "cuts",
    "kills",
    "hangs",
    "drains",
    "gateways_lost",
    "alarms",
    "ends",
    "echoes",
)


@dataclass(frozen=True, slots=True)
class Story:
    """What there is and what may happen: each of the following at any moment, so many times in all."""

    workers: tuple[WorkerInfo, ...]
    submissions: tuple[Submission, ...]
    num_steps: int = 1
    cost: StepCost = StepCost(0.0)
    # All is submitted and goes its way, drawn with this seed, until somebody has been told to give way: only then it
    # may be this or that.
    crowded: int | None = None
    cancels: int = 0
    # Outputs of which the gateway has all that it wants.
    stops: int = 0
    # Readers that fall behind, and catch up in their own time.
    stalls: int = 0
    # Streams that break; each end learns of it in its own time.
    cuts: int = 0
    # Workers that die, and start again under a new epoch.
    kills: int = 0
    # Workers whose device hangs, and moves again in its own time; meanwhile the scheduler may give them up.
    hangs: int = 0
    # Workers that are told to stop.
    drains: int = 0
    # Gateways that go.
    gateways_lost: int = 0
    # Looks at the clock, each when something is due.
    alarms: int = 0
    # Schedulers that are told to stop, and then that their time is up.
    ends: int = 0
    # Messages that come twice: any of a worker's, and of the scheduler's those that may be said again.
    echoes: int = 0
    # Whether the last words of a broken stream may still be on their way to the core when it has been told.
    late: bool = False


class WorkerWorld:
    """See Story."""

    def __init__(self, story: Story) -> None:
        self.story = story
        # What may still happen, by the story's fields.
        self.left = Counter({name: getattr(story, name) for name in BUDGETS})
        self.now = 0.0
        addresses = tuple(f"host:{index + 1}" for index in range(len(story.workers)))
        self.core = Core(
            CoreSettings(
                addresses,
                Policy(story.num_steps, 0),
                QueueBounds(100, 10_000),
                WORKER_GRACE_S,
                admission_mode=AdmissionMode.OFF,
            )
        )
        self.gateway = VirtualGateway(1)
        # By address: the process, and the stream as the scheduler has it.
        self.processes: list[Process | None] = [None] * len(addresses)
        self.wires: list[Wire | None] = [None] * len(addresses)
        self.late: deque[Event] = deque()
        self._epochs = self._links = 0
        self._submitted = 0
        self._draining = False
        self._tell(GatewayAttached(1, "gateway-1"))
        for index in range(len(addresses)):
            self._start(index)
            while self._wire(index).up:
                self._up(index)
        if story.crowded is not None:
            self._open(random.Random(story.crowded))

    # What the explorer asks.

    def moves(self) -> Sequence[Move]:
        return [*self._due(), *self._possible()]

    def make(self, move: Move) -> None:
        name, *arguments = move
        getattr(self, f"_{name}")(*arguments)

    @property
    def at_rest(self) -> bool:
        return not self._due()

    def check(self) -> None:
        problems = self.core.check()
        assert not problems, problems
        for process in self.processes:
            if process is not None:
                process.check()
        if self.gateway.lost:
            states = {sequence.state for sequence in self.core._mesh.sequences.values()}
            assert states <= {State.CANCELLING}, "work goes on for a gateway that is gone"
        for call in self.gateway.calls.values():
            for index, output in enumerate(call.outputs):
                tokens, _ = self.text_alone(call, index)
                assert output.tokens == tokens[: len(output.tokens)], "another text than alone"

    def check_rest(self) -> None:
        """All is over and nothing is left, unless everybody waits for a worker that is gone."""
        for call in self.gateway.calls.values():
            self._judge(call)
        assert self.core.idle, "a request without an end"
        assert not any(self.core._mesh.gateways.values()), "a request is listed that has ended"
        for process, wire in zip(self.processes, self.wires, strict=True):
            if process is None or process.wire is None or wire is None:
                continue
            known = self.core._mesh.fleet.workers[wire.link]
            assert process.empty, "a worker has an orphan"
            assert process.counts.used == 0, "blocks are in use by nobody"
            assert known.ledger.available == process.info.num_blocks, "credits are missing"
            assert len(known.ledger) == 0, "an account is open"
            assert not known.sequences, "the scheduler has an orphan"
            assert not known.window, "a plan has no end"
            assert known.prefixes == process.keys, "another prefix cache than the worker's"
            if known.steps:
                assert known.ledger.counts == process.counts, "another count of blocks than the worker's"

    # What another kind of world replaces.

    def make_process(self, info: WorkerInfo) -> Process:
        """A worker that starts."""
        return Process(info, self.story.cost)

    def text_alone(self, call: Call, index: int) -> tuple[list[int], EndReason]:
        """What an output of a request would be if it were alone, and why it ends."""
        return call.expected(index)

    # What happens by itself.

    def _due(self) -> list[Move]:
        due: list[Move] = [("unpause", key) for key, call in self.gateway.calls.items() if call.paused_at is not None]
        for index, (process, wire) in enumerate(zip(self.processes, self.wires, strict=True)):
            hangs = process is not None and process.hangs
            if wire is None:
                # A draining worker is not dialled again for work, but it is dialled. Who hangs says no hello.
                due += [] if hangs else [("dial", index) if process is not None else ("start", index)]
            elif wire.broken:
                due.append(("hear_of_loss", index))
            else:
                due += [("up", index)] if wire.up else []
                due += [("down", index)] if wire.down else []
            if process is not None and hangs:
                due.append(("wake", index))
            elif process is not None:
                if process.at_boundary or process.in_step:
                    due.append(("step", index))
                if process.wire is not None and process.wire.broken:
                    due.append(("notice", index))
                elif process.draining and process.wire is not None and self._has_left(process, process.wire):
                    due.append(("exit", index))
        return due

    def _up(self, index: int) -> None:
        self._tell(self._wire(index).up.popleft())

    def _down(self, index: int) -> None:
        self._process(index).receive(self._wire(index).down.popleft())

    def _step(self, index: int) -> None:
        process = self._process(index)
        events = process.step()
        if process.wire is not None and not process.wire.broken:
            process.wire.up += events
        elif self.story.hangs and self.story.late:
            # As if whoever gave it up still heard it.
            self.late += events

    def _start(self, index: int) -> None:
        self._epochs += 1
        info = self.story.workers[index]
        info = replace(info, worker_id=f"worker-{self._epochs}", epoch=self._epochs)
        self.processes[index] = self.make_process(info)
        self._dial(index)

    def _dial(self, index: int) -> None:
        process = self._process(index)
        self._links += 1
        wire = self.wires[index] = Wire(self._links)
        # A stream that the worker still believes in ends here, too.
        first = process.attach(wire)
        wire.up += [WorkerAttached(wire.link, f"host:{index + 1}", process.info), *first]
        if process.draining:
            wire.up.append(WorkerDraining(wire.link))

    def _hear_of_loss(self, index: int) -> None:
        """The scheduler's end."""
        wire, self.wires[index] = self._wire(index), None
        self._tell(WorkerLost(wire.link))

    def _notice(self, index: int) -> None:
        """The worker's end."""
        self._process(index).forget()

    def _wake(self, index: int) -> None:
        self._process(index).hangs = False

    def _exit(self, index: int) -> None:
        self._die(index)

    # What is asked, and what breaks.

    def _possible(self) -> list[Move]:
        left, possible = self.left, list[Move]()
        if self._submitted < len(self.story.submissions) and not self.gateway.lost:
            possible.append(("submit",))
        live = [key for key, call in self.gateway.calls.items() if not call.over and not self.gateway.lost]
        if left["cancels"]:
            possible += [("cancel", key) for key in live]
        if left["stalls"]:
            possible += [("pause", key) for key in live if self.gateway.calls[key].paused_at is None]
        if left["stops"]:
            possible += [
                ("stop", key, index)
                for key in live
                if self.gateway.calls[key].accepted
                for index, output in enumerate(self.gateway.calls[key].outputs)
                if not output.ends and not output.stopped
            ]
        for index, (process, wire) in enumerate(zip(self.processes, self.wires, strict=True)):
            whole = wire is not None and not wire.broken
            if left["cuts"] and whole:
                possible.append(("cut", index))
            if left["echoes"] and wire is not None and whole:
                if wire.up and not isinstance(wire.up[0], WorkerAttached):
                    possible.append(("up_twice", index))
                if wire.down and isinstance(wire.down[0], Release | Rest):
                    possible.append(("down_twice", index))
            if left["kills"] and process is not None:
                possible.append(("kill", index))
            if left["hangs"] and process is not None and not process.hangs:
                possible.append(("hang", index))
            if process is not None and process.hangs and whole and self._owes(index):
                possible.append(("give_up", index))
            if left["drains"] and process is not None and not process.draining:
                possible.append(("drain", index))
        if left["gateways_lost"] and not self.gateway.lost:
            possible.append(("lose_gateway",))
        if left["alarms"] and self.core.wake_at() is not None:
            possible.append(("alarm",))
        if left["ends"]:
            possible.append(("end",))
        if self.late:
            possible.append(("hear_late",))
        return possible

    def _submit(self) -> None:
        submission = self.story.submissions[self._submitted]
        self._submitted += 1
        self.gateway.calls[submission.request_key] = Call(submission)
        self._tell(Submitted(1, submission))

    def _cancel(self, key: int) -> None:
        self._spend("cancels")
        self.gateway.calls[key].cancels_sent += 1
        self._tell(CancelReceived(1, key, CancelReason.CLIENT))

    def _pause(self, key: int) -> None:
        self._spend("stalls")
        self.gateway.calls[key].paused_at = 0.0
        self._tell(PauseReceived(1, key))

    def _unpause(self, key: int) -> None:
        self.gateway.calls[key].paused_at = None
        self._tell(UnpauseReceived(1, key))

    def _stop(self, key: int, index: int) -> None:
        self._spend("stops")
        call = self.gateway.calls[key]
        call.outputs[index].stopped = True
        self._tell(SequenceStopped(1, call.sequence_ids[index], CancelReason.STOP_STRING))

    def _cut(self, index: int) -> None:
        self._spend("cuts")
        self._break(index)

    def _up_twice(self, index: int) -> None:
        """The core takes no notice of the second one, or ends the stream for it."""
        self._spend("echoes")
        wire = self._wire(index)
        event = wire.up.popleft()
        self._tell(event)
        if not wire.broken:
            self._tell(event)

    def _down_twice(self, index: int) -> None:
        self._spend("echoes")
        self._wire(index).down.appendleft(self._wire(index).down[0])
        self._down(index)
        self._down(index)

    def _kill(self, index: int) -> None:
        self._spend("kills")
        self._die(index)

    def _hang(self, index: int) -> None:
        self._spend("hangs")
        self._process(index).hangs = True

    def _give_up(self, index: int) -> None:
        """So much time passes, and nothing else happens, that the scheduler does so; all that is silent meanwhile goes
        the same way."""
        wire = self._wire(index)
        for _ in range(MAX_LOOKS):
            moment = self.core.wake_at()
            if wire.broken or moment is None:
                break
            self.now = max(self.now, moment)
            self._tell(TimePassed())
        assert wire.broken, "a worker that hangs is never given up"

    def _drain(self, index: int) -> None:
        self._spend("drains")
        process = self._process(index)
        process.draining = True
        if process.wire is not None and not process.wire.broken:
            process.wire.up.append(WorkerDraining(process.wire.link))

    def _lose_gateway(self) -> None:
        self._spend("gateways_lost")
        self.gateway.lost = True
        self._tell(GatewayLost(1))

    def _alarm(self) -> None:
        self._spend("alarms")
        moment = self.core.wake_at()
        assert moment is not None
        self.now = max(self.now, moment)
        self._tell(TimePassed())

    def _end(self) -> None:
        self._spend("ends")
        self._tell(DrainExpired() if self._draining else DrainStarted())
        self._draining = True

    def _hear_late(self) -> None:
        self._tell(self.late.popleft())

    # The machinery.

    def _process(self, index: int) -> Process:
        process = self.processes[index]
        assert process is not None
        return process

    def _wire(self, index: int) -> Wire:
        wire = self.wires[index]
        assert wire is not None
        return wire

    def _spend(self, budget: str) -> None:
        self.left[budget] -= 1

    def _die(self, index: int) -> None:
        self.processes[index] = None
        self._break(index)

    def _break(self, index: int) -> None:
        wire = self.wires[index]
        if wire is None or wire.broken:
            return
        if self.story.late:
            self.late += [event for event in wire.up if not isinstance(event, WorkerAttached)]
        wire.broken = True
        wire.down.clear()
        wire.up.clear()

    def _open(self, rng: random.Random) -> None:
        for _ in self.story.submissions:
            self._submit()
        cause = ReleaseCause.SWAP if self.story.workers[0].num_swap_blocks else ReleaseCause.PREEMPT
        while not any(isinstance(each, Release) and each.cause is cause for each in self._wire(0).down):
            self.make(rng.choice(self._due()))

    def _owes(self, index: int) -> bool:
        """Whether the scheduler waits for words of a worker."""
        worker = self.core._mesh.fleet.workers.get(self._wire(index).link)
        return worker is not None and worker.busy

    def _has_left(self, process: Process, wire: Wire) -> bool:
        """Whether a draining worker has nothing left to do or to say."""
        return process.empty and not (wire.up or wire.down or process.in_step)

    def _tell(self, event: Event) -> None:
        actions = self.core.apply(event, self.now)
        for action in actions + self.core.plan(self.now):
            self._act(action)

    def _act(self, action: Action) -> None:
        if isinstance(action, ToGateway):
            if not self.gateway.lost:
                self.gateway.receive(action.message, self.now)
        elif isinstance(action, ToWorker):
            for wire in self.wires:
                if wire is not None and wire.link == action.link and not wire.broken:
                    wire.down.append(action.command)
        elif isinstance(action, DropWorker):
            # It has not broken the contract.
            hung = self.story.hangs > self.left["hangs"] and "said nothing" in action.why
            assert hung or self.story.echoes > self.left["echoes"], f"a worker is dropped: {action.why}"
            self._break(next(index for index, wire in enumerate(self.wires) if wire and wire.link == action.link))

    def _judge(self, call: Call) -> None:
        if self.gateway.lost:
            return
        assert call.over, "a request without an end"
        assert len(call.cancels_done) == call.cancels_sent, "a cancel without an answer"
        assert call.refused is None or call.refused in self._refusals(), call.refused
        for index, output in enumerate(call.outputs):
            if not output.ends:
                assert call.cancelled or call.refused, "an output without an end"
                continue
            (end,) = output.ends
            tokens, reason = self.text_alone(call, index)
            if end.reason in (EndReason.STOP, EndReason.LENGTH):
                assert (output.tokens, end.reason) == (tokens, reason), "an end before the text is complete"
            elif end.failure is None:
                assert output.stopped, "ended without a reason"
            else:
                assert end.failure.reason in self._failures(call), end.failure

    def _refusals(self) -> set[str]:
        refusals = {"DRAINING"} if self._draining else set()
        story = self.story
        return refusals | ({"NO_WORKER"} if story.cuts or story.kills or story.hangs or story.drains else set())

    def _failures(self, call: Call) -> set[str]:
        failures = {"DRAINING"} if self._draining else set()
        if call.submission.deadline_s is not None:
            failures.add("DEADLINE_PASSED")
        # Time may have passed while no worker was there.
        story = self.story
        waits = story.alarms or (story.hangs and story.hangs + story.cuts + story.kills > 1)
        return failures | ({"NO_WORKER", "WORKER_LOST"} if waits else set())
