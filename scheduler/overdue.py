"""What time alone ends: requests whose deadline has come, that wait for too long or for workers that do not come back,
and the streams of workers that hang."""

from __future__ import annotations

from tercet import errors

from .ending import cancel, fail_waiting
from .events import CancelReason
from .sequence import Request
from .state import MeshState

# A worker that owes a report for so long hangs: its stream is started afresh, and its sequences go on elsewhere. Far
# above the longest step: a full chunk of a large model on a CPU takes about a minute.
STALL_SECONDS = 300.0


def next_moment(mesh: MeshState, worker_grace_s: float) -> float | None:
    """When something may be overdue at the earliest; None if nothing depends on time."""
    moments = [
        next(iter(pool.stranded.values())) + worker_grace_s for pool in mesh.fleet.pools.values() if pool.stranded
    ]
    moments += [
        worker.heard_at + STALL_SECONDS for worker in mesh.fleet.workers.values() if worker.busy and not worker.dropped
    ]
    alarm = mesh.next_alarm()
    if alarm is not None:
        moments.append(alarm)
    return min(moments, default=None)


def end_overdue(mesh: MeshState, worker_grace_s: float, now: float) -> None:
    """Ends what is overdue."""
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
    for worker in mesh.fleet.workers.values():
        # The time first: this is asked after every event.
        if now >= worker.heard_at + STALL_SECONDS and worker.busy:
            mesh.drop(worker, f"said nothing for {STALL_SECONDS:g} s though it has work")


def _queue_expired(mesh: MeshState, request: Request, now: float) -> errors.QueueExpiredError:
    traffic_class, submission = request.traffic_class, request.submission
    pool = mesh.fleet.pools[submission.model, submission.model_revision]
    waiting = pool.waiting.count(traffic_class.name).requests
    # When all that waits with it has started, or what comes then is not too old either.
    retry_after_s = mesh.pace(pool, traffic_class.name).seconds_for(waiting, now)
    return errors.QueueExpiredError(
        f"the request waited {traffic_class.max_queue_s:g} s and was not started"
        f" (classes.{traffic_class.name}.max_queue_seconds)",
        metadata={"traffic_class": traffic_class.name},
        retry_after_s=min(retry_after_s, traffic_class.max_queue_s),
    )
