"""How soon those that run on a worker leave it, by the lengths that outputs of their classes have had.

To look at all of them takes long, so what was found is good for a few steps. Knows no newcomers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import ceil, inf

from .output_length import LeaveRate, LeaveRates, OutputLengths
from .planner_view import yielders
from .pool import Pool
from .preemption import Holder
from .worker import Worker

# Steps of a worker after which it is looked who runs there, one for so many sequences where more run; and the part of
# them that has to have come or gone to look sooner.
LOOK_EVERY_STEPS = 8
LOOK_SEQUENCES_PER_STEP = 16
LOOK_CHANGED_PART = 8


def leaving(pool: Pool, worker: Worker, outputs: Callable[[str], OutputLengths], now: float) -> LeaveRates:
    """How those that run on the worker leave, as of a few steps ago at most; `outputs` has the lengths of a class."""
    count, known = len(worker.sequences), worker.leaving
    if known is not None:
        fresh = worker.steps < known.steps + max(LOOK_EVERY_STEPS, count // LOOK_SEQUENCES_PER_STEP)
        if fresh and abs(count - known.count) <= known.count // LOOK_CHANGED_PART:
            return known
    worker.leaving = replace(_look(worker, outputs), yielders=_yielders(pool, worker, now))
    return worker.leaving


def _look(worker: Worker, outputs: Callable[[str], OutputLengths]) -> LeaveRates:
    # By class the lengths of those that may end with any step, and of those whose ends are known.
    open_ended: dict[str, list[int]] = {}
    others: dict[str, list[int]] = {}
    known = []
    most = 0
    # Runs over all that run: properties in line.
    for sequence in worker.sequences.values():
        request, length = sequence.request, len(sequence.token_ids)
        submission, name = request.submission, request.traffic_class.name
        prompt, left = len(submission.prompt_token_ids), sequence.max_length - length
        most += left + length - prompt
        banned = left if not submission.stop_token_ids else prompt + submission.sampling.min_tokens - length
        if banned > 0:
            if banned < left:
                banned += ceil(outputs(name).to_go(submission.sampling.min_tokens))
            known.append(min(banned, left))
        (others if banned > 0 else open_ended).setdefault(name, []).append(length - prompt)
    count, chance, later, by_class = len(worker.sequences), 0.0, 0.0, {}
    for name in worker.class_sizes:
        free, bound = open_ended.get(name, []), others.get(name, [])
        by_class[name] = each = outputs(name).leaving(free, most / count, bound)
        part = (len(free) + len(bound)) / count
        chance += part * each.now
        later += part * each.later
    return LeaveRates(worker.steps, count, LeaveRate(chance, later or 1.0), by_class, tuple(sorted(known)))


def _yielders(pool: Pool, worker: Worker, now: float) -> tuple[Holder, ...]:
    """Those on the worker that make room for promises, the first to go first."""
    classes = [each.traffic_class for each in pool.waiting.classes.values()]
    lowest = min((each.rank for each in classes if each.ttft is not None), default=inf)
    if any(each.preemptible and each.rank > lowest and each.name in worker.class_sizes for each in classes):
        return tuple(yielders(worker, now))
    return ()
