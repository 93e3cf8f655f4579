"""Workers come, prepare to stop, and go; what they had goes back to its place in the queue.

Knows nothing of steps and plans.
"""

from __future__ import annotations

from .actions import Release, ReleaseCause, ToWorker
from .ending import fail_lost, finish_cancelled
from .events import WorkerAttached, WorkerDraining, WorkerLost
from .lifecycle import RUNNING, State
from .pool import Pool
from .sequence import MAX_LOSSES, Sequence
from .state import MeshState
from .worker import Worker


def worker_attached(mesh: MeshState, event: WorkerAttached, now: float) -> None:
    """A worker said hello: it has nothing yet."""
    before = mesh.fleet.known.get(event.address)
    pool = mesh.fleet.add(Worker(event.link, event.address, event.info, now))
    mesh.log(
        "worker_attached",
        address=event.address,
        worker_id=event.info.worker_id,
        epoch=event.info.epoch,
        # Not only its stream is new: what it had cached is gone, too.
        restarted=before is not None and before.epoch != event.info.epoch,
        model=event.info.model,
        blocks=event.info.num_blocks,
    )
    for worker in pool.workers.values():
        if worker.draining:
            _drop_swapped(mesh, pool, worker)
            _move_away(mesh, pool, worker)
    _pool_changed(mesh, pool, now)


def worker_draining(mesh: MeshState, event: WorkerDraining, now: float) -> None:
    """A worker is about to stop: what another one can take goes there, the rest may run to its end, and comes back if
    it has to give way."""
    worker = mesh.fleet.workers.get(event.link)
    if worker is None or worker.draining:
        return
    pool = mesh.fleet.pool_of(worker)
    worker.draining = True
    mesh.log("worker_draining", address=worker.address, sequences=len(worker.sequences))
    _drop_swapped(mesh, pool, worker)
    _move_away(mesh, pool, worker)
    _pool_changed(mesh, pool, now)


def worker_lost(mesh: MeshState, event: WorkerLost, now: float) -> None:
    """A worker is gone: what it had goes back to the queue with all tokens so far, MAX_LOSSES times."""
    worker = mesh.fleet.workers.get(event.link)
    # One that hung is gone already.
    if worker is not None:
        _leave(mesh, worker, now)


def give_up(mesh: MeshState, worker: Worker, silent_s: float, now: float) -> None:
    """A worker hangs. It is gone at once: nobody waits for it to hear that, and whatever it still says on that stream
    is nobody's."""
    mesh.drop(worker, f"said nothing for {silent_s:.1f} s though it has work")
    mesh.fleet.hung[worker.address] = now
    _leave(mesh, worker, now)


def _leave(mesh: MeshState, worker: Worker, now: float) -> None:
    pool = mesh.fleet.remove(worker)
    mesh.log("worker_lost", address=worker.address, sequences=len(worker.sequences), kept=len(worker.kept))
    leaders: dict[Sequence, None] = {}
    for sequence in worker.sequences.values():
        pool.waiting.settle(sequence)
        if sequence.state is State.CANCELLING:
            # Its memory went with the worker: the blocks are free.
            held = worker.ledger.held(sequence.sequence_id)
            finish_cancelled(mesh, sequence, held, held, now)
        else:
            leaders[sequence.leader or sequence] = None
    for leader in leaders:
        _lose(mesh, pool, worker, leader, now)
    for sequence in worker.kept.values():
        sequence.lose_cache()
        if sequence.state is State.CANCELLING:
            finish_cancelled(mesh, sequence, 0, 0, now)
    _pool_changed(mesh, pool, now)


def _lose(mesh: MeshState, pool: Pool, worker: Worker, leader: Sequence, now: float) -> None:
    """One that was told to give way, or whose worker was about to stop, is not what brought the worker down."""
    group = leader.group
    if leader.state in RUNNING:
        if worker.draining:
            for sequence in group:
                sequence.moves += 1
        elif max(sequence.note_loss() for sequence in group) >= MAX_LOSSES:
            for sequence in group:
                fail_lost(mesh, sequence, worker.ledger.held(sequence.sequence_id), now)
            return
    for sequence in group:
        # Some of a group may have come back before.
        if sequence.link is not None:
            pool.take_back(sequence, now)


def _move_away(mesh: MeshState, pool: Pool, worker: Worker) -> None:
    """Takes from a worker what another one can run; not for want of blocks, so it is no preemption."""
    others = [other for other in pool.workers.values() if other.usable]
    leaving: list[int] = []
    running = [each for each in worker.sequences.values() if each.state in RUNNING and each.leader is None]
    for leader in (*worker.resting, *running):
        if any(other.can_ever_take(leader) for other in others):
            if leader.resting:
                pool.rouse(worker, leader)
            for sequence in leader.group:
                sequence.become(State.PREEMPTED)
                sequence.moving = True
                sequence.moves += 1
                leaving.append(sequence.sequence_id)
    if leaving:
        mesh.actions.append(ToWorker(worker.link, Release(tuple(leaving), ReleaseCause.PREEMPT)))
        mesh.log("moved_away", address=worker.address, sequences=len(leaving))


def _drop_swapped(mesh: MeshState, pool: Pool, worker: Worker) -> None:
    """What is in the host memory of a worker that is about to stop begins anew elsewhere, if another one can run it."""
    dropped = [
        sequence
        for sequence in worker.kept.values()
        if sequence.swapped and sequence.state is not State.CANCELLING and pool.can_ever_take(sequence)
    ]
    for sequence in dropped:
        sequence.lose_cache()
        # It does not come back there: the answer to this release would be taken for that to a later one.
        sequence.last_link = None
        del worker.kept[sequence.sequence_id]
    if dropped:
        sequence_ids = tuple(sequence.sequence_id for sequence in dropped)
        mesh.actions.append(ToWorker(worker.link, Release(sequence_ids, ReleaseCause.PREEMPT)))


def _pool_changed(mesh: MeshState, pool: Pool, now: float) -> None:
    """Notes who waits for a kind of worker that is not there, and tells who has to know."""
    pool.note_places(now)
    mesh.touch(pool)
    mesh.pools_changed()
