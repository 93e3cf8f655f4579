"""When the first token of a new request will come: a forecast from what is ahead of it and what steps take.

Pure; decides nothing. What is ahead passes like a fluid, in few moves that grow longer the further ahead they lie: no
waiting sequence is looked at by itself.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil, exp, inf

from .bounds import Bound
from .credits import blocks_for
from .outlook import FirstToken, Regime
from .output_length import LeaveRate, LeaveRates
from .placement import COMPUTED_WEIGHT, SEQUENCE_WEIGHT
from .policy import LEAST_PREFILL_TOKENS, Policy, paced, prefill_cap
from .preemption import Holder, choose_yielding
from .room import kept_of
from .surroundings import Surroundings
from .worker import Worker

# Moves of the fluid; the first ones are single steps, since there it is none yet.
MAX_MOVES = 40
SINGLE_STEPS = 4
# Part of those that run that may leave in a move, or part of the way so far that a move may add: how fast things go
# depends on how many run.
MOVE_SHARE = 0.25
# With so few left nobody is there: the last one leaves by chance after 1 / chance steps, when 1 / e is left of it.
ALL_LEFT = exp(-1.0)
# What lies further ahead is as good as never, and nothing is there at once.
LONGEST_SECONDS = 3600.0
LEAST_SECONDS = 1e-6


@dataclass(frozen=True, slots=True)
class Newcomer:
    """A request that asks to be let in. `computed`: for each worker (by link) that may run it, the tokens of its prompt
    that the worker's prefix cache does not have."""

    prompt_tokens: int
    members: int
    rank: int
    claim: tuple[float, int]
    computed: Mapping[int, int]
    # Seconds until its promise is at stake, so that those of higher ranks make room for it; infinite: never.
    due_s: float = inf


