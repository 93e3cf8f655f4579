"""A worker through which a forecast lets pass what is ahead of a newcomer.

Knows nothing of other workers, nor how far the fluid is to go.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, inf

from .newcomer import Newcomer
from .output_length import LeaveRate, LeaveRates
from .policy import Policy, paced, prefill_cap
from .preemption import Holder
from .room import kept_of
from .surroundings import Surroundings
from .worker import Worker

# With so few left nobody is there: the last one leaves by chance after 1 / chance steps, when 1 / e is left of it.
ALL_LEFT = exp(-1.0)


@dataclass(slots=True)
class Lane:
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

    @classmethod
    def of(
        cls, worker: Worker, leaving: LeaveRates, newcomer: Newcomer, around: Surroundings, policy: Policy, now: float
    ) -> Lane:
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
            kept_blocks = kept_of(worker.info.num_blocks, newcomer.blocks(worker.info.block_size))
        return cls(
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
        blocks += newcomer.blocks(self.worker.info.block_size)
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
