"""The books: every invariant of the scheduler's state as one function. A mismatch is reported, it does not crash."""

from __future__ import annotations

from collections import Counter

from .credits import blocks_for
from .dispatch import MAX_PLANS_IN_FLIGHT
from .kv_shares import KvShares
from .lifecycle import State
from .pool import Pool
from .state import MeshState
from .waiting import ClassQueue, Line, WaitingQueue, place_in_line
from .worker import Worker


def audit(mesh: MeshState) -> list[str]:
    """What does not add up; empty when all does. Holds after every event once planning is done."""
    problems: list[str] = []
    for pool in mesh.fleet.pools.values():
        problems += _audit_pool(pool)
    for worker in mesh.fleet.workers.values():
        problems += [f"{worker.address}: {problem}" for problem in _audit_worker(worker)]
    for requests in mesh.gateways.values():
        for key, request in requests.items():
            if not request.live:
                problems.append(f"request {key} has ended but is still listed")
            problems += [
                f"sequence {each.sequence_id} of request {key} is live but not listed"
                for each in request.sequences
                if each.state is not State.FINISHED and each.sequence_id not in mesh.sequences
            ]
    live = {sequence.request for sequence in mesh.sequences.values()}
    return problems + mesh.tenants.problems(live) + _audit_places(mesh)


def _audit_places(mesh: MeshState) -> list[str]:
    """Every live sequence is in one place: in a queue, set aside for its reader, on a worker, or about to leave a
    worker's host memory."""
    places: Counter[int] = Counter()
    for pool in mesh.fleet.pools.values():
        for leader in pool.waiting:
            places.update(each.sequence_id for each in leader.group)
        places.update(pool.paused.keys())
    for worker in mesh.fleet.workers.values():
        places.update(worker.sequences.keys())
        places.update(key for key, each in worker.kept.items() if each.state is State.CANCELLING)
    problems = []
    for sequence in mesh.sequences.values():
        leader = sequence.leader or sequence
        # Of a group that is coming back nobody waits until the last is there.
        back = sequence.state is State.QUEUED and any(each.link is not None for each in leader.group)
        if places.pop(sequence.sequence_id, 0) != (0 if back else 1):
            problems.append(f"sequence {sequence.sequence_id}, {sequence.state.value}, is not in one place")
        if sequence is not leader and (sequence not in leader.forks or leader.leader is not None or sequence.forks):
            problems.append(f"sequence {sequence.sequence_id} is no fork of its leader {leader.sequence_id}")
        if any(fork.leader is not sequence for fork in sequence.forks):
            problems.append(f"sequence {sequence.sequence_id} leads a fork that does not follow it")
        if sequence is not leader and sequence.token_ids != leader.token_ids:
            problems.append(f"sequence {sequence.sequence_id} waits for its leader but has tokens of its own")
        if sequence.kept_on is not None:
            host = mesh.fleet.workers.get(sequence.kept_on)
            if host is None or host.kept.get(sequence.sequence_id) is not sequence:
                problems.append(f"the KV cache of sequence {sequence.sequence_id} is kept nowhere")
    return problems + [f"sequence {key} has ended but is still somewhere" for key, count in places.items() if count]


def _audit_pool(pool: Pool) -> list[str]:
    problems = [f"{pool.model}: {problem}" for problem in _audit_queue(pool.waiting)]
    if any(each.state is not State.QUEUED or each.link is not None for leader in pool.waiting for each in leader.group):
        problems.append(f"{pool.model}: a sequence in the queue is not QUEUED")
    if any(leader.leader is not None for leader in pool.waiting):
        problems.append(f"{pool.model}: a fork waits without its leader")
    for key, each in pool.paused.items():
        if each.state is not State.PAUSED or each.link is not None or not each.request.paused:
            problems.append(f"{pool.model}: sequence {key}, {each.state.value}, is set aside")
    stranded = {each.sequence_id for each in pool.waiting if not pool.has_place(each)}
    if pool.stranded.keys() != stranded:
        problems.append(f"{pool.model}: {sorted(pool.stranded)} are said to be stranded, {sorted(stranded)} are")
    if (since := list(pool.stranded.values())) != sorted(since):
        problems.append(f"{pool.model}: who is stranded is out of order")
    return problems + _audit_ahead(pool) + _audit_idle(pool)


def _audit_ahead(pool: Pool) -> list[str]:
    """What of prompts is charged and not computed is that of the prefills on workers."""
    known: Counter[tuple[str, str]] = Counter()
    for worker in pool.workers.values():
        for each in worker.sequences.values():
            known[each.request.traffic_class.name, each.request.tenant.tenant] += each.charged_ahead
    return [
        f"{pool.model}: {line.share.ahead} tokens are ahead of tenant {tenant!r} in class {name!r}, not {right}"
        for name, queue in pool.waiting.classes.items()
        for tenant, line in queue.lines.items()
        if line.share.ahead != (right := known[name, tenant])
    ]


