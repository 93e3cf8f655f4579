"""What time alone ends: requests whose deadline has come, that wait for too long or for workers that do not come back,
and the streams of workers that hang."""

from __future__ import annotations

from tercet import errors

from . import membership
from .ending import cancel, fail_waiting
from .events import CancelReason
from .placement import late
from .progress import Progress, progress_of
from .sequence import Request
from .state import MeshState
from .worker import Worker

# How often it is looked whether workers that have work move.
LOOK_SECONDS = 1.0


def next_moment(mesh: MeshState, worker_grace_s: float) -> float | None:
    """When something may be overdue at the earliest; None if nothing depends on time."""
    moments = [
        next(iter(pool.stranded.values())) + worker_grace_s for pool in mesh.fleet.pools.values() if pool.stranded
    ]
    if any(map(_is_watched, mesh.fleet.workers.values())):
        moments.append(mesh.looked_at + LOOK_SECONDS)
    alarm = mesh.next_alarm()
    if alarm is not None:
        moments.append(alarm)
    return min(moments, default=None)


def _is_watched(worker: Worker) -> bool:
    return not worker.dropped and (worker.busy or worker.progress is not Progress.MOVING)


def end_overdue(mesh: MeshState, worker_grace_s: float, now: float) -> None:
    """Ends requests that are overdue."""
    for request in mesh.take_overdue(now):
        failure = errors.DeadlineError("the deadline passed before the request ended")
        cancel(mesh, request, CancelReason.DEADLINE, failure, now)
    for request in mesh.take_expired(now):
        cancel(mesh, request, CancelReason.DEADLINE, _queue_expired(mesh, request, now), now)
    mesh.touch_pressing(now)
    for pool in mesh.fleet.pools.values():
        while pool.stranded:
            sequence_id, since = next(iter(pool.stranded.items()))
            if now < since + worker_grace_s:
                break
            fail_waiting(mesh, pool, mesh.sequences[sequence_id], now)


def give_up_hung(mesh: MeshState, hung_s: float, now: float) -> None:
    """Looks whether workers that have work move, once in LOOK_SECONDS. The stream of one that hangs is started afresh,
    and what it has goes on elsewhere."""
    due = mesh.looked_at + LOOK_SECONDS
    if now < due:
        return
    mesh.looked_at = now
    # Who did not look, because it was stopped or too busy, has not read either what the workers said meanwhile.
    missed_s = now - due
    for worker in mesh.fleet.workers.values():
        worker.heard_at = min(now, worker.heard_at + missed_s) if worker.busy else now
    for worker in list(mesh.fleet.workers.values()):
        if not worker.dropped:
            _look_at(mesh, worker, hung_s, now)


def _look_at(mesh: MeshState, worker: Worker, hung_s: float, now: float) -> None:
    silence = mesh.fleet.pool_of(worker).silence_of(worker, now)
    before, worker.progress = worker.progress, progress_of(silence, hung_s, alone=False)
    if worker.progress is Progress.HUNG and _is_alone(mesh, worker, now):
        worker.progress = progress_of(silence, hung_s, alone=True)
    if worker.progress is Progress.HUNG:
        membership.give_up(mesh, worker, silence.seconds, now)
    elif worker.progress is not before:
        mesh.log(
            f"worker_{worker.progress.value}",
            address=worker.address,
            silent_s=silence.seconds,
            forecast_s=silence.step_s,
            foreseen=silence.foreseen.value,
        )


def _is_alone(mesh: MeshState, worker: Worker, now: float) -> bool:
    """Whether it has something that no other worker which moves can run."""
    others = [
        other
        for other in mesh.fleet.pool_of(worker).workers.values()
        if other is not worker and other.usable and not late(other, now)
    ]
    leaders = (each for each in worker.sequences.values() if each.leader is None)
    return not others or not all(any(other.can_ever_take(each) for other in others) for each in leaders)


def _queue_expired(mesh: MeshState, request: Request, now: float) -> errors.QueueExpiredError:
    traffic_class, submission = request.traffic_class, request.submission
    pool = mesh.fleet.pools[submission.model, submission.model_revision]
    waiting = pool.waiting.count(traffic_class.name).requests
    # When all that waits with it has started, or what comes then is not too old either.
    soonest_s = mesh.pace(pool, traffic_class.name).seconds_for(waiting, now)
    return errors.QueueExpiredError(
        f"the request waited {traffic_class.max_queue_s:g} s and was not started"
        f" (classes.{traffic_class.name}.max_queue_seconds)",
        metadata={"traffic_class": traffic_class.name},
        retry_after_s=mesh.spread(pool, traffic_class.name, min(soonest_s, traffic_class.max_queue_s), now),
    )
