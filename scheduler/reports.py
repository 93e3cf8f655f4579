"""What workers report, written into the state: who is there, tokens, progress, ends, free blocks."""

from __future__ import annotations

from .actions import SequenceEnd, TokenBatch
from .dispatch import reserve
from .ending import fail_lost, fail_waiting, finish, finish_cancelled
from .events import KvChanged, PlanEnded, SequenceReleased, StepReported, WorkerAttached, WorkerDraining, WorkerLost
from .fleet import Pool, Worker
from .sequence import MAX_LOSSES, RUNNING, SequenceOutcome, State
from .state import MeshState

# Plans in a row that run no step though there is work, before the stream is started afresh. One or two are usual: they
# were sent before what they were for had ended.
MAX_BARREN_PLANS = 8


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
    _revalidate(mesh, pool, now)
    mesh.touch(pool)
    mesh.pools_changed()


def worker_lost(mesh: MeshState, event: WorkerLost, now: float) -> None:
    """A worker is gone: what it had goes back to its place in the queue with all tokens so far, MAX_LOSSES times."""
    worker = mesh.fleet.workers.get(event.link)
    if worker is None:
        return
    pool = mesh.fleet.remove(worker, now)
    mesh.log("worker_lost", address=worker.address, sequences=len(worker.sequences))
    for sequence in worker.sequences.values():
        # Its memory went with the worker: the blocks are free.
        held = worker.ledger.held(sequence.sequence_id)
        if sequence.state is State.CANCELLING:
            finish_cancelled(mesh, sequence, held, held, now)
        elif sequence.note_loss() >= MAX_LOSSES:
            fail_lost(mesh, sequence, held, now)
        else:
            sequence.requeue()
            pool.waiting.add(sequence)
    _revalidate(mesh, pool, now)
    mesh.touch(pool)
    mesh.pools_changed()


def worker_draining(mesh: MeshState, event: WorkerDraining, _now: float) -> None:
    """A worker is about to stop."""
    worker = mesh.fleet.workers.get(event.link)
    if worker is None or worker.draining:
        return
    worker.draining = True
    mesh.log("worker_draining", address=worker.address, sequences=len(worker.sequences))
    mesh.touch(mesh.fleet.pool_of(worker))


def kv_changed(mesh: MeshState, event: KvChanged) -> None:
    """What a worker's prefix cache lost and got."""
    worker = mesh.fleet.workers.get(event.link)
    if worker is None:
        return
    if event.reset:
        worker.prefixes.clear()
    worker.prefixes.difference_update(event.removed)
    worker.prefixes.update(event.stored)


def step_reported(mesh: MeshState, event: StepReported, now: float) -> None:
    """Tokens leave at once, one batch per gateway."""
    worker = mesh.fleet.workers.get(event.link)
    if worker is None:
        return
    worker.heard_at = now
    if not worker.window.step(event.plan_seq, event.step):
        mesh.drop(worker, f"reported step {event.step} of plan {event.plan_seq}, which is not in flight")
        return
    worker.steps += 1
    worker.tokens += len(event.token_ids)
    worker.barren_plans = 0
    worker.ledger.report(event.blocks)
    _note_progress(worker, event)
    columns: dict[int, tuple[list[int], list[int], list[SequenceEnd]]] = {}
    sequences, hold = worker.sequences, worker.ledger.hold
    for sequence_id, token_id in zip(event.sequence_ids, event.token_ids, strict=True):
        sequence = sequences.get(sequence_id)
        if sequence is None:
            continue
        # The new token itself enters the cache in the next step.
        sequence.computed = len(sequence.token_ids) + sequence.wasted
        hold(sequence_id, sequence.computed)
        if sequence.state is State.CANCELLING:
            sequence.wasted += 1
            continue
        sequence.token_ids.append(token_id)
        if sequence.state is State.PREFILL:
            sequence.become(State.DECODE)
        gateway = sequence.request.gateway
        column = columns.get(gateway)
        if column is None:
            column = columns[gateway] = ([], [], [])
        column[0].append(sequence_id)
        column[1].append(token_id)
    for ended in event.ended:
        sequence = sequences.pop(ended.sequence_id, None)
        if sequence is None:
            continue
        worker.ledger.forget(ended.sequence_id)
        if sequence.state is State.CANCELLING:
            finish_cancelled(mesh, sequence, ended.blocks_used, ended.blocks_freed, now)
            continue
        outcome = SequenceOutcome(
            ended.reason, ended.stop_token_id, ended.failure, ended.blocks_used, ended.blocks_freed
        )
        end = finish(mesh, sequence, outcome, now)
        columns.setdefault(sequence.request.gateway, ([], [], []))[2].append(end)
    if event.ended:
        mesh.touch(mesh.fleet.pool_of(worker))
    for gateway, (sequence_ids, token_ids, ends) in columns.items():
        mesh.send(gateway, TokenBatch(tuple(sequence_ids), tuple(token_ids), tuple(ends)))


