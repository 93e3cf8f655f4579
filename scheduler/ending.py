"""How sequences and requests end: cancels, failures, and the one terminal message that each request gets."""

from __future__ import annotations

from typing import Any

from tercet import errors
from tercet.retry import UNKNOWN_RETRY_SECONDS

from .actions import Account, CancelDone, Release, ReleaseCause, SequenceEnd, TokenBatch, ToWorker
from .cancel_trail import CancelMark, CancelTrail, trail_of
from .events import CancelReason, EndReason
from .lifecycle import State
from .pool import Pool
from .sequence import Request, Sequence, SequenceOutcome
from .state import MeshState


def cancel(
    mesh: MeshState, request: Request, reason: CancelReason, failure: errors.RequestError | None, now: float
) -> None:
    """Starts to end a request; no-op for what is ending already.

    `failure` is what the gateway is told; None if the gateway asked for it, or is gone.
    """
    if request.cancelled is None:
        request.cancelled = _mark(request.sequences, reason, now)
    releases: dict[int, list[int]] = {}
    for sequence in request.sequences:
        link = _cancel_sequence(mesh, sequence, reason, failure, now)
        if link is not None:
            releases.setdefault(link, []).append(sequence.sequence_id)
    # One for each worker: a leader takes its forks with it, and all have to be named.
    for link, sequence_ids in releases.items():
        request.cancelled.released_at = now
        mesh.actions.append(ToWorker(link, Release(tuple(sequence_ids), ReleaseCause.CANCEL)))


def stop(mesh: MeshState, sequence: Sequence, reason: CancelReason, now: float) -> None:
    """Starts to end one sequence of a request, of which the gateway has all that it wants; its end is the answer."""
    if sequence.stopped is None and sequence.state is not State.CANCELLING:
        sequence.stopped = _mark((sequence,), reason, now)
    if sequence.leader is not None or sequence.forks:
        # It cannot leave its group; it ends when that parts.
        sequence.cancel_reason = reason
        return
    link = _cancel_sequence(mesh, sequence, reason, None, now)
    if link is not None:
        if sequence.stopped is not None:
            sequence.stopped.released_at = now
        mesh.actions.append(ToWorker(link, Release((sequence.sequence_id,), ReleaseCause.CANCEL)))


def _mark(sequences: tuple[Sequence, ...], reason: CancelReason, now: float) -> CancelMark:
    states = tuple(sequence.state.value for sequence in sequences)
    return CancelMark(reason, now, states, sum(sequence.gpu_us for sequence in sequences))


def _cancel_sequence(
    mesh: MeshState, sequence: Sequence, reason: CancelReason, failure: errors.RequestError | None, now: float
) -> int | None:
    """Returns the worker's link that has to be told."""
    old = sequence.state
    if old is State.FINISHED or old is State.CANCELLING:
        return None
    submission = sequence.request.submission
    sequence.cancel_reason, sequence.cancel_failure = reason, failure
    if old is State.QUEUED or (old is State.PAUSED and sequence.link is None):
        pool = mesh.pool_for(sequence.request)
        if sequence.kept_on is not None and sequence.resting:
            pool.rouse(mesh.fleet.workers[sequence.kept_on], sequence)
        elif old is State.PAUSED:
            del pool.paused[sequence.sequence_id]
        # Of a group that is coming back nobody waits until the last is there.
        elif sequence in pool.waiting:
            pool.leave_queue(sequence)
        mesh.touch(pool)
    sequence.disband()
    sequence.become(State.CANCELLING)
    link = sequence.link if sequence.kept_on is None else sequence.kept_on
    if link is None:
        finish_cancelled(mesh, sequence, 0, 0, now)
    elif old is State.PREEMPTED:
        # It has been told to go already.
        return None
    else:
        mesh.log(
            "release_sent",
            request_id=submission.request_id,
            sequence_id=sequence.sequence_id,
            reason=reason.name,
        )
    return link


def finish_cancelled(mesh: MeshState, sequence: Sequence, blocks_used: int, blocks_freed: int, now: float) -> None:
    """The blocks of a cancelled sequence are free."""
    outcome = SequenceOutcome(EndReason.CANCELLED, 0, sequence.cancel_failure, blocks_used, blocks_freed)
    _finish_alone(mesh, sequence, outcome, now)


