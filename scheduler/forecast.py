"""When the first token of a new request will come: a forecast from what is ahead of it and what steps take.

Pure; decides nothing. What is ahead passes like a fluid, in few moves that grow longer the further ahead they lie: no
waiting sequence is looked at by itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import ceil, inf

from .bounds import Bound
from .lane import Lane
from .newcomer import Newcomer
from .outlook import FirstToken, Regime
from .output_length import LeaveRates
from .placement import COMPUTED_WEIGHT, SEQUENCE_WEIGHT
from .policy import LEAST_PREFILL_TOKENS, Policy, paced
from .preemption import Holder, choose_yielding
from .surroundings import Surroundings
from .worker import Worker

# Moves of the fluid; the first ones are single steps, since there it is none yet.
MAX_MOVES = 40
SINGLE_STEPS = 4
# Part of those that run that may leave in a move, or part of the way so far that a move may add: how fast things go
# depends on how many run.
MOVE_SHARE = 0.25
# What lies further ahead is as good as never, and nothing is there at once.
LONGEST_SECONDS = 3600.0
LEAST_SECONDS = 1e-6


def forecast(
    workers: Mapping[int, tuple[Worker, LeaveRates]],
    newcomer: Newcomer,
    around: Surroundings,
    bounds: Sequence[Bound],
    policy: Policy,
    now: float,
) -> FirstToken | None:
    """When the newcomer gets its first token, if nobody comes who is served before it.

    `workers` are by link those that may run it, and how those that run there leave. None if there is no worker, or one
    of which it is not known what steps take.
    """
    if not workers or any(worker.step_times.predict(1, 0) is None for worker, _ in workers.values()):
        return None
    lanes = [Lane.of(worker, leaving, newcomer, around, policy, now) for worker, leaving in workers.values()]
    rates = {lane.worker.link: lane.tokens_per_second() for lane in lanes}
    mean = around.tokens / around.sequences if around.sequences else max(1.0, newcomer.prompt_tokens)
    passing = _passing(around, sum(lane.pending for lane in lanes), sum(rates.values()))
    sequences, tokens = around.sequences + passing / mean, around.tokens + passing
    bound_s = _until_bounds_let(bounds, lanes, rates, newcomer, around)
    lane, part = _choose(lanes, rates, newcomer, tokens)
    soonest_s = min(_soonest_seconds(each, newcomer) for each in lanes)
    found = _follow(lane, newcomer, sequences * part, tokens * part, bound_s, around.inflow / len(lanes))
    return replace(found, soonest_s=soonest_s)


def _until_bounds_let(
    bounds: Sequence[Bound],
    lanes: Sequence[Lane],
    rates: Mapping[int, float],
    newcomer: Newcomer,
    around: Surroundings,
) -> float:
    """Seconds until there is room for the newcomer under all of them, whatever else the workers have room for; 0 if
    there is."""
    if not any(bound.ends for bound in bounds):
        return 0.0
    inflow = around.inflow / len(lanes)
    step_s = {}
    for lane in lanes:
        alone_s = lane.step_seconds(0.0)
        step_s[lane.worker.link] = max(LEAST_SECONDS, lane.step_seconds(min(lane.cap(), inflow * alone_s)))
    prompt_s = newcomer.prompt_tokens * len(lanes) / sum(rates.values())
    return min(LONGEST_SECONDS, max(bound.seconds(step_s, prompt_s) for bound in bounds))


def _passing(around: Surroundings, pending: float, rate: float) -> float:
    """Tokens that come after the newcomer and pass it; workers have `pending` tokens and compute `rate` in a second."""
    left = rate - around.overtaking
    passing = (around.tokens + pending) / left * around.overtaking if left > 0.0 else inf
    return min(passing, around.overtaking_most)


def _choose(lanes: Sequence[Lane], rates: Mapping[int, float], newcomer: Newcomer, tokens: float) -> tuple[Lane, float]:
    """Where the newcomer will go, and the part of what waits before it that goes there, too."""
    if len(lanes) == 1:
        return lanes[0], 1.0
    if not tokens:
        able = [lane for lane in lanes if lane.steps_for_places(0.0, 0.0, newcomer) <= 0.0] or lanes

        def cost(lane: Lane) -> tuple[float, float]:
            # As placement has it.
            computed = COMPUTED_WEIGHT * newcomer.computed[lane.worker.link]
            return computed + lane.pending + SEQUENCE_WEIGHT * lane.running, lane.held

        return min(able, key=cost), 0.0
    # The queue goes to all workers that are done with what they have before it is over; they end together.
    order = sorted(lanes, key=lambda lane: lane.pending / rates[lane.worker.link])
    total = total_rate = 0.0
    for lane in order:
        rate = rates[lane.worker.link]
        if total_rate and lane.pending / rate > (tokens + total) / total_rate:
            break
        total += lane.pending
        total_rate += rate
    first = order[0]
    part = (tokens + total) / total_rate * rates[first.worker.link] - first.pending
    return first, min(1.0, part / tokens)


def _follow(
    lane: Lane, newcomer: Newcomer, sequences: float, tokens: float, bound_s: float, inflow: float
) -> FirstToken:
    """Lets what is ahead pass, then the newcomer, which starts after `bound_s` seconds at the soonest."""
    mean = tokens / sequences if sequences else 1.0
    regime = Regime.PREFILL if lane.pending or sequences else Regime.IDLE
    queue_s, room, steps, place_s = 0.0, 0.0, 1.0, 0.0
    victims = _who_yields(lane, newcomer, sequences, tokens)
    for move in range(MAX_MOVES):
        cap = lane.cap(sequences * mean)
        work = (lane.pending + sequences * mean) / cap
        places = lane.steps_for_places(sequences, sequences * mean, newcomer)
        if places > work:
            regime = Regime.PLACE
        if move >= SINGLE_STEPS:
            steps = max(1.0, min(2 * steps, MOVE_SHARE * max(1.0 / lane.leaving.later, lane.passed)))
        if victims and places > work:
            until_due = (newcomer.due_s - lane.step_s - queue_s) / lane.step_seconds(min(cap, lane.pending))
            if until_due <= 0.0:
                # They go with the step in which they are told.
                place_s = min(LONGEST_SECONDS, queue_s + min(places, 1e9) * lane.step_seconds(min(cap, lane.pending)))
                started, seconds = lane.run(1.0, sequences, mean)
                sequences -= started
                queue_s += seconds
                lane.make_room(victims)
                victims = ()
                continue
            steps = min(steps, max(1.0, ceil(until_due)))
        if max(work, places) <= steps or move == MAX_MOVES - 1:
            if places > work:
                queue_s += min(places, 1e9) * lane.step_seconds(work / places * cap)
                room = cap
            else:
                # Its own prefill begins in the step in which that of others ends.
                queue_s += work // 1.0 * lane.step_seconds(cap)
                room = cap * (1.0 - work % 1.0)
            break
        started, seconds = lane.run(steps, sequences, mean)
        sequences -= started
        queue_s += seconds
    queue_s = min(queue_s, LONGEST_SECONDS)
    if bound_s > 0.0:
        regime = Regime.PLACE
    if bound_s > queue_s:
        queue_s, room = bound_s, lane.cap()
    if regime is not Regime.PLACE and not lane.owed_turn:
        # Those who come later fill up the steps that it takes.
        lane.behind += inflow * (lane.step_s + queue_s)
    own_s = max(_own_seconds(lane, room), LEAST_SECONDS)
    return FirstToken(regime, lane.step_s, queue_s, own_s, _alone_seconds(lane, newcomer), place_s)


def _soonest_seconds(lane: Lane, newcomer: Newcomer) -> float:
    """How long it takes at least until there is a slot for the newcomer; 0 if that is not known."""
    if lane.yielders and newcomer.due_s < inf:
        return 0.0
    if newcomer.members <= lane.free_slots or len(lane.known) < lane.running:
        return 0.0
    return lane.known[min(ceil(newcomer.members - lane.free_slots), len(lane.known)) - 1] * lane.step_seconds(0.0)


def _who_yields(lane: Lane, newcomer: Newcomer, sequences: float, tokens: float) -> tuple[Holder, ...]:
    """Who makes room for it and those before it as soon as its promise is at stake; nobody if that is not enough."""
    if not lane.yielders or newcomer.due_s == inf:
        return ()
    slots = ceil(sequences) + newcomer.members - int(lane.free_slots)
    blocks = (
        tokens / lane.worker.info.block_size
        + sequences
        + newcomer.blocks(lane.worker.info.block_size)
        - lane.free_blocks
    )
    return choose_yielding(lane.yielders, newcomer.rank, newcomer.claim, slots, ceil(blocks)) or ()


def _own_seconds(lane: Lane, room: float) -> float:
    """Of the steps with the newcomer's own prefill; in the first others have left it `room`."""
    tokens, cap = lane.own, lane.cap()
    if tokens <= room:
        beside = lane.behind if lane.owed_turn else cap - room + lane.behind
        return lane.step_seconds(min(max(0.0, cap - tokens), beside), tokens)
    seconds, tokens = lane.step_seconds(cap - room, room), tokens - room
    while lane.paced and tokens > LEAST_PREFILL_TOKENS and tokens + lane.behind < 2 * cap:
        chunk = min(tokens, paced(tokens + lane.behind))
        seconds, tokens = seconds + lane.step_seconds(0.0, chunk), tokens - chunk
    full, rest = divmod(tokens, cap)
    seconds += full * lane.step_seconds(0.0, cap)
    return seconds + (lane.step_seconds(min(cap - rest, lane.behind), rest) if rest else 0.0)


def _alone_seconds(lane: Lane, newcomer: Newcomer) -> float:
    """Of a prefill on an empty worker."""
    times, most = lane.worker.step_times, lane.worker.limits.max_num_batched_tokens
    full, rest = divmod(newcomer.computed[lane.worker.link], most)
    seconds = full * (times.predict(most, 0) or 0.0)
    return seconds + ((times.predict(rest, 0) or 0.0) if rest else 0.0)