def plan_ended(mesh: MeshState, event: PlanEnded, now: float) -> None:
    """The worst case of a plan is over: what it did not use is free again."""
    worker = mesh.fleet.workers.get(event.link)
    if worker is None:
        return
    worker.heard_at = now
    plan = worker.window.done(event.plan_seq)
    if plan is None:
        mesh.drop(worker, f"ended plan {event.plan_seq}, which is not in flight")
        return
    worker.ledger.report(event.blocks)
    if plan.steps_run == 0:
        # Its joins may never have been read.
        for sequence in worker.sequences.values():
            if sequence.join_last == event.plan_seq:
                sequence.join_last = 0
        if not event.revoked and worker.running:
            worker.barren_plans += 1
            if worker.barren_plans >= MAX_BARREN_PLANS:
                mesh.drop(worker, f"ran no step in {worker.barren_plans} plans though sequences are there")
                return
    pool = mesh.fleet.pool_of(worker)
    if len(pool.waiting) and worker.free_slots:
        # So that placement sees the credits; without a queue the next plan sets them anyway.
        reserve(worker)
    mesh.touch(pool)


def sequence_released(mesh: MeshState, event: SequenceReleased, now: float) -> None:
    """The blocks of a cancelled or preempted sequence are free."""
    worker = mesh.fleet.workers.get(event.link)
    if worker is None:
        return
    worker.heard_at = now
    worker.ledger.report(event.blocks)
    sequence = worker.sequences.get(event.sequence_id)
    if sequence is None or sequence.state in RUNNING:
        # It had ended by itself before the worker read the release.
        return
    del worker.sequences[event.sequence_id]
    worker.ledger.forget(event.sequence_id)
    pool = mesh.fleet.pool_of(worker)
    mesh.touch(pool)
    mesh.log(
        "released",
        request_id=sequence.request.submission.request_id,
        sequence_id=event.sequence_id,
        blocks_used=event.blocks_used,
        blocks_freed=event.blocks_freed,
    )
    if sequence.state is State.CANCELLING:
        finish_cancelled(mesh, sequence, event.blocks_used, event.blocks_freed, now)
    else:
        mesh.preemptions += 1
        sequence.requeue()
        pool.waiting.add(sequence)


def _note_progress(worker: Worker, event: StepReported) -> None:
    for progress in event.prefills:
        sequence = worker.sequences.get(progress.sequence_id)
        if sequence is None:
            continue
        sequence.computed = max(sequence.computed, min(progress.num_computed, sequence.prefill_length))
        worker.ledger.hold(sequence.sequence_id, sequence.computed)
        if sequence.placements == 1:
            # What a later run finds is its own work of before, not a saving.
            sequence.cached_tokens = min(progress.num_cached, sequence.prompt_length)


def _revalidate(mesh: MeshState, pool: Pool, now: float) -> None:
    """Ends what waits for a kind of worker that is no more."""
    if pool.workers:
        for sequence in list(pool.waiting):
            if not pool.can_ever_hold(sequence.max_length):
                fail_waiting(mesh, pool, sequence, now)
