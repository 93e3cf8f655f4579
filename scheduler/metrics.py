"""What a scheduler tells Prometheus. Reads what is counted already; decides nothing."""

from __future__ import annotations

from collections import Counter

from tercet import errors
from tercet.health import Conditions
from tercet.metrics.health import HEALTH, put_health
from tercet.metrics.labels import known
from tercet.metrics.metric import Reading, counter, gauge, histogram
from tercet.tracing.metrics import SPANS

from .class_view import ClassesView, ClassView
from .events import CancelReason, EndReason
from .fleet_view import FleetView, WorkerView
from .loop import Loop
from .traffic import Counts, Promises
from .traffic_class import TrafficClass

LEADING = gauge("tercet_scheduler_leading", "1 if this scheduler has the workers, 0 if it stands by")
GATEWAYS = gauge("tercet_scheduler_gateways", "gateways that are connected")
WORKERS = gauge("tercet_scheduler_workers", "workers that are configured, by what they are at", "state")
WORKERS_LOST = counter("tercet_scheduler_workers_lost_total", "streams of workers that have ended")
ACCEPTED = counter("tercet_scheduler_requests_accepted_total", "requests let in", "class")
REFUSED = counter(
    "tercet_scheduler_requests_refused_total", "requests refused, those that gateways refused among them",
    "class", "reason",
)  # fmt: skip
ENDED = counter(
    "tercet_scheduler_requests_ended_total", "accepted requests that have ended; a reason is that of the error",
    "class", "outcome", "reason",
)  # fmt: skip
WAITING = gauge("tercet_scheduler_requests_waiting", "requests in the queue", "class")
RUNNING = gauge("tercet_scheduler_requests_running", "requests of which something is on a worker", "class")
PAUSED = gauge("tercet_scheduler_requests_paused", "requests whose readers are behind")
TOKENS_WAITING = gauge("tercet_scheduler_tokens_waiting", "tokens to be computed of what waits in the queue", "class")
OLDEST = gauge(
    "tercet_scheduler_oldest_waiting_seconds", "age of the oldest request that has not started, 0 without one", "class"
)
QUEUE = histogram(
    "tercet_scheduler_queue_seconds", "from acceptance to the start of the prefill, once there is a token", "class"
)
TTFT = histogram("tercet_scheduler_time_to_first_token_seconds", "from arrival here to the first token", "class")
PROMISES = counter(
    "tercet_scheduler_promises_total",
    "promises of classes that were kept or broken: of the first token, of the gap between tokens, of the whole request",
    "class", "part", "result",
)  # fmt: skip
PROMISED_SECONDS = gauge(
    "tercet_scheduler_promised_seconds",
    "what a class promises: until the first token (ttft), and as the mean from one token to the next (gap)",
    "class", "part",
)  # fmt: skip
PROMISED_RATIO = gauge(
    "tercet_scheduler_promised_ratio", "the part of its requests for which a class promises that", "class"
)
PROMPT_TOKENS = counter("tercet_scheduler_prompt_tokens_total", "tokens of prompts that have a first token", "class")
CACHED_TOKENS = counter(
    "tercet_scheduler_cached_prompt_tokens_total", "of those, the ones that the prefix cache had", "class"
)
GENERATED = counter("tercet_scheduler_generated_tokens_total", "tokens of requests that have ended", "class")
WASTED = counter("tercet_scheduler_wasted_tokens_total", "of those, the ones that came after a cancel", "class")
PREEMPTIONS = counter("tercet_scheduler_preemptions_total", "sequences that had to give way")
SWAPS = counter("tercet_scheduler_swaps_total", "of those, the ones whose blocks went to host memory")
BLOCKS = gauge("tercet_scheduler_kv_blocks", "KV blocks of all workers of a model", "model", "state")
SWAP_BLOCKS = gauge("tercet_scheduler_swap_blocks_used", "blocks in host memory of all workers of a model", "model")
PLAN_STEPS = histogram("tercet_scheduler_plan_steps", "steps of each plan that was sent")
REVOKING = counter("tercet_scheduler_plans_revoking_total", "plans that took back those before them")
CANCELS = histogram(
    "tercet_scheduler_cancel_freed_seconds", "from the arrival of a cancel until its last block was free", "reason"
)
FORECASTS = gauge(
    "tercet_scheduler_forecasts", "forecasts that came true lately, of which errors are told", "model", "revision"
)
ERROR = gauge(
    "tercet_scheduler_forecast_error_ratio", "median error of these, as a part of the actual time", "model", "revision"
)
BIAS = gauge(
    "tercet_scheduler_forecast_bias_ratio", "by how much they were too high, or below 0 too low", "model", "revision"
)
ROUNDS = histogram("tercet_scheduler_round_seconds", "time of each round: events are applied, and plans made")
EVENTS = counter("tercet_scheduler_events_total", "events that have been handled")
UNHANDLED = gauge("tercet_scheduler_events_waiting", "events that have not been handled")
AUDIT = counter(
    "tercet_scheduler_audit_problems_total", "what did not add up when nothing ran: blocks or slots that nobody has"
)
ORPHANS = counter("tercet_scheduler_orphans_total", "requests that were found here and no gateway knew")

METRICS = (
    HEALTH, LEADING, GATEWAYS, WORKERS, WORKERS_LOST, ACCEPTED, REFUSED, ENDED, WAITING, RUNNING, PAUSED,
    TOKENS_WAITING, OLDEST, QUEUE, TTFT, PROMISES, PROMISED_SECONDS, PROMISED_RATIO, PROMPT_TOKENS, CACHED_TOKENS,
    GENERATED, WASTED, PREEMPTIONS, SWAPS, BLOCKS, SWAP_BLOCKS, PLAN_STEPS, REVOKING, CANCELS, FORECASTS, ERROR,
    BIAS, ROUNDS, EVENTS, UNHANDLED, AUDIT, ORPHANS, SPANS,
)  # fmt: skip

