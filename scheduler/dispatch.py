"""Turns the state of a worker into the planner's arguments, and its decisions into commands.

Chooses when to plan and whether to revoke; what a plan holds is the planner's choice.
"""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf

from .actions import Action, Log, NewSequence, Plan, Release, ReleaseCause, Resume, ToWorker
from .first_step import Candidate
from .kv_shares import KvShares
from .lifecycle import State
from .placement import NOTHING_DEALT, CachedTokens, cached_tokens, deal
from .planner import NOTHING, Credits, Decision, Forecast, Running, make_plan
from .planner_view import holders, lone, resting_holders, running_view
from .policy import Policy
from .pool import Pool
from .preemption import Holder, choose_victims, prefer_swap
from .sequence import Sequence
from .worker import Worker

# Two, so that the worker has its next plan before it ends one.
PLANS_AHEAD = 2
# Steps of a plan from which on there is time to make the second one when the first step is reported.
UNHURRIED_STEPS = 2
# Revoked plans pile up while the worker is inside a long step; each widens the worst case that credits must cover.
MAX_PLANS_IN_FLIGHT = 8


def dispatch(pool: Pool, policy: Policy, now: float, lookup: CachedTokens = cached_tokens) -> list[Action]:
    """Sends every plan and preemption that can be sent to the pool's workers.

    `lookup` says how much of a sequence a worker's prefix cache has.
    """
    actions: list[Action] = []
    dealt = deal(pool, policy, now, lookup) if pool.crowded else NOTHING_DEALT
    for worker in pool.workers.values():
        newcomers = dealt.newcomers.get(worker.link, [])
        if worker.link in dealt.yielding:
            _release(pool, worker, dealt.yielding[worker.link], actions, made_room=True)
        wanting = worker.window.plans_ahead < PLANS_AHEAD and len(worker.sequences) > 0
        if (newcomers or wanting) and not worker.dropped:
            _dispatch_worker(pool, worker, newcomers, policy, now, actions, awaited=dealt.awaited)
    return actions


def _dispatch_worker(
    pool: Pool,
    worker: Worker,
    dealt: list[Sequence],
    policy: Policy,
    now: float,
    actions: list[Action],
    *,
    awaited: frozenset[str],
) -> None:
    window = worker.window
    # Otherwise the newcomer waits for at most one step anyway.
    if dealt and window.steps_ahead > 1 and len(window) < MAX_PLANS_IN_FLIGHT:
        running = running_view(worker, revoking=True, max_steps=_most_steps(pool, worker, dealt))
        decision = _decide(pool, worker, running, dealt, policy, awaited)
        if decision.start:
            _send(pool, worker, running, dealt, decision, now, actions, revoke=True)
            dealt = _left(dealt)
            if decision.num_steps >= UNHURRIED_STEPS:
                # The next newcomer would revoke a second plan before it began. The first step's report brings it.
                return
    while window.plans_ahead < PLANS_AHEAD and len(window) < MAX_PLANS_IN_FLIGHT:
        running = running_view(worker, revoking=False, max_steps=_most_steps(pool, worker, dealt))
        decision = _decide(pool, worker, running, dealt, policy, awaited)
        if decision.shortage:
            victims = choose_victims(holders(worker, KvShares(pool).beyond()), decision.shortage)
            _release(pool, worker, victims, actions, made_room=False)
        if not decision.num_steps:
            return
        _send(pool, worker, running, dealt, decision, now, actions, revoke=False)
        if decision.lacking and worker.resting:
            # Who runs does not make do with short plans for the sake of those that nobody waits for.
            lacking = decision.lacking - worker.leaving_blocks
            _release(pool, worker, choose_victims(resting_holders(worker), lacking), actions, made_room=False)
        dealt = _left(dealt)


def _left(dealt: list[Sequence]) -> list[Sequence]:
    """Those that have not started, and did not have to give up the blocks that they have there."""
    return [each for each in dealt if each.state is State.QUEUED]


def _most_steps(pool: Pool, worker: Worker, dealt: list[Sequence]) -> int:
    """Steps of a plan that the classes allow of which something runs there or may start; 0: any number."""
    limits = {pool.waiting.classes[name].traffic_class.max_steps for name in worker.class_sizes}
    limits.update(each.request.traffic_class.max_steps for each in dealt)
    return min(limits - {0}, default=0)


def _decide(
    pool: Pool, worker: Worker, running: Running, dealt: list[Sequence], policy: Policy, awaited: frozenset[str]
) -> Decision:
    worker.context_tokens = running.context_tokens
    if not len(running) and not dealt:
        return NOTHING
    account = Credits(
        available=worker.ledger.available,
        sequences=len(worker.ledger),
        settled=not len(worker.window) and len(running) == len(worker.sequences),
        resting=len(worker.resting),
    )
    candidates = [
        Candidate(
            each.sequence_id,
            each.place_there,
            len(each.token_ids),
            each.max_length,
            1 + len(each.forks),
            each.kept_on is not None,
            each.kept_blocks if each.resting else 0,
            each.request.traffic_class.name,
            each.request.traffic_class.max_prefill_tokens,
            each.owed_turn,
        )
        for each in dealt
    ]
    forecast = Forecast(
        quiet_steps=worker.pace.quiet_steps,
        step_seconds=worker.step_times.predict(running.decoding, worker.context_tokens),
        mixed_tokens=worker.mixed_tokens(policy.max_mixed_step_s, running.decoding),
        crowded=pool.crowded,
        awaited=awaited,
        rest_waited=worker.owed_waits.over(worker.steps),
    )
    return make_plan(running, candidates, account, worker.limits, policy, forecast)