@dataclass(slots=True)
class _Lane:
    """A worker, as the fluid passes it. Counts are fractions, since nobody knows who leaves when."""

    worker: Worker
    policy: Policy
    # Seconds until the step that runs is over.
    step_s: float
    # Prefill tokens there beyond those of that step: computed before the newcomer's, and after. The first are of so
    # many sequences.
    pending: float
    behind: float
    arriving: float
    decoding: float
    # Of prompts, the part that is to be computed.
    fresh: float
    free_slots: float
    # Blocks with a claim.
    held: float
    leaving: LeaveRate
    owed_turn: bool
    paced: bool
    # Of the newcomer's own prompt.
    own: float
    # After how many steps from now those leave whose ends are known, the first one first; others leave by chance.
    known: Sequence[int]
    # Those that may make room, the first to go first.
    yielders: Sequence[Holder]
    # Steps that have passed.
    passed: float = 0.0
    # Most tokens of a step that was passed: a worker's first steps grow, each twice as large as those before it.
    largest: float = 0.0

    @property
    def running(self) -> float:
        """All that are there."""
        return self.decoding + self.arriving

    @property
    def free_blocks(self) -> float:
        """Beyond the one that everybody keeps to grow by."""
        return self.worker.info.num_blocks - self.held - self.running

    @property
    def freed_blocks(self) -> float:
        """What one that leaves frees for newcomers. It has half an output more than the average, and the others grow by
        a whole one in the time."""
        growth = 0.5 / self.leaving.later / self.worker.info.block_size
        return max(1.0, self.held / max(1.0, self.running) - growth)

    def cap(self, waiting: float = 0.0) -> float:
        """Most prefill tokens of a step; `waiting` are those that come before the newcomer's from the queue."""
        most = self.worker.limits.max_num_batched_tokens - self.decoding
        if self.decoding < 1.0:
            return most
        within = self.worker.step_times.tokens_within(
            self.policy.max_mixed_step_s, self.worker.context_tokens, int(self.largest)
        )
        mixed = None if within is None else within - int(self.decoding)
        most = max(1.0, min(most, prefill_cap(self.policy, mixed)))
        if self.paced:
            most = min(most, paced(self.pending + waiting + self.own + self.behind))
        return most

    def step_seconds(self, prefill: float, own: float = 0.0) -> float:
        """Of a step with so many tokens of prompts, and those that have to be computed of the newcomer's own."""
        context = self.worker.context_tokens if self.decoding >= 1.0 else 0
        return self.worker.step_times.predict(int(self.decoding + self.fresh * prefill + own), context) or 0.0

    def tokens_per_second(self) -> float:
        """Prefill while there is enough of it."""
        cap = self.cap(inf)
        return cap / max(self.step_seconds(cap), 1e-9)

    def steps_for_places(self, sequences: float, tokens: float, newcomer: Newcomer) -> float:
        """Steps until so many sequences of so many tokens, and the newcomer, have had a place."""
        if self.running < ALL_LEFT and sequences <= 0.0:
            # An empty worker takes whatever was admitted.
            return 0.0
        blocks = tokens / self.worker.info.block_size + sequences - self.free_blocks
        blocks += _own_blocks(self.worker, newcomer)
        # When all have left there is room for one, whatever their blocks were taken for.
        ends = max(
            sequences + newcomer.members - self.free_slots, min(blocks / self.freed_blocks, sequences + self.running)
        )
        return self._steps_for_ends(ends) if ends > 0.0 else 0.0

    def run(self, steps: float, waiting: float, mean: float) -> tuple[float, float]:
        """Runs so many steps; `waiting` sequences of `mean` tokens come as they find a place. Returns how many started,
        and the seconds."""
        cap, blocks, freed = self.cap(waiting * mean), mean / self.worker.info.block_size, self.freed_blocks
        leave = self._by_chance() * self.leaving.now * steps
        leave += bisect_right(self.known, self.passed + steps) - bisect_right(self.known, self.passed)
        self.passed += steps
        # In a long move places are taken as they become free.
        again = leave if steps > 1.0 else 0.0
        places = min(self.free_slots + again, (self.free_blocks + again * (freed + 1.0)) / (blocks + 1.0))
        done = min(self.pending, cap * steps)
        starts = max(0.0, min(waiting, (cap * steps - done) / mean, places))
        prefill = (done + starts * mean) / steps
        seconds = steps * self.step_seconds(prefill)
        self.largest = max(self.largest, prefill + self.decoding)
        arrived = self.arriving * done / self.pending if self.pending else self.arriving
        leave = min(leave, self.decoding + arrived + starts)
        self.pending -= done
        self.arriving -= arrived
        self.decoding += arrived + starts - leave
        self.free_slots += leave - starts
        self.held = self.held + starts * blocks - leave * freed if self.running >= ALL_LEFT else 0.0
        now, later = self.leaving
        self.leaving = LeaveRate(now + (later - now) * min(1.0, later * steps), later)
        return starts, seconds

    def make_room(self, victims: Sequence[Holder]) -> None:
        """These go."""
        slots = sum(each.slots for each in victims)
        self.free_slots += slots
        self.held = max(0.0, self.held - sum(each.blocks for each in victims))
        self.decoding = max(0.0, self.decoding - slots)

    def _by_chance(self) -> float:
        """Of those that decode, the ones that may leave with any step."""
        return max(0.0, self.decoding - (len(self.known) - bisect_right(self.known, self.passed)))

    def _steps_for_ends(self, ends: float) -> float:
        """Steps until so many more have left."""
        first, in_a_step = bisect_right(self.known, self.passed), self._by_chance() * self.leaving.now

        def left(place: int) -> float:
            return in_a_step * (self.known[place] - self.passed) + place - first + 1

        # Of those whose ends are known, the first with which there are enough.
        place = bisect_left(range(len(self.known)), ends, lo=first, key=left)
        steps = (ends - (place - first)) / in_a_step if in_a_step > 0.0 else inf
        return min(steps, self.known[place] - self.passed) if place < len(self.known) else steps


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
    lanes = [_lane(worker, leaving, newcomer, around, policy, now) for worker, leaving in workers.values()]
    rates = {lane.worker.link: lane.tokens_per_second() for lane in lanes}
    mean = around.tokens / around.sequences if around.sequences else max(1.0, newcomer.prompt_tokens)
    passing = _passing(around, sum(lane.pending for lane in lanes), sum(rates.values()))
    sequences, tokens = around.sequences + passing / mean, around.tokens + passing
    bound_s = _until_bounds_let(bounds, lanes, rates, newcomer, around)
    lane, part = _choose(lanes, rates, newcomer, tokens)
    soonest_s = min(_soonest_seconds(each, newcomer) for each in lanes)
    found = _follow(lane, newcomer, sequences * part, tokens * part, bound_s, around.inflow / len(lanes))
    return replace(found, soonest_s=soonest_s)


