"""What may run at most of a newcomer's class or tenant, and when there is room for it under that. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil, exp

from .kv_shares import granted_tokens, held_by
from .output_length import LeaveRate, LeaveRates
from .pool import Pool
from .room import start_blocks
from .sequence import Sequence
from .surroundings import Surroundings
from .worker import Worker

# Times that the moment of an end is looked for in half of where it was before.
HALVINGS = 24


@dataclass(frozen=True, slots=True)
class Runs:
    """How many of a bound run together, and how they leave."""

    count: float
    leaving: LeaveRate


@dataclass(frozen=True, slots=True)
class Bound:
    """A limit as a newcomer finds it, in what it counts: sequences, or tokens for which there is room in blocks."""

    # What may start before somebody ends; what those who wait before the newcomer take, and it; what an end gives back.
    free: float
    wanted: float
    freed: float
    # Sequences of the bound that wait before the newcomer; those that run, by the worker's link; and those that wait
    # and may start at once.
    waiting: float
    running: Mapping[int, Runs]
    starting: Runs

    @property
    def ends(self) -> float:
        """Sequences that have to end before the newcomer may start. One may always run, however large."""
        most = self.waiting + sum(runs.count for runs in self.running.values())
        return min(max(0, ceil((self.wanted - self.free) / self.freed)), most)

    def seconds(self, step_s: Mapping[int, float], prompt_s: float) -> float:
        """Until so many have ended, if each that waits takes the place of one that ends. A step takes `step_s` seconds,
        by the worker's link, and the prompt of one that starts `prompt_s`."""
        ends = self.ends
        if ends <= 0.0:
            return 0.0
        there = [(runs, step_s[link]) for link, runs in self.running.items()]
        there.append((self.starting, sum(step_s.values()) / len(step_s)))
        rates = [
            (runs.count, runs.leaving.now / each_s, 1.0 / (each_s / runs.leaving.later + prompt_s))
            for runs, each_s in there
        ]
        # Those that run now may all be far from their ends: no later than when each has ended once more.
        low, high = 0.0, (ends + sum(count for count, _, _ in rates)) / sum(count * later for count, _, later in rates)
        for _ in range(HALVINGS):
            middle = (low + high) / 2
            if sum(count * _ended(now, later, middle) for count, now, later in rates) < ends:
                low = middle
            else:
                high = middle
        return high


def _ended(now: float, later: float, seconds: float) -> float:
    """How often a place was left after that time, if it is so many times in a second at first, and in the end."""
    return later * seconds + (now / later - 1.0) * (1.0 - exp(-later * seconds))


def bound_of_class(
    workers: Mapping[int, tuple[Worker, LeaveRates]], leader: Sequence, around: Surroundings, fresh: LeaveRate
) -> Bound:
    """The max_running of a newcomer's class. `fresh`: how those leave that have just started."""
    traffic_class = leader.request.traffic_class
    sizes = {link: worker.class_sizes.get(traffic_class.name, 0) for link, (worker, _) in workers.items()}
    free = sum(traffic_class.max_running - size for size in sizes.values())
    return Bound(
        free=free,
        wanted=around.of_class + len(leader.group),
        freed=1.0,
        waiting=around.of_class,
        running={link: Runs(size, workers[link][1].of(traffic_class.name)) for link, size in sizes.items() if size},
        starting=Runs(min(around.of_class, max(0, free)), fresh),
    )


def bound_of_tenant(
    pool: Pool,
    workers: Mapping[int, tuple[Worker, LeaveRates]],
    leader: Sequence,
    around: Surroundings,
    fresh: LeaveRate,
) -> Bound:
    """The kv_share of a newcomer's tenant, as above."""
    tenant = leader.request.tenant
    held, running, later = 0, {}, 0.0
    for link, (worker, leaving) in workers.items():
        tokens, classes = held_by(worker, tenant.tenant)
        if classes:
            held += tokens
            running[link] = Runs(classes.total(), leaving.mixed(classes))
            later += running[link].count * running[link].leaving.later
    count = sum(runs.count for runs in running.values())
    free = granted_tokens(pool, tenant.kv_share) - held
    size = max(worker.info.block_size for worker, _ in workers.values())
    need = size * (start_blocks(leader, size) + len(leader.group))
    # Each has a block to grow by, and half of its last one is empty.
    ahead = around.own_tokens + 1.5 * size * around.own_sequences
    each = ahead / around.own_sequences if ahead else need
    # As long as it waits the others grow by half an output.
    freed = held / count - 0.5 * count / later if count else each
    return Bound(
        free=free,
        wanted=ahead + need,
        freed=max(float(size), freed),
        waiting=around.own_sequences,
        running=running,
        # Where nothing runs one may, however large.
        starting=Runs(min(around.own_sequences, max(free / each, 0.0 if count else 1.0)), fresh),
    )
