"""Requests whose readers are behind: they are in no plan until these have caught up.

What is on a worker rests there: its blocks stay its own as long as nobody needs them. What waits is set aside.
"""

from __future__ import annotations

from .actions import Release, ReleaseCause, Rest, ToWorker
from .credits import blocks_for
from .lifecycle import State
from .pool import Pool
from .sequence import Request, Sequence
from .state import MeshState
from .worker import Worker


def pause(mesh: MeshState, request: Request, now: float) -> None:
    """The reader is behind; no-op if that is known. A sequence in prefill stops with its next token, one that is to be
    forked with its first."""
    if request.paused:
        return
    request.paused_at = now
    request.pauses += 1
    mesh.log("paused", request_id=request.submission.request_id)
    resting: dict[int, list[int]] = {}
    for sequence in request.sequences:
        if sequence.state is State.DECODE:
            sequence.become(State.PAUSED)
            assert sequence.link is not None
            resting.setdefault(sequence.link, []).append(sequence.sequence_id)
        elif sequence.state is State.QUEUED and sequence.pausable:
            pool = mesh.pool_for(request)
            pool.leave_queue(sequence)
            pool.set_aside(sequence)
            mesh.touch(pool)
    for link, sequence_ids in resting.items():
        mesh.actions.append(ToWorker(link, Rest(tuple(sequence_ids))))


def pause_one(mesh: MeshState, sequence: Sequence) -> None:
    """A sequence of a request whose reader is behind has got the token that it was let run for."""
    sequence.become(State.PAUSED)
    assert sequence.link is not None
    mesh.actions.append(ToWorker(sequence.link, Rest((sequence.sequence_id,))))


def unpause(mesh: MeshState, request: Request, now: float) -> None:
    """The reader has caught up; no-op if it was not behind. What a worker has not yet let rest goes on when it has."""
    if not request.paused:
        return
    request.paused_s = request.seconds_paused(now)
    request.paused_at = None
    mesh.log("unpaused", request_id=request.submission.request_id)
    for sequence in request.sequences:
        if sequence.state is State.PAUSED and sequence.link is None:
            pool = mesh.pool_for(request)
            pool.go_on(sequence, now)
            mesh.touch(pool)


def rest(mesh: MeshState, worker: Worker, sequence: Sequence, *, found: bool, now: float) -> None:
    """Nothing of a paused sequence is on its way any more; `found`: its worker has it. It waits for its reader, or in
    the queue if that has caught up meanwhile."""
    pool = mesh.fleet.pool_of(worker)
    mesh.touch(pool)
    if found and len(sequence.token_ids) == sequence.length_at_return:
        # It has got no token since it came back, but has its blocks.
        worker.ledger.hold(sequence.sequence_id, len(sequence.token_ids) - 1)
    held = worker.ledger.held(sequence.sequence_id)
    if found and not _may_rest(pool, worker, sequence, held):
        sequence.become(State.PREEMPTED)
        sequence.moving = worker.draining
        sequence.moves += sequence.moving
        sequence.preemptions += not sequence.moving
        mesh.actions.append(ToWorker(worker.link, Release((sequence.sequence_id,), ReleaseCause.PREEMPT)))
        return
    pool.let_go(worker, sequence)
    if found:
        sequence.keep(worker.link, held, swapped=False)
        worker.kept[sequence.sequence_id] = sequence
    pool.take_back(sequence, now)


def _may_rest(pool: Pool, worker: Worker, sequence: Sequence, held: int) -> bool:
    """Not where the worker is about to stop and another one could go on with it. And not as long as it shares the block
    that it writes to next: whoever of the group wrote there first would take a copy that nobody has credit for."""
    if worker.draining and pool.can_ever_take(sequence):
        return False
    return held >= blocks_for(len(sequence.token_ids) - 1, worker.info.block_size)