def _lane(
    worker: Worker, leaving: LeaveRates, newcomer: Newcomer, around: Surroundings, policy: Policy, now: float
) -> _Lane:
    in_step = sum(sum(plan.chunks.values()) for plan in worker.window.expected(revoking=True))
    pending = behind = 0
    for place, tokens, _ in worker.pending_prefills():
        if place < newcomer.claim and not around.owed_turn:
            pending += tokens
        else:
            behind += tokens
    running, rate, since = len(worker.sequences), leaving.all, worker.steps - leaving.steps
    known = tuple(steps - since for steps in leaving.known if steps > since)
    arriving = sum(len(each.group) for each in worker.arriving.values())
    step_s = 0.0
    if len(worker.window):
        computed = running - arriving + int(around.fresh * in_step)
        seconds = worker.step_times.predict(computed, worker.context_tokens) or 0.0
        step_s = max(0.0, worker.heard_at + seconds - now)
    kept_slots = kept_blocks = 0
    if around.paced:
        kept_slots = kept_of(worker.limits.max_running, newcomer.members)
        kept_blocks = kept_of(worker.info.num_blocks, _own_blocks(worker, newcomer))
    return _Lane(
        worker=worker,
        policy=policy,
        step_s=step_s,
        pending=max(0.0, float(pending - in_step)),
        # Beside one to whom something is owed half of the others' is computed.
        behind=behind / 2 if around.owed_turn else behind,
        arriving=arriving,
        decoding=running - arriving,
        fresh=around.fresh,
        free_slots=max(0, worker.free_slots - kept_slots),
        # Those that rest give up theirs.
        held=min(
            worker.info.num_blocks,
            worker.info.num_blocks - worker.ledger.available - worker.resting_blocks + kept_blocks,
        ),
        # Where all ends are known, those that start in their places leave as any.
        leaving=LeaveRate(rate.now * running / (running - len(known)), rate.later)
        if running > len(known)
        else LeaveRate(rate.later, rate.later),
        owed_turn=around.owed_turn,
        paced=around.paced,
        own=newcomer.computed[worker.link],
        known=known,
        yielders=leaving.yielders,
    )


def _own_blocks(worker: Worker, newcomer: Newcomer) -> int:
    """With which it can start there."""
    return blocks_for(newcomer.prompt_tokens + 1, worker.info.block_size) + newcomer.members - 1


def _until_bounds_let(
    bounds: Sequence[Bound],
    lanes: Sequence[_Lane],
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


def _choose(
    lanes: Sequence[_Lane], rates: Mapping[int, float], newcomer: Newcomer, tokens: float
) -> tuple[_Lane, float]:
    """Where the newcomer will go, and the part of what waits before it that goes there, too."""
    if len(lanes) == 1:
        return lanes[0], 1.0
    if not tokens:
        able = [lane for lane in lanes if lane.steps_for_places(0.0, 0.0, newcomer) <= 0.0] or lanes

        def cost(lane: _Lane) -> tuple[float, float]:
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
    lane: _Lane, newcomer: Newcomer, sequences: float, tokens: float, bound_s: float, inflow: float
) -> FirstToken:
    """Lets what is ahead pass, then the newcomer, which starts after `bound_s` seconds at the soonest."""
    mean = tokens / sequences if sequences else 1.0
    regime = Regime.PREFILL if lane.pending or sequences else Regime.IDLE
    queue_s, room, steps = 0.0, 0.0, 1.0
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
    return FirstToken(regime, lane.step_s, queue_s, own_s, _alone_seconds(lane, newcomer))


def _soonest_seconds(lane: _Lane, newcomer: Newcomer) -> float:
    """How long it takes at least until there is a slot for the newcomer; 0 if that is not known."""
    if lane.yielders and newcomer.due_s < inf:
        return 0.0
    if newcomer.members <= lane.free_slots or len(lane.known) < lane.running:
        return 0.0
    return lane.known[min(ceil(newcomer.members - lane.free_slots), len(lane.known)) - 1] * lane.step_seconds(0.0)


def _who_yields(lane: _Lane, newcomer: Newcomer, sequences: float, tokens: float) -> tuple[Holder, ...]:
    """Who makes room for it and those before it as soon as its promise is at stake; nobody if that is not enough."""
    if not lane.yielders or newcomer.due_s == inf:
        return ()
    slots = ceil(sequences) + newcomer.members - int(lane.free_slots)
    blocks = tokens / lane.worker.info.block_size + sequences + _own_blocks(lane.worker, newcomer) - lane.free_blocks
    return choose_yielding(lane.yielders, newcomer.rank, newcomer.claim, slots, ceil(blocks)) or ()


def _own_seconds(lane: _Lane, room: float) -> float:
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


def _alone_seconds(lane: _Lane, newcomer: Newcomer) -> float:
    """Of a prefill on an empty worker."""
    times, most = lane.worker.step_times, lane.worker.limits.max_num_batched_tokens
    full, rest = divmod(newcomer.computed[lane.worker.link], most)
    seconds = full * (times.predict(most, 0) or 0.0)
    return seconds + ((times.predict(rest, 0) or 0.0) if rest else 0.0)
