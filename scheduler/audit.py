"""The books: every invariant of the scheduler's state as one function. A mismatch is reported, it does not crash."""

from __future__ import annotations

from .dispatch import MAX_PLANS_IN_FLIGHT
from .fleet import Pool, Worker
from .sequence import State
from .state import MeshState


def audit(mesh: MeshState) -> list[str]:
    """What does not add up; empty when all does. Holds after every event once planning is done."""
    problems: list[str] = []
    for pool in mesh.fleet.pools.values():
        problems += _audit_pool(pool)
    for worker in mesh.fleet.workers.values():
        problems += [f"{worker.address}: {problem}" for problem in _audit_worker(worker)]
    reachable = mesh.sequences_waiting + mesh.sequences_running
    for requests in mesh.gateways.values():
        for key, request in requests.items():
            if not request.live:
                problems.append(f"request {key} has ended but is still listed")
            reachable -= sum(sequence.state is not State.FINISHED for sequence in request.sequences)
    if reachable < 0:
        problems.append(f"{-reachable} live sequences are neither waiting nor on a worker")
    return problems


def _audit_pool(pool: Pool) -> list[str]:
    problems = []
    arrivals = [sequence.arrival for sequence in pool.waiting]
    if arrivals != sorted(arrivals):
        problems.append(f"{pool.model}: the queue is out of order")
    if pool.waiting.num_tokens != sum(len(sequence.token_ids) for sequence in pool.waiting):
        problems.append(f"{pool.model}: the queue miscounts its tokens")
    if any(sequence.state is not State.QUEUED or sequence.link is not None for sequence in pool.waiting):
        problems.append(f"{pool.model}: a sequence in the queue is not QUEUED")
    usable = [
        worker for worker in pool.workers.values() if not worker.dropped and len(worker.window) < MAX_PLANS_IN_FLIGHT
    ]
    if usable and len(pool.waiting) and not any(worker.sequences for worker in usable):
        problems.append(f"{pool.model}: {len(pool.waiting)} sequences wait for workers that have nothing to do")
    return problems


def _audit_worker(worker: Worker) -> list[str]:
    problems = worker.ledger.check()
    if worker.dropped:
        return problems
    if len(worker.ledger) != len(worker.sequences) or any(key not in worker.ledger for key in worker.sequences):
        problems.append("accounts and sequences differ")
    for sequence in worker.sequences.values():
        if sequence.link != worker.link or sequence.state in (State.QUEUED, State.FINISHED):
            problems.append(f"sequence {sequence.sequence_id} is {sequence.state.value} on link {sequence.link}")
    if len(worker.sequences) > worker.limits.max_running:
        problems.append(f"{len(worker.sequences)} sequences where {worker.limits.max_running} may be")
    running = worker.running
    if running and len(running) == len(worker.sequences) and not len(worker.window):
        problems.append(f"{len(running)} sequences run without a plan")
    if not worker.sequences and not len(worker.window) and worker.ledger.counts.used:
        problems.append(f"{worker.ledger.counts.used} blocks in use by nobody")
    return problems
