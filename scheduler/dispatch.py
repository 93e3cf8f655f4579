"""Turns the state of a worker into the planner's arguments, and its decisions into commands.

Chooses when to plan and whether to revoke; what a plan holds is the planner's choice.
"""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf

from .actions import Action, Log, NewSequence, Plan, Release, ReleaseCause, ToWorker
from .fleet import Pool, Worker
from .placement import deal
from .planner import NOTHING, Candidate, Credits, Decision, Policy, Running, make_plan
from .sequence import RUNNING, Sequence, State

# Two, so that the worker has its next plan before it ends one.
PLANS_AHEAD = 2
# Revoked plans pile up while the worker is inside a long step; each widens the worst case that credits must cover.
MAX_PLANS_IN_FLIGHT = 8


def dispatch(pool: Pool, policy: Policy, now: float) -> list[Action]:
    """Sends every plan and preemption that can be sent to the pool's workers."""
    actions: list[Action] = []
    dealt = deal(pool) if len(pool.waiting) else {}
    for worker in pool.workers.values():
        if not worker.dropped:
            _dispatch_worker(pool, worker, dealt.get(worker.link, []), policy, now, actions)
    return actions


def running_views(worker: Worker, *, revoking: bool) -> list[Running]:
    """The worker's running sequences as the next plan will find them; `revoking`: it ends all plans in flight."""
    window, ledger = worker.window, worker.ledger
    expected = window.expected(revoking=revoking)
    ahead = sum(plan.num_steps for plan in expected)
    views = []
    worst_since: dict[int, int] = {}
    for sequence_id, sequence in worker.sequences.items():
        if sequence.state not in RUNNING:
            continue
        length = len(sequence.token_ids)
        since = sequence.join_first
        worst = worst_since.get(since)
        if worst is None:
            worst = worst_since[since] = window.steps_worst(since)
        if sequence.state is State.DECODE:
            left, gained, joined = 0, ahead, True
        else:
            left, gained = sequence.prefill_length - sequence.computed, 0
            for plan in expected:
                left -= plan.chunks.get(sequence_id, 0)
                if left <= 0:
                    gained += plan.num_steps
            left = max(left, 0)
            last = sequence.join_last
            joined = last > 0 and not window.may_not_start(last, revoking=revoking)
        views.append(
            Running(
                sequence_id,
                sequence.arrival,
                left,
                min(length + worst, sequence.max_length),
                sequence.max_length,
                sequence.max_length - length - gained,
                ledger.reserved(sequence_id),
                joined,
            )
        )
    return views


def _dispatch_worker(
    pool: Pool, worker: Worker, dealt: list[Sequence], policy: Policy, now: float, actions: list[Action]
) -> None:
    window = worker.window
    # Otherwise the newcomer waits for at most one step anyway.
    if dealt and window.steps_ahead > 1 and len(window) < MAX_PLANS_IN_FLIGHT:
        decision = _decide(worker, dealt, policy, revoking=True)
        if decision.start:
            _send(pool, worker, dealt, decision, now, actions, revoke=True)
            dealt = dealt[len(decision.start) :]
    while window.plans_ahead < PLANS_AHEAD and len(window) < MAX_PLANS_IN_FLIGHT:
        decision = _decide(worker, dealt, policy, revoking=False)
        if decision.preempt:
            _preempt(worker, decision.preempt, actions)
        if not decision.num_steps:
            return
        _send(pool, worker, dealt, decision, now, actions, revoke=False)
        dealt = dealt[len(decision.start) :]


def _decide(worker: Worker, dealt: SequenceOf[Sequence], policy: Policy, *, revoking: bool) -> Decision:
    running = running_views(worker, revoking=revoking)
    if not running and not dealt:
        return NOTHING
    account = Credits(
        available=worker.ledger.available,
        sequences=len(worker.ledger),
        settled=not len(worker.window) and len(running) == len(worker.sequences),
    )
    candidates = [Candidate(each.sequence_id, len(each.token_ids), each.max_length) for each in dealt]
    return make_plan(running, candidates, account, worker.limits, policy)


def _send(
    pool: Pool,
    worker: Worker,
    dealt: list[Sequence],
    decision: Decision,
    now: float,
    actions: list[Action],
    *,
    revoke: bool,
) -> None:
    if not worker.busy:
        worker.heard_at = now
    # The planner takes candidates strictly from the front.
    for sequence in dealt[: len(decision.start)]:
        pool.waiting.remove(sequence)
        sequence.place(worker.link, now)
        worker.sequences[sequence.sequence_id] = sequence
        submission = sequence.request.submission
        new = NewSequence(
            sequence_id=sequence.sequence_id,
            token_ids=tuple(sequence.token_ids),
            max_length=sequence.max_length,
            stop_token_ids=submission.stop_token_ids,
            sampling=submission.sampling,
            prefix_salt=submission.prefix_salt,
        )
        actions.append(ToWorker(worker.link, new))
    plan_seq, revoke_through = worker.window.send(decision.num_steps, dict(decision.chunks), revoke=revoke)
    for sequence_id in decision.join:
        sequence = worker.sequences[sequence_id]
        sequence.join_first = sequence.join_first or plan_seq
        sequence.join_last = plan_seq
    reserve(worker)
    # The promise that keeps a worker from running out inside a plan.
    assert worker.ledger.available >= 0 or len(worker.ledger) == 1
    plan = Plan(plan_seq, decision.num_steps, decision.chunks, decision.join, revoke_through)
    actions.append(ToWorker(worker.link, plan))


def reserve(worker: Worker) -> None:
    """Sets every running sequence's reservation to the worst case of the plans now in flight."""
    worst_since: dict[int, int] = {}
    for sequence_id, sequence in worker.sequences.items():
        if sequence.state not in RUNNING:
            # Until it is released it may run on in the plans it knows: its reservation stands.
            continue
        worst = worst_since.get(sequence.join_first)
        if worst is None:
            worst = worst_since[sequence.join_first] = worker.window.steps_worst(sequence.join_first)
        worker.ledger.reserve(sequence_id, min(len(sequence.token_ids) + worst, sequence.max_length))


def _preempt(worker: Worker, victims: tuple[int, ...], actions: list[Action]) -> None:
    for sequence_id in victims:
        sequence = worker.sequences[sequence_id]
        sequence.become(State.PREEMPTED)
        sequence.preemptions += 1
        actions.append(
            Log("preempted", {"request_id": sequence.request.submission.request_id, "sequence_id": sequence_id})
        )
    actions.append(ToWorker(worker.link, Release(victims, ReleaseCause.PREEMPT)))