WORKER_STATES = ("moving", "late", "draining", "hung", "away")
# Names of ends reach the books from the contract, and from errors.
_REASONS = frozenset({*errors.request_error_types(), *CancelReason.__members__, *EndReason.__members__})


def read(loop: Loop, conditions: Conditions, *, leads: bool) -> Reading:
    """All of a scheduler now."""
    reading = Reading()
    put_health(reading, conditions)
    reading.put(LEADING, leads)
    reading.put(GATEWAYS, loop.num_gateways)
    _put_loop(reading, loop)
    _put_fleet(reading, loop.view())
    _put_classes(reading, loop.class_view())
    return reading


def _put_loop(reading: Reading, loop: Loop) -> None:
    counts = loop.counts
    reading.put(WORKERS_LOST, counts.facts["worker_lost"])
    reading.put(PLAN_STEPS, counts.plan_steps)
    reading.put(REVOKING, counts.plans_revoking)
    reading.put(ROUNDS, counts.round_s)
    reading.put(EVENTS, loop.num_handled)
    reading.put(UNHANDLED, loop.num_unhandled)
    reading.put(AUDIT, counts.audit_problems)
    reading.put(ORPHANS, counts.orphans)


def _put_fleet(reading: Reading, fleet: FleetView) -> None:
    states = Counter(_state(worker) for worker in fleet.workers)
    for state in WORKER_STATES:
        reading.put(WORKERS, states[state], state)
    reading.put(PAUSED, fleet.requests_paused)
    reading.put(PREEMPTIONS, fleet.preemptions)
    reading.put(SWAPS, fleet.swaps)
    for model in sorted({worker.model for worker in fleet.workers if worker.live}):
        there = [worker for worker in fleet.workers if worker.live and worker.model == model]
        reading.put(BLOCKS, sum(worker.blocks.used for worker in there), model, "used")
        reading.put(BLOCKS, sum(worker.blocks.cached for worker in there), model, "cached")
        reading.put(BLOCKS, sum(worker.blocks.free for worker in there), model, "free")
        reading.put(SWAP_BLOCKS, sum(worker.swap_blocks_used for worker in there), model)


def _state(worker: WorkerView) -> str:
    if worker.hung:
        return "hung"
    if not worker.live:
        return "away"
    if worker.draining:
        return "draining"
    return "late" if worker.late else "moving"


def _put_classes(reading: Reading, view: ClassesView) -> None:
    for each in view.classes:
        _put_class(reading, "" if each.traffic_class is None else each.traffic_class.name, each, view.now)
        if each.traffic_class is not None:
            _put_targets(reading, each.traffic_class)
    for reason, freed_s in view.cancel_s.items():
        reading.put(CANCELS, freed_s, reason.name.lower())
    for model, revision, forecast in view.forecasts:
        error = forecast.error
        reading.put(FORECASTS, 0 if error is None else error.forecasts, model, revision)
        if error is not None:
            reading.put(ERROR, error.median, model, revision)
            reading.put(BIAS, error.bias, model, revision)


def _put_class(reading: Reading, name: str, view: ClassView, now: float) -> None:
    load, counts = view.load, view.traffic.counts
    reading.put(ACCEPTED, counts.accepted, name)
    _put_ends(reading, name, counts)
    reading.put(WAITING, load.requests_waiting, name)
    reading.put(RUNNING, load.requests_running, name)
    reading.put(TOKENS_WAITING, load.tokens_waiting, name)
    reading.put(OLDEST, 0.0 if load.oldest is None else max(0.0, now - load.oldest), name)
    reading.put(QUEUE, view.traffic.queue_s, name)
    reading.put(TTFT, view.traffic.ttft_s, name)
    _put_promises(reading, name, counts.promises)
    reading.put(PROMPT_TOKENS, counts.prompt_tokens, name)
    reading.put(CACHED_TOKENS, counts.cached_tokens, name)
    reading.put(GENERATED, counts.generated_tokens, name)
    reading.put(WASTED, counts.wasted_tokens, name)


def _put_targets(reading: Reading, traffic_class: TrafficClass) -> None:
    targets = {"ttft": traffic_class.ttft, "gap": traffic_class.gap}
    promised = {part: target for part, target in targets.items() if target is not None}
    for part, target in promised.items():
        reading.put(PROMISED_SECONDS, target.seconds, traffic_class.name, part)
    if promised:
        strictest = max(target.percentile for target in promised.values())
        reading.put(PROMISED_RATIO, strictest / 100, traffic_class.name)


def _put_ends(reading: Reading, name: str, counts: Counts) -> None:
    for reason, count in _bounded(counts.refused).items():
        reading.put(REFUSED, count, name, reason)
    reading.put(ENDED, counts.served, name, "served", "")
    reading.put(ENDED, counts.cancelled, name, "cancelled", "")
    for reason, count in _bounded(counts.failed).items():
        reading.put(ENDED, count, name, "failed", reason)


def _bounded(counts: dict[str, int]) -> Counter[str]:
    """Counts by reason, those that no version knows as one."""
    found: Counter[str] = Counter()
    for reason, count in counts.items():
        found[known(reason, _REASONS)] += count
    return found


def _put_promises(reading: Reading, name: str, promises: Promises) -> None:
    for part, kept in (("ttft", promises.ttft), ("gap", promises.gap), ("request", promises.request)):
        reading.put(PROMISES, kept.kept, name, part, "kept")
        reading.put(PROMISES, kept.broken, name, part, "broken")
