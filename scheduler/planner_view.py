"""What the decisions see of a worker: its sequences as plain numbers, as the next plan will find them.

Reads the state; decides nothing. Runs over every sequence for every plan, so it is written to be fast.
"""

from __future__ import annotations

from collections.abc import Container

from .credits import blocks_for
from .fair_order import aged
from .first_step import Prefill
from .lifecycle import RUNNING, State
from .planner import Running
from .preemption import Holder, first_to_go
from .sequence import Sequence
from .window import Expected
from .worker import Worker

_NEVER = 1 << 62


def lone(worker: Worker) -> bool:
    """Whether all there is on the worker is one sequence, or one with those that wait to be forked from it."""
    first = next(iter(worker.sequences.values()), None)
    return first is not None and len(worker.sequences) == len((first.leader or first).group) and not worker.resting


def running_view(worker: Worker, *, revoking: bool, max_steps: int = 0) -> Running:
    """The worker's running sequences; `revoking`: the next plan ends all those in flight; `max_steps` as in Running."""
    window = worker.window
    expected = window.expected(revoking=revoking)
    ahead = sum(plan.num_steps for plan in expected)
    # Most joined before the oldest plan in flight: these all have the same worst case.
    oldest, worst_of_all = window.oldest_seq, window.steps_worst(0)
    decode, prefill = State.DECODE, State.PREFILL
    ids: list[int] = []
    tokens: list[int] = []
    max_lengths: list[int] = []
    prefills: list[Prefill] = []
    decoding = last_end = context = 0
    first_end = _NEVER
    # Once over all of them: to look at each of hundreds is what takes the time.
    for sequence in worker.sequences.values():
        state = sequence.state
        if state is not decode and state is not prefill:
            continue
        length, most, since = len(sequence.token_ids), sequence.max_length, sequence.join_first
        worst = length + (worst_of_all if since <= oldest else window.steps_worst(since))
        ids.append(sequence.sequence_id)
        tokens.append(worst if worst < most else most)
        max_lengths.append(most)
        left = most - length
        if state is decode and length > sequence.prefill_length:
            left -= ahead
            decoding += 1
        elif sequence.leader is not None:
            # It decodes as soon as its leader does, and is counted there.
            continue
        else:
            view, gained = _prefill_view(worker, sequence, expected, revoking=revoking)
            if view is not None:
                prefills.append(view)
                continue
            left -= gained
            decoding += 1 + len(sequence.forks)
        context += length
        if left > last_end:
            last_end = left
        if 0 < left < first_end:
            first_end = left
    return Running(
        sequence_ids=ids,
        tokens=tokens,
        max_lengths=max_lengths,
        reserved=worker.ledger.reserved_together(ids),
        prefills=prefills,
        decoding=decoding,
        last_end=last_end,
        first_end=0 if first_end == _NEVER else first_end,
        lone=len(ids) == len(worker.sequences) and lone(worker) and not _forking(worker),
        max_steps=max_steps,
        context_tokens=context,
    )


def _prefill_view(
    worker: Worker, sequence: Sequence, expected: list[Expected], *, revoking: bool
) -> tuple[Prefill | None, int]:
    """What the sequence still needs before it decodes, None if nothing; and the tokens that plans in flight give it."""
    last = sequence.join_last
    joined = last > 0 and not worker.window.may_not_start(last, revoking=revoking)
    gained = 0
    if sequence.state is State.DECODE:
        # Back from host memory, and no token since.
        left = 0
        if joined:
            return None, sum(plan.num_steps for plan in expected if plan.plan_seq >= last)
    else:
        left = sequence.prefill_length - sequence.computed
        for plan in expected:
            left -= plan.chunks.get(sequence.sequence_id, 0)
            if left <= 0:
                gained += plan.num_steps
        if left <= 0:
            return None, gained
    steps_left = sequence.max_length - len(sequence.token_ids)
    before_end = worker.tokens_before_end(sequence) if sequence.forks else None
    lent = 0 if before_end is None else len(sequence.forks)
    traffic_class = sequence.request.traffic_class
    view = Prefill(
        sequence.sequence_id,
        sequence.place_there,
        left,
        steps_left,
        joined,
        lent,
        before_end or 0,
        traffic_class.name,
        traffic_class.max_prefill_tokens,
        sequence.owed_turn,
    )
    return view, 0


def _forking(worker: Worker) -> bool:
    """Whether several are there, and a plan in flight may complete the prefill that they wait for."""
    first = next(iter(worker.sequences.values()))
    return len(worker.sequences) > 1 and worker.window.steps_worst(first.join_first) > 0


def holders(worker: Worker, beyond: Container[int] = ()) -> list[Holder]:
    """The worker's running and resting sequences as those of whom some must give way; groups as one. `beyond` are ids
    of those that have grown beyond their tenants' shares."""
    running = [
        _holder(worker, each, beyond) for each in worker.sequences.values() if each.state in RUNNING and not each.leader
    ]
    return running + resting_holders(worker)


def resting_holders(worker: Worker) -> list[Holder]:
    """Those of them that rest. Never shielded: others can use the blocks now."""
    return [
        Holder(
            sequence_ids=(each.sequence_id,),
            rank=each.request.traffic_class.rank,
            whose=each.request.whose,
            priority=each.request.submission.priority,
            claim=each.turn,
            beyond_share=False,
            shielded=False,
            lost_tokens=len(each.token_ids) - 1,
            blocks=each.kept_blocks,
            decoding=True,
            resting=True,
        )
        for each in worker.resting
    ]


def yielders(worker: Worker, now: float) -> list[Holder]:
    """Those of them that make room for lower ranks, the first to go first. Not one that has waited as long as its class
    lets others go ahead: it would come straight back, ahead of whom it made room for."""
    return first_to_go(
        _holder(worker, each)
        for each in worker.sequences.values()
        if each.request.traffic_class.preemptible
        and each.state in RUNNING
        and each.leader is None
        and not aged(each.request, now)
    )


def _holder(worker: Worker, leader: Sequence, beyond: Container[int] = ()) -> Holder:
    length, traffic_class = len(leader.token_ids), leader.request.traffic_class
    decoding = leader.state is State.DECODE
    size = worker.info.block_size
    blocks = blocks_for(min(length + 1, leader.max_length), size)
    return Holder(
        sequence_ids=tuple(each.sequence_id for each in leader.group),
        rank=traffic_class.rank,
        whose=leader.request.whose,
        priority=leader.request.submission.priority,
        claim=leader.turn,
        beyond_share=leader.sequence_id in beyond,
        shielded=leader.shielded,
        lost_tokens=length - 1 if decoding else leader.computed,
        blocks=blocks + len(leader.forks) * (blocks - length // size),
        decoding=decoding,
    )