def fail_waiting(mesh: MeshState, pool: Pool, leader: Sequence, now: float) -> None:
    """Ends a queued sequence, and what waits to be forked from it, that no worker can take any more."""
    pool.leave_queue(leader)
    for sequence in leader.group:
        sequence.become(State.CANCELLING)
        failure: errors.RequestError
        # What a client has seen the beginning of is not to be repeated behind its back.
        retry = None if sequence.generated else UNKNOWN_RETRY_SECONDS
        if sequence.placements:
            failure = _worker_lost(sequence, "the worker was lost and no other took over", retry)
        else:
            failure = errors.NoWorkerError(
                "no worker is left to run the request", metadata={"model": pool.model}, retry_after_s=retry
            )
        _finish_alone(mesh, sequence, SequenceOutcome(EndReason.FAILED, failure=failure), now)


def fail_lost(mesh: MeshState, sequence: Sequence, held: int, now: float) -> None:
    """Ends a sequence that lost `sequence.losses` workers in a row, the last one with `held` blocks of it."""
    problem = f"the worker was lost {sequence.losses} times in a row while it had the request"
    # Not to be retried: it may be what brings the workers down.
    outcome = SequenceOutcome(EndReason.FAILED, 0, _worker_lost(sequence, problem, None), held, held)
    _finish_alone(mesh, sequence, outcome, now)


def _worker_lost(sequence: Sequence, problem: str, retry_after_s: float | None) -> errors.WorkerLostError:
    metadata = {
        "model": sequence.request.submission.model,
        "tokens_emitted": str(sequence.generated),
        "placements": str(sequence.placements),
    }
    return errors.WorkerLostError(problem, metadata=metadata, retry_after_s=retry_after_s)


def finish(mesh: MeshState, sequence: Sequence, outcome: SequenceOutcome, now: float) -> SequenceEnd:
    """The one place where sequences, and with them requests, end. The caller sends what it returns, or must not."""
    sequence.become(State.FINISHED)
    sequence.end = outcome
    del mesh.sequences[sequence.sequence_id]
    trail = _trail(sequence, now) if outcome.reason is EndReason.CANCELLED else None
    if sequence.stopped is not None and trail is not None:
        mesh.traffic.cancelled(trail)
    if not sequence.request.live:
        _end_request(mesh, sequence.request, now)
    return SequenceEnd(
        sequence_id=sequence.sequence_id,
        reason=outcome.reason,
        stop_token_id=outcome.stop_token_id,
        failure=outcome.failure,
        account=Account(
            cached_tokens=sequence.cached_tokens,
            blocks_used=outcome.blocks_used,
            blocks_freed=outcome.blocks_freed,
            queue_us=round(_queue_seconds(sequence, now) * 1e6),
            generated_tokens=sequence.generated + sequence.wasted,
            gpu_us=_gpu_us((sequence,)),
            cpu_us=_cpu_us((sequence,)),
        ),
        trail=trail,
    )


def cost_so_far(sequence: Sequence) -> Account:
    """Of one that goes on elsewhere, or might, where its tokens and blocks are counted."""
    return Account(
        cached_tokens=sequence.cached_tokens,
        blocks_used=0,
        blocks_freed=0,
        queue_us=round(sequence.queue_seconds * 1e6),
        gpu_us=_gpu_us((sequence,)),
        cpu_us=_cpu_us((sequence,)),
    )


def _finish_alone(mesh: MeshState, sequence: Sequence, outcome: SequenceOutcome, now: float) -> None:
    """Ends a sequence outside a step, and says so unless the answer to a cancel says it."""
    end = finish(mesh, sequence, outcome, now)
    if not sequence.request.cancels:
        mesh.send(sequence.request.gateway, TokenBatch((), (), (end,)))


