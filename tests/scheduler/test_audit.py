"""The audit sees each way in which the books can be wrong: one thing is broken, and it has to say so."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from outcomes import prepared
from sequences import sequence_of

from scheduler.audit import audit
from scheduler.fairness import Share
from scheduler.lifecycle import State
from scheduler.sequence import Sequence
from scheduler.simulator.small import submission, worker_info
from scheduler.state import MeshState
from scheduler.tenant import NamedPlan
from scheduler.waiting import Line
from scheduler.worker import Worker


def books() -> tuple[MeshState, Worker]:
    """A group in prefill, one that decodes, and a group that waits."""
    info = worker_info(max_num_seqs=4, max_num_batched_tokens=4, num_blocks=64, num_swap_blocks=8)
    mesh, gateway = prepared(infos=[info], delay=0.0)
    mesh.submit(gateway, submission(1, max_tokens=60))
    mesh.run(until=0.05)
    mesh.submit(gateway, submission(2, [3] * 90, 9, n=3))
    mesh.submit(gateway, submission(3, [3] * 9, 9, n=2))
    mesh.run(until=0.1)
    state = mesh.core._mesh
    assert mesh.core.check() == []
    (worker,) = state.fleet.workers.values()
    return state, worker


def waiting(state: MeshState, place: int = -1) -> Sequence:
    (pool,) = state.fleet.pools.values()
    return list(pool.waiting)[place]


def _lose_one(state: MeshState, worker: Worker) -> None:
    del worker.sequences[1]


def _list_twice(state: MeshState, worker: Worker) -> None:
    (pool,) = state.fleet.pools.values()
    pool.waiting.add(state.sequences[1])


def _keep_ended(state: MeshState, worker: Worker) -> None:
    del state.sequences[1]


def _fork_without_leader(state: MeshState, worker: Worker) -> None:
    state.sequences[2].forks = state.sequences[2].forks[1:]


def _leader_without_fork(state: MeshState, worker: Worker) -> None:
    state.sequences[3].leader = None


def _fork_with_tokens(state: MeshState, worker: Worker) -> None:
    state.sequences[3].token_ids = [1, 2, 3, 4]


def _swapped_nowhere(state: MeshState, worker: Worker) -> None:
    waiting(state).keep(worker.link, 0, swapped=True)


def _swapped_elsewhere(state: MeshState, worker: Worker) -> None:
    leader = waiting(state)
    worker.kept[leader.sequence_id] = leader


def _host_memory_overfull(state: MeshState, worker: Worker) -> None:
    leader = waiting(state)
    leader.keep(worker.link, 9, swapped=True)
    worker.kept[leader.sequence_id] = leader


def _miscounted(state: MeshState, worker: Worker) -> None:
    waiting(state).token_ids.append(1)


def _out_of_order(state: MeshState, worker: Worker) -> None:
    (pool,) = state.fleet.pools.values()
    pool.waiting.add(sequence_of(waiting(state).request, 9, [1], 9))
    waiting(state, 0).claim = (1e9, 0)


def _in_the_line_of_another(state: MeshState, worker: Worker) -> None:
    waiting(state).request.tenant = NamedPlan("another")


def _line_not_looked_at(state: MeshState, worker: Worker) -> None:
    (pool,) = state.fleet.pools.values()
    pool.waiting.classes["interactive"].waiting.clear()


def _line_for_nothing(state: MeshState, worker: Worker) -> None:
    (pool,) = state.fleet.pools.values()
    pool.waiting.classes["interactive"].waiting["nobody"] = Line(Share(1.0))


def _ahead_forgotten(state: MeshState, worker: Worker) -> None:
    state.sequences[2].charged_ahead -= 1


def _class_miscounted(state: MeshState, worker: Worker) -> None:
    worker.class_sizes["batch"] = 1


def _wrong_state(state: MeshState, worker: Worker) -> None:
    state.sequences[1].state = State.QUEUED


def _no_account(state: MeshState, worker: Worker) -> None:
    worker.ledger.forget(1)


def _one_request_too_many(state: MeshState, worker: Worker) -> None:
    state.tenants.usage["", ""].running += 1


def _usage_forgotten(state: MeshState, worker: Worker) -> None:
    state.tenants.usage.clear()


def _risk_forgotten(state: MeshState, worker: Worker) -> None:
    usage = state.tenants.usage["", ""]
    usage.adopt(NamedPlan("", tokens_per_minute=100), 0.0)
    usage.tokens.reserve(1, 10, 0.0)  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("break_it", "problem"),
    [
        (_lose_one, "not in one place"),
        (_list_twice, "not in one place"),
        (_keep_ended, "has ended but is still somewhere"),
        (_fork_without_leader, "no fork of its leader"),
        (_leader_without_fork, "does not follow it"),
        (_fork_with_tokens, "tokens of its own"),
        (_swapped_nowhere, "is kept nowhere"),
        (_swapped_elsewhere, "is kept for QUEUED on None"),
        (_host_memory_overfull, "9 of 8 blocks of host memory"),
        (_miscounted, "miscounts"),
        (_out_of_order, "is out of order"),
        (_in_the_line_of_another, "has sequences of others"),
        (_line_not_looked_at, "a line that is not looked at"),
        (_line_for_nothing, "is looked at for nothing"),
        (_ahead_forgotten, "tokens are ahead of tenant"),
        (_class_miscounted, "classes are miscounted"),
        (_wrong_state, "is QUEUED on link"),
        (_no_account, "accounts and sequences differ"),
        (_one_request_too_many, "is said to have 4 requests, it has 3"),
        (_usage_forgotten, "has requests and uses nothing"),
        (_risk_forgotten, "9 tokens of tenant '' are said to be at risk, 0 are"),
    ],
)
def test_what_is_broken_is_found(break_it: Callable[[MeshState, Worker], None], problem: str) -> None:
    state, worker = books()
    break_it(state, worker)
    assert any(problem in found for found in audit(state)), audit(state)
