"""The virtual mesh with real workers: the real core, real executors, real codecs, and a clock that nobody waits for."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

from scheduler.actions import (
    Action,
    Log,
    NewSequence,
    Plan,
    Release,
    ReleaseCause,
    Rest,
    Resume,
    ToWorker,
    WorkerCommand,
)
from scheduler.events import (
    Event,
    PlanEnded,
    PrefillProgress,
    SequenceReleased,
    SequenceRests,
    StepReported,
    WorkerAttached,
)
from scheduler.simulator.mesh import VirtualMesh
from tests.mesh.real_worker import Device, RealWorker, Setup


class RealMesh(VirtualMesh):
    """Every event is in `timeline`, what happened how often in `seen`."""

    workers: dict[int, RealWorker]

    def __init__(self, setups: Sequence[Setup], **options: Any) -> None:
        self.timeline: list[str] = []
        self.seen: Counter[str] = Counter()
        # By link, those that have rested there.
        self._rest: defaultdict[int, set[int]] = defaultdict(set)
        self.devices = [Device(setup, self.seen) for setup in setups]
        super().__init__([device.info for device in self.devices], **options)

    # Moves.

    def attach_worker(self, index: int = 0) -> RealWorker:
        device = self.devices[index]
        self._links += 1
        worker = RealWorker(self._links, device, index)
        self.workers[worker.link] = worker
        self.post(WorkerAttached(worker.link, f"host:{index + 1}", worker.info))
        # The first keys follow hello.
        self._boundary(worker)
        return worker

    def worker_at(self, index: int) -> RealWorker | None:
        """The live stream to the worker at that address."""
        live = (worker for worker in self.workers.values() if worker.index == index)
        return next(live, None)

    def reconnect(self, index: int, steps_alone: int, pause: float, *, detach: bool) -> None:
        """The stream breaks; the executor goes on for some steps; another stream comes after `pause` seconds."""
        worker = self.worker_at(index)
        if worker is None:
            return
        self.seen["reconnect"] += worker.device.executor.num_sequences > 0
        self.lose_worker(worker)
        worker.device.run_on(steps_alone)
        if detach:
            worker.detach()
        self.at(self.now + pause, lambda: self._back(index))

    def crash(self, index: int, pause: float) -> None:
        """The process dies; another one starts after `pause` seconds."""
        worker = self.worker_at(index)
        if worker is None:
            return
        self.seen["crash"] += worker.device.executor.num_sequences > 0
        self.lose_worker(worker)
        self.devices[index] = Device(worker.device.setup, self.seen)
        self.at(self.now + pause, lambda: self._back(index))

    def drain(self, index: int, grace_s: float, pause: float) -> None:
        """The process is told to stop, does so after `grace_s` seconds at the latest, and another one starts later."""
        worker = self.worker_at(index)
        if worker is None or worker.draining:
            return
        worker.draining = True
        self.seen["drain"] += not worker.empty
        self.drain_worker(worker, grace_s)
        self.devices[index] = Device(worker.device.setup, self.seen)
        self.at(self.now + grace_s + pause, lambda: self._back(index))

    def _back(self, index: int) -> None:
        if self.worker_at(index) is None:
            self.attach_worker(index)

    # What is written down and counted.

    def post(self, event: Event) -> None:
        self.timeline.append(f"{self.now:.4f} {event}")
        self._count_event(event)
        super().post(event)

    def _act(self, action: Action) -> None:
        if isinstance(action, Log):
            self.seen["made room"] += action.event == "preempted" and action.fields["made_room"]
            self.seen["rested and gave way"] += action.event == "preempted" and action.fields["rested"]
        else:
            self.timeline.append(f"{self.now:.4f}     {action}")
        if isinstance(action, ToWorker):
            self._count_command(action.link, action.command)
        super()._act(action)

    def _count_event(self, event: Event) -> None:
        if isinstance(event, PlanEnded):
            self.seen["revocation"] += event.revoked
            self.seen["revocation in mid-plan"] += event.revoked and event.steps_run > 0
        elif isinstance(event, StepReported):
            for progress in event.prefills:
                if progress.num_cached:
                    self.seen["prefix hit"] += 1
                    self._check_hit(event.link, progress)
        elif isinstance(event, SequenceRests):
            self._rest[event.link].add(event.sequence_id)
        elif isinstance(event, SequenceReleased):
            self.seen["swap"] += event.swapped

    def _count_command(self, link: int, command: WorkerCommand) -> None:
        if isinstance(command, Release):
            self.seen[f"release to {command.cause.name.lower()}"] += 1
            if link in self.workers and self.workers[link].draining and command.cause is ReleaseCause.PREEMPT:
                self.seen["moved off a draining worker"] += 1
        elif isinstance(command, Plan):
            self.seen["rested and went on"] += not self._rest[link].isdisjoint(command.join)
        elif isinstance(command, Resume):
            self.seen["resume"] += 1
        elif isinstance(command, Rest):
            self.seen["rest"] += 1
        elif isinstance(command, NewSequence):
            if link in self.workers:
                placed = self.core._mesh.fleet.workers[link].sequences[command.sequence_id]
                self.workers[link].device.placed.append(placed)
            self.seen["forks"] += len(command.forks) > 0
            self.seen["prefill in chunks"] += len(command.token_ids) > self.infos[0].max_num_batched_tokens

    def _check_hit(self, link: int, progress: PrefillProgress) -> None:
        """What was found of a prompt has been sent there before, under the same salt."""
        sequence = self.core._mesh.fleet.workers[link].sequences.get(progress.sequence_id)
        if sequence is None:
            return
        # Not beyond the prompt: the cache also has tokens that came after a cancel, of which the core knows nothing.
        length = min(progress.num_cached, sequence.prompt_length)
        sent = [
            other
            for other in self.workers[link].device.placed
            if other.request.submission.prefix_salt == sequence.request.submission.prefix_salt
            and other.token_ids[:length] == sequence.token_ids[:length]
        ]
        assert len(sent) > 1, "a prefix was found that nobody with this salt has sent"