def _audit_queue(queue: WaitingQueue) -> list[str]:
    problems = []
    waiting = list(queue)
    if queue.num_tokens != sum(len(sequence.token_ids) for sequence in waiting):
        problems.append("the queue miscounts its tokens")
    if queue.num_requests != len({sequence.request for sequence in waiting}):
        problems.append("the queue miscounts its requests")
    if queue.num_sequences != sum(len(leader.group) for leader in waiting) or len(queue) != len(waiting):
        problems.append("the queue miscounts its sequences")
    for each in queue.classes.values():
        lines = each.waiting.values()
        if each.num_sequences != sum(line.num_sequences for line in lines):
            problems.append("a class miscounts its sequences")
        if each.num_tokens != sum(line.num_tokens for line in lines):
            problems.append("a class miscounts its tokens")
        if any(line.sequences and each.waiting.get(tenant) is not line for tenant, line in each.lines.items()):
            problems.append("somebody waits in a line that is not looked at")
        for tenant, line in each.waiting.items():
            problems += _audit_line(each, tenant, line)
    return problems


def _audit_line(queue: ClassQueue, tenant: str, line: Line) -> list[str]:
    what = f"the line of tenant {tenant!r}, class {queue.traffic_class.name!r},"
    problems = []
    if not line.sequences or queue.lines.get(tenant) is not line:
        problems.append(f"{what} is looked at for nothing")
    places = [place_in_line(sequence) for sequence in line.sequences]
    if places != sorted(places):
        problems.append(f"{what} is out of order")
    asked = {(each.request.traffic_class.name, each.request.tenant.tenant) for each in line.sequences}
    if not asked <= {(queue.traffic_class.name, tenant)}:
        problems.append(f"{what} has sequences of others")
    groups = (
        sum(len(leader.group) for leader in line.sequences),
        sum(len(leader.token_ids) for leader in line.sequences),
    )
    if (line.num_sequences, line.num_tokens) != groups:
        problems.append(f"{what} miscounts")
    return problems


def _audit_idle(pool: Pool) -> list[str]:
    """Whoever of those that may be next is next: it does not wait for workers that have nothing to do."""
    able = [
        worker for worker in pool.workers.values() if not worker.dropped and len(worker.window) < MAX_PLANS_IN_FLIGHT
    ]
    shares = KvShares(pool)
    waits = False
    for queue in pool.waiting.classes.values():
        for line in queue.waiting.values():
            first = next((each for each in line.sequences if each.sequence_id not in pool.stranded), None)
            if first is None or shares.full(first):
                continue
            places = [worker for worker in able if pool.may_go(worker, first)]
            if not places or any(worker.sequences for worker in places):
                return []
            waits = True
    return [f"{pool.model}: all wait for workers that have nothing to do"] if waits else []


def _audit_worker(worker: Worker) -> list[str]:
    problems, size = worker.ledger.check(), worker.info.block_size
    if worker.dropped:
        return problems
    if len(worker.ledger) != len(worker.sequences) or any(key not in worker.ledger for key in worker.sequences):
        problems.append("accounts and sequences differ")
    for sequence in worker.sequences.values():
        if sequence.link != worker.link or sequence.state in (State.QUEUED, State.FINISHED):
            problems.append(f"sequence {sequence.sequence_id} is {sequence.state.value} on link {sequence.link}")
    sizes = Counter(sequence.request.traffic_class.name for sequence in worker.sequences.values())
    if sizes != worker.class_sizes:
        problems.append(f"classes are miscounted: {worker.class_sizes}")
    running = worker.running
    begun = len(running) - sum(map(worker.lent_slots, running))
    if begun > worker.limits.max_running:
        problems.append(f"{begun} sequences where {worker.limits.max_running} may be")
    if running and len(running) == len(worker.sequences) and not len(worker.window):
        problems.append(f"{len(running)} sequences run without a plan")
    for key, sequence in worker.kept.items():
        leaving = sequence.swapped and sequence.state is State.CANCELLING
        if sequence.kept_on != worker.link or not (leaving or sequence.state in (State.QUEUED, State.PAUSED)):
            problems.append(f"the KV cache of sequence {key} is kept for {sequence.state.value} on {sequence.kept_on}")
        elif sequence.resting and sequence.kept_blocks != (right := blocks_for(len(sequence.token_ids) - 1, size)):
            problems.append(f"sequence {key} rests on {sequence.kept_blocks} blocks, not {right}")
    if worker.swap_blocks_used > worker.info.num_swap_blocks:
        problems.append(f"{worker.swap_blocks_used} of {worker.info.num_swap_blocks} blocks of host memory in use")
    if not worker.sequences and not len(worker.window) and worker.ledger.counts.used > worker.resting_blocks:
        problems.append(f"{worker.ledger.counts.used} blocks in use by {len(worker.resting)} that rest")
    return problems
