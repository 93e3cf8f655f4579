"""Pools with waiting and running sequences, for tests that need no mesh."""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from typing import Any

from sequences import sequence_of

from scheduler.events import BlockCounts
from scheduler.fleet import Fleet
from scheduler.lifecycle import State
from scheduler.placement import deal
from scheduler.policy import Policy
from scheduler.pool import Pool
from scheduler.sequence import Request, Sequence
from scheduler.simulator.small import submission, worker_info
from scheduler.tenant import ANYONE, NamedPlan
from scheduler.traffic_class import DEFAULT_CLASS, TrafficClass
from scheduler.worker import Worker

POLICY = Policy(0, 0)


def worker(link: int, **changes: Any) -> Worker:
    """A small worker without anything on it."""
    return Worker(link, f"{chr(96 + link)}:1", worker_info(**changes))


def pool_of(*workers: Worker) -> Pool:
    """The pool that they form."""
    fleet = Fleet(tuple(worker.address for worker in workers))
    for each in workers:
        pool = fleet.add(each)
    return pool


def wait_for(
    pool: Pool,
    key: int,
    prompt: SequenceOf[int],
    *,
    tenant: NamedPlan = ANYONE,
    traffic_class: TrafficClass = DEFAULT_CLASS,
    at: float = 0.0,
    **changes: Any,
) -> Sequence:
    """A sequence that waits since `at`."""
    request = Request(1, submission(key, list(prompt)), at, None, tenant=tenant, traffic_class=traffic_class)
    values = {"claim": traffic_class.claim(at, key), **changes}
    sequence = sequence_of(request, key, list(prompt), len(prompt) + 8, **values)
    pool.waiting.add(sequence)
    return sequence


def wait(pool: Pool, *lengths: int) -> list[Sequence]:
    """Sequences of these lengths that wait, numbered from 1."""
    return [wait_for(pool, key, [1] * length) for key, length in enumerate(lengths, 1)]


def put(pool: Pool, link: int, sequence: Sequence) -> None:
    """As dispatch does when the planner starts it."""
    pool.waiting.remove(sequence)
    target = pool.workers[link]
    target.expect(sequence)
    sequence.place(link, 0.0)
    target.put(sequence)


def dealt(pool: Pool, now: float = 0.0) -> dict[int, list[int]]:
    """The ids of newcomers by the link of the worker."""
    newcomers = deal(pool, POLICY, now).newcomers
    return {link: [sequence.sequence_id for sequence in each] for link, each in newcomers.items()}


def decode(pool: Pool, link: int, sequence: Sequence) -> Sequence:
    """It runs there, has got a token and the blocks for all but that, and has credit for one more."""
    put(pool, link, sequence)
    ledger = pool.workers[link].ledger
    ledger.reserve(sequence.sequence_id, len(sequence.token_ids) + 2)
    ledger.hold(sequence.sequence_id, len(sequence.token_ids))
    held, counts = ledger.held(sequence.sequence_id), ledger.counts
    ledger.report(BlockCounts(counts.free - held, 0, counts.used + held))
    sequence.become(State.DECODE)
    sequence.token_ids.append(7)
    return sequence