def _send(
    pool: Pool,
    worker: Worker,
    running: Running,
    dealt: list[Sequence],
    decision: Decision,
    now: float,
    actions: list[Action],
    *,
    revoke: bool,
) -> None:
    if not worker.window:
        worker.heard_at = now
    # Every plan in flight may run to its end. This is what `reserve` would find, from numbers that are at hand.
    steps, ledger = decision.num_steps, worker.ledger
    ledger.reserve_each(running.sequence_ids, running.tokens_after(steps))
    started = set(decision.start)
    for sequence in (each for each in dealt if each.sequence_id in started):
        pool.waiting.start(sequence)
        if sequence.kept_on is None:
            _start(worker, sequence, now, actions)
        else:
            _resume(worker, sequence, actions)
        for each in sequence.group:
            ledger.reserve(each.sequence_id, min(len(each.token_ids) + steps, each.max_length))
    plan_seq, revoke_through = worker.window.send(steps, dict(decision.chunks), revoke=revoke)
    if decision.start or revoke_through:
        worker.pace.disturb()
    if decision.rest_waits:
        worker.owed_waits.note(worker.steps)
    for sequence_id in decision.join:
        for sequence in worker.sequences[sequence_id].group:
            sequence.join_first = sequence.join_first or plan_seq
            sequence.join_last = plan_seq
    # The promise that keeps a worker from running out inside a plan.
    assert ledger.available >= 0 or lone(worker)
    plan = Plan(plan_seq, steps, decision.chunks, decision.join, revoke_through)
    actions.append(ToWorker(worker.link, plan))


def _start(worker: Worker, sequence: Sequence, now: float, actions: list[Action]) -> None:
    """Sends a sequence whole, with those that will be forked from it."""
    worker.expect(sequence)
    for each in sequence.group:
        each.place(worker.link, now)
        worker.put(each)
        if each is not sequence:
            worker.ledger.open_fork(each.sequence_id, len(sequence.token_ids))
    submission = sequence.request.submission
    new = NewSequence(
        sequence_id=sequence.sequence_id,
        token_ids=tuple(sequence.token_ids),
        max_length=sequence.max_length,
        stop_token_ids=submission.stop_token_ids,
        sampling=sequence.sampling_left,
        prefix_salt=submission.prefix_salt,
        forks=tuple((fork.sequence_id, fork.sampling.seed) for fork in sequence.forks),
    )
    actions.append(ToWorker(worker.link, new))


def _resume(worker: Worker, sequence: Sequence, actions: list[Action]) -> None:
    """Lets a sequence go on where the worker keeps its KV cache: one that rests by its join alone. Of one that is in
    host memory nothing counts as held until its first token says that the blocks are taken."""
    resting, blocks = sequence.resting, sequence.kept_blocks
    sequence.resume(worker.link)
    del worker.kept[sequence.sequence_id]
    worker.put(sequence)
    if resting:
        worker.ledger.reopen(sequence.sequence_id, blocks)
    else:
        actions.append(ToWorker(worker.link, Resume((sequence.sequence_id,))))


def reserve(worker: Worker) -> None:
    """Sets every running sequence's reservation to the worst case of the plans now in flight.

    Those that have been told to go may run on in the plans they know until they are released: theirs stands.
    """
    running = running_view(worker, revoking=False)
    worker.ledger.reserve_each(running.sequence_ids, running.tokens)


def _release(
    pool: Pool, worker: Worker, victims: SequenceOf[Holder], actions: list[Action], *, made_room: bool
) -> None:
    """Tells them to give way: to one that waits, if `made_room`, else for want of blocks to grow by."""
    if not victims:
        return
    for victim in victims:
        if victim.resting:
            pool.rouse(worker, worker.kept[victim.sequence_ids[0]])
    leaving: dict[ReleaseCause, list[int]] = {ReleaseCause.PREEMPT: [], ReleaseCause.SWAP: []}
    host_blocks = worker.info.num_swap_blocks - worker.swap_blocks_used
    for victim in victims:
        held = sum(map(worker.ledger.held, victim.sequence_ids))
        swap = prefer_swap(
            decoding=victim.decoding,
            num_blocks=held,
            free_host_blocks=host_blocks,
            swap_block_s=worker.info.swap_block_ns * 1e-9,
            recompute_s=worker.step_times.seconds_of(victim.lost_tokens),
        )
        host_blocks -= held if swap else 0
        leaving[ReleaseCause.SWAP if swap else ReleaseCause.PREEMPT] += victim.sequence_ids
        for sequence_id in victim.sequence_ids:
            sequence = worker.sequences[sequence_id]
            sequence.become(State.PREEMPTED)
            sequence.preemptions += 1
            sequence.length_at_preemption = len(sequence.token_ids)
            request_id = sequence.request.submission.request_id
            fields = {
                "request_id": request_id,
                "sequence_id": sequence_id,
                "swap": swap,
                "made_room": made_room,
                "rested": victim.resting,
            }
            actions.append(Log("preempted", fields))
    worker.pace.disturb()
    actions += [ToWorker(worker.link, Release(tuple(ids), cause)) for cause, ids in leaving.items() if ids]
