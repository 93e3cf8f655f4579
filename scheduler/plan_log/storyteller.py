"""What a plan log says of some requests: it is run again, and they are watched."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from collections.abc import Sequence as SequenceOf
from datetime import datetime, timezone

from tercet.errors import RequestError
from tercet.explain.story import Cancelled, Cause, Served, Story

from ..actions import Accepted, Action, Log, NewSequence, Plan, Refused, ToGateway, ToWorker
from ..events import PlanEnded, SequenceReleased, StepReported, Submission, Submitted
from ..sequence import Request, Sequence
from ..state import MeshState
from .output_watch import OutputWatch
from .plan_file import PlanFile
from .replay import Played, replay
from .step_watch import StepWatch

# Requests that are watched: of a prefix that fits more, these are enough to say so.
MAX_REQUESTS = 100


def tell(file: PlanFile, prefix: str) -> list[Story]:
    """The requests whose ids begin with `prefix`, in the order in which they came, the first MAX_REQUESTS. Raises
    PlanFileError if the file's checkpoint is none; where this version decides otherwise than the one that recorded,
    stories end, and say so."""
    teller = _Teller(file, prefix)
    difference = replay(file, teller.watch).difference
    problem = ""
    if difference is not None:
        moment = datetime.fromtimestamp(teller.epoch + difference.now, timezone.utc)
        problem = f"nothing is told from {moment:%H:%M:%S} UTC on, where a replay differs: {difference.problem}"
    return teller.stories(problem)


class _Told:
    """A request that is watched, or was refused. Its times are those of the scheduler's clock."""

    def __init__(self, submission: Submission, arrived_at: float, *, whole: bool) -> None:
        self.submission = submission
        self.arrived_at = arrived_at
        self.whole = whole
        self.request: Request | None = None
        self.outputs: tuple[OutputWatch, ...] = ()
        self.refusal: RequestError | None = None
        self.queue_position: int | None = None
        self.running_at_arrival = 0
        # It has been on a worker. By class, who went there before it; and who of these had come later.
        self.started = False
        self.served: Counter[str] = Counter()
        self.later: Counter[str] = Counter()
        self.ended_at: float | None = None
        self.outcome = self.reason = ""

    def begin(self, mesh: MeshState, request: Request, epoch: float, now: float) -> None:
        """It was accepted, or is there already."""
        self.request = request
        begun = self.submission.begun
        live = [index for index in range(self.submission.n) if index >= len(begun) or not begun[index].ended]
        cause = (Cause.TAKEN_OVER if begun else Cause.ARRIVED) if self.whole else None
        self.outputs = tuple(
            OutputWatch(sequence, index, epoch, now, cause)
            for sequence, index in zip(request.sequences, live, strict=False)
        )
        pool = mesh.pool_for(request)
        running = sum(len(worker.sequences) for worker in pool.workers.values())
        self.running_at_arrival = running - sum(each.sequence.link is not None for each in self.outputs)
        self.started = not self.whole and any(each.placements for each in request.sequences)

    def note_start(self, sequence: Sequence) -> None:
        """A sequence goes to a worker."""
        if self.started:
            return
        if sequence.request is self.request:
            self.started = True
        elif sequence.placements == 1:
            name = sequence.request.traffic_class.name
            self.served[name] += 1
            self.later[name] += sequence.request.arrived_at > self.arrived_at

    def story(self, epoch: float, began_at: float, ended_at: float, problem: str) -> Story:
        """All of it, by a plan log from `began_at` to `ended_at`."""
        submission, request = self.submission, self.request
        mark = None if request is None else request.cancelled
        name = submission.traffic_class if request is None else request.traffic_class.name
        return Story(
            request_id=submission.request_id,
            tenant=submission.tenant,
            traffic_class=name,
            model=submission.model,
            prompt_tokens=len(submission.prompt_token_ids),
            arrived_at=epoch + self.arrived_at,
            log_began_at=epoch + began_at,
            log_ended_at=epoch + ended_at,
            whole=self.whole,
            taken_over=bool(submission.begun),
            refused="" if self.refusal is None else self.refusal.reason,
            refusal="" if self.refusal is None else self.refusal.message,
            queue_position=self.queue_position,
            forecast_s=None if request is None else request.forecast_s,
            outputs=tuple(each.story() for each in self.outputs),
            served=tuple(
                Served(each, count, self.later[each], each == name) for each, count in self.served.most_common()
            ),
            running_at_arrival=self.running_at_arrival,
            pauses=0 if request is None else request.pauses,
            paused_s=0.0 if request is None else request.seconds_paused(self.ended_at or ended_at),
            cancel=None
            if mark is None
            else Cancelled(
                epoch + mark.at,
                mark.reason.name.lower(),
                mark.states,
                None if self.ended_at is None else epoch + self.ended_at,
            ),
            ended_at=None if self.ended_at is None else epoch + self.ended_at,
            outcome=self.outcome,
            reason=self.reason,
            gpu_s=sum(each.sequence.gpu_us for each in self.outputs) / 1e6,
            problem=problem,
        )


