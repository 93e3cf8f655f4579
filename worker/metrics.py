"""What a worker tells Prometheus. Reads what its device's thread has counted; never touches the device."""

from __future__ import annotations

from collections.abc import Callable

from tercet.health import Conditions
from tercet.metrics.health import HEALTH, put_health
from tercet.metrics.metric import Reading, counter, gauge, histogram
from tercet.tracing.metrics import SPANS

from .executor import Executor
from .messages import EndReason

LOADED = gauge("tercet_worker_loaded", "1 once the model is loaded")
STEP = histogram(
    "tercet_worker_step_seconds",
    "time of each step, by the device's clock where it has one; a step of kind prompt computed prompts, too",
    "kind",
)
GAP = histogram(
    "tercet_worker_step_gap_seconds",
    "from the end of a step behind which the device had nothing to the beginning of the next one, without waits",
)
IDLE = counter("tercet_worker_idle_seconds_total", "time without a sequence that decodes, and without a plan")
STARVED = counter(
    "tercet_worker_starved_seconds_total", "time in which there were sequences to decode, and no plan for them"
)
TOKENS = counter("tercet_worker_generated_tokens_total", "tokens generated, those of the warm-up among them")
PROMPT_TOKENS = counter(
    "tercet_worker_prompt_tokens_total", "tokens of prompts computed, without those that were cached"
)
PLANS = counter("tercet_worker_plans_total", "plans that have ended: all their steps ran, or they were revoked", "end")
ENDED = counter("tercet_worker_sequences_ended_total", "sequences that have ended by themselves", "reason")
SEQUENCES = gauge("tercet_worker_sequences", "sequences that are here, in whatever state")
COMMANDS = gauge("tercet_worker_commands_waiting", "commands of the scheduler that wait for the end of a step")
BLOCKS = gauge(
    "tercet_worker_kv_blocks", "KV blocks: used by sequences, cached for prefixes and free to be taken, free", "state"
)
SWAP_BLOCKS = gauge("tercet_worker_swap_blocks", "blocks of host memory for preempted sequences", "state")
BROKEN = counter("tercet_worker_pool_broken_total", "looks at the block pool that found that it does not add up")
STILL = gauge("tercet_worker_still_seconds", "for how long the device has been at one step that has not ended")

METRICS = (
    HEALTH, LOADED, STEP, GAP, IDLE, STARVED, TOKENS, PROMPT_TOKENS, PLANS, ENDED, SEQUENCES, COMMANDS, BLOCKS,
    SWAP_BLOCKS, BROKEN, STILL, SPANS,
)  # fmt: skip


def read(executor: Executor | None, conditions: Conditions, still_s: float, clock: Callable[[], float]) -> Reading:
    """All of a worker now; without an executor it loads. `clock` is the executor's."""
    reading = Reading()
    put_health(reading, conditions)
    reading.put(LOADED, executor is not None)
    if executor is None:
        return reading
    # Before the waits are looked at: one that goes on is never taken for longer than it will have been.
    now = clock()
    counts = executor.counts
    waits = counts.waits.until(now)
    for kind, step_s in counts.step_s.items():
        reading.put(STEP, step_s, kind)
    reading.put(GAP, counts.gap_s)
    reading.put(IDLE, waits.idle_s)
    reading.put(STARVED, waits.starved_s)
    reading.put(TOKENS, counts.tokens)
    reading.put(PROMPT_TOKENS, counts.prompt_tokens)
    reading.put(PLANS, counts.plans_run, "run")
    reading.put(PLANS, counts.plans_revoked, "revoked")
    for reason in EndReason:
        reading.put(ENDED, counts.ended[reason], reason.value)
    reading.put(SEQUENCES, executor.num_sequences)
    reading.put(COMMANDS, executor.num_commands)
    blocks = counts.blocks
    for state, count in (("used", blocks.used), ("cached", blocks.cached), ("free", blocks.free)):
        reading.put(BLOCKS, count, state)
    space = executor.swap_space
    num_free = space.num_free
    reading.put(SWAP_BLOCKS, space.num_total - num_free, "used")
    reading.put(SWAP_BLOCKS, num_free, "free")
    reading.put(BROKEN, counts.num_broken)
    reading.put(STILL, still_s)
    return reading