def _end_request(mesh: MeshState, request: Request, now: float) -> None:
    mesh.requests_finished += 1
    submission = request.submission
    pool = mesh.fleet.pools.get((submission.model, submission.model_revision))
    if request.first_token_at is None and pool is not None:
        mesh.foresight(pool).gave_up(request, now)
    mesh.gateways.get(request.gateway, {}).pop(submission.request_key, None)
    outcomes = [sequence.end for sequence in request.sequences if sequence.end is not None]
    used = sum(outcome.blocks_used for outcome in outcomes)
    freed = sum(outcome.blocks_freed for outcome in outcomes)
    # The prompt is the leader's work.
    cached = request.sequences[0].cached_tokens
    queue = max(_queue_seconds(sequence, now) for sequence in request.sequences)
    generated = sum(sequence.generated for sequence in request.sequences)
    wasted = sum(sequence.wasted for sequence in request.sequences)
    gpu_us = _gpu_us(request.sequences)
    trail = _trail_of_request(request, now)
    if trail is not None:
        mesh.traffic.cancelled(trail)
    if request.cancels:
        cpu_us = _cpu_us(request.sequences)
        account = Account(cached, used, freed, round(queue * 1e6), generated + wasted, gpu_us, cpu_us)
        mesh.send(request.gateway, CancelDone(submission.request_key, account, trail))
        # Each cancel is answered, but only the first found the request running.
        for _ in range(request.cancels - 1):
            mesh.send(request.gateway, CancelDone(submission.request_key))
    outcome, reason = _worst_end(request)
    mesh.traffic.ended(request, outcome, reason, now)
    mesh.tenants.request_ended(request, now)
    mesh.log(
        "request_finished",
        request_id=submission.request_id,
        model=submission.model,
        tenant=request.tenant.tenant,
        traffic_class=request.traffic_class.name,
        priority=submission.priority,
        n=submission.n,
        outcome=outcome,
        reason=reason,
        prompt_tokens=len(submission.prompt_token_ids),
        cached_tokens=cached,
        tokens=generated,
        wasted_tokens=wasted,
        preemptions=sum(sequence.preemptions for sequence in request.sequences),
        swaps=sum(sequence.swaps for sequence in request.sequences),
        pauses=request.pauses,
        paused_ms=round(request.seconds_paused(now) * 1e3, 3),
        moves=sum(sequence.moves for sequence in request.sequences),
        placements=sum(sequence.placements for sequence in request.sequences),
        blocks_used=used,
        blocks_freed=freed,
        queue_ms=round(queue * 1e3, 3),
        gpu_ms=round(gpu_us / 1e3, 3),
        **_first_token_fields(request),
        total_ms=round((now - request.arrived_at) * 1e3, 3),
    )
    mesh.forget_alarms()
    request.let_go()


def _trail(sequence: Sequence, now: float) -> CancelTrail | None:
    """Of the cancel that ended a sequence: its own, else that of its request."""
    if sequence.stopped is not None:
        return trail_of(sequence.stopped, sequence.gpu_us, now)
    return _trail_of_request(sequence.request, now)


def _trail_of_request(request: Request, now: float) -> CancelTrail | None:
    mark = request.cancelled
    return None if mark is None else trail_of(mark, sum(each.gpu_us for each in request.sequences), now)


def _queue_seconds(sequence: Sequence, now: float) -> float:
    """Of one that never started, all of its time."""
    return now - sequence.request.arrived_at if sequence.started_at is None else sequence.queue_seconds


def _gpu_us(sequences: tuple[Sequence, ...]) -> int:
    # Below 0 where a worker has kept back a first token that it had computed.
    return max(0, round(sum(sequence.gpu_us for sequence in sequences)))


def _cpu_us(sequences: tuple[Sequence, ...]) -> int:
    return min(_gpu_us(sequences), max(0, round(sum(sequence.cpu_us for sequence in sequences))))


def _first_token_fields(request: Request) -> dict[str, Any]:
    """When the first token came, and what had been expected."""
    outlook, came = request.outlook, request.first_token_at
    return {
        "first_token_ms": None if came is None else round((came - request.arrived_at) * 1e3, 3),
        "forecast_ms": None if outlook is None else round(outlook.seconds * 1e3, 3),
        "waited_for": None if outlook is None else outlook.first_token.regime.value,
        "to_be_refused": outlook is not None and outlook.to_be_refused,
    }


def _worst_end(request: Request) -> tuple[str, str]:
    """Outcome and reason for the log: those of the output that ended worst, of equals the first. The numbers of the end
    reasons go from good to bad."""
    worst = request.sequences[0]
    for sequence in request.sequences:
        if sequence.end is not None and worst.end is not None and sequence.end.reason > worst.end.reason:
            worst = sequence
    assert worst.end is not None
    reason = ""
    if worst.end.failure is not None:
        reason = worst.end.failure.reason
    elif worst.end.reason is EndReason.CANCELLED and worst.cancel_reason is not None:
        reason = worst.cancel_reason.name
    return worst.end.reason.name, reason