class _Teller:
    """`epoch` is 0 on the scheduler's clock, in seconds since the epoch."""

    def __init__(self, file: PlanFile, prefix: str) -> None:
        self.epoch = file.written_at - file.clock
        self._prefix = prefix
        self._all: list[_Told] = []
        # Those that have not ended.
        self._live: list[_Told] = []
        self._steps = StepWatch()
        self._began_at = self._ended_at = file.rounds[0].now if file.rounds else file.clock
        self._looked = False

    def stories(self, problem: str) -> list[Story]:
        """Of all that were seen."""
        return [each.story(self.epoch, self._began_at, self._ended_at, problem) for each in self._all]

    def watch(self, played: Played) -> None:
        """As `replay` has it."""
        now, mesh = played.round.now, played.core.mesh
        self._ended_at = now
        for event in played.round.events:
            if isinstance(event, StepReported):
                self._step(mesh, event, self.epoch + now)
            elif isinstance(event, PlanEnded) and event.revoked:
                for each in self._outputs():
                    each.take_revoked(event.link)
            elif isinstance(event, SequenceReleased):
                self._steps.forget(event.link, event.sequence_id)
            elif isinstance(event, Submitted):
                self._submitted(mesh, event, played.actions, now)
        if not self._looked:
            self._looked = True
            self._find(mesh, now)
        for action in played.actions:
            if isinstance(action, ToWorker):
                self._sent(mesh, action)
            elif isinstance(action, Log) and action.event == "request_finished":
                self._finished(action, now)
        for each in self._outputs():
            each.look(mesh, now)
        self._live = [told for told in self._live if told.ended_at is None]

    def _outputs(self) -> Iterator[OutputWatch]:
        return (each for told in self._live for each in told.outputs)

    def _step(self, mesh: MeshState, event: StepReported, moment: float) -> None:
        worker = mesh.fleet.workers.get(event.link)
        step = self._steps.note(event, "" if worker is None else worker.address, moment)
        for each in self._outputs():
            each.take_step(step)

    def _submitted(self, mesh: MeshState, event: Submitted, actions: SequenceOf[Action], now: float) -> None:
        submission = event.submission
        told = self._new(submission, now, whole=True)
        if told is None:
            return
        request = mesh.gateways.get(event.gateway, {}).get(submission.request_key)
        if request is not None:
            told.begin(mesh, request, self.epoch, now)
        for action in actions:
            if isinstance(action, ToGateway) and action.gateway == event.gateway:
                message = action.message
                if isinstance(message, Accepted) and message.request_key == submission.request_key:
                    told.queue_position = message.queue_position
                elif isinstance(message, Refused) and message.request_key == submission.request_key:
                    told.refusal, told.ended_at = message.failure, now
                    told.outcome, told.reason = "REFUSED", message.failure.reason

    def _find(self, mesh: MeshState, now: float) -> None:
        """Those that were there when the plan log began."""
        known = {told.request for told in self._all}
        for request in dict.fromkeys(sequence.request for sequence in mesh.sequences.values()):
            if request not in known and (told := self._new(request.submission, request.arrived_at, whole=False)):
                told.begin(mesh, request, self.epoch, now)

    def _new(self, submission: Submission, arrived_at: float, *, whole: bool) -> _Told | None:
        """None: nobody asks for it."""
        if not submission.request_id.startswith(self._prefix) or len(self._all) >= MAX_REQUESTS:
            return None
        told = _Told(submission, arrived_at, whole=whole)
        self._all.append(told)
        self._live.append(told)
        return told

    def _sent(self, mesh: MeshState, action: ToWorker) -> None:
        command = action.command
        if isinstance(command, Plan):
            for each in self._outputs():
                each.take_plan(action.link, command)
        elif isinstance(command, NewSequence) and (sequence := mesh.sequences.get(command.sequence_id)) is not None:
            for told in self._live:
                told.note_start(sequence)

    def _finished(self, log: Log, now: float) -> None:
        """Ids are a tenant's own."""
        for told in self._live:
            if (told.submission.request_id, told.submission.tenant) == (log.fields["request_id"], log.fields["tenant"]):
                told.ended_at = now
                told.outcome, told.reason = log.fields["outcome"], log.fields["reason"]
