"""What a gateway tells Prometheus: the metrics. What is behind them is in metrics_counts.py and metrics_reading.py."""

from __future__ import annotations

from tercet.metrics.health import HEALTH
from tercet.metrics.metric import counter, gauge, histogram
from tercet.tracing.metrics import SPANS

# As the ledger has them: each request once, when neither its client nor the mesh has more to say of it.
REQUESTS = counter(
    "tercet_gateway_requests_total",
    "requests that have ended; outcomes and reasons are those of the ledger",
    "model", "class", "outcome", "reason",
)  # fmt: skip
PROMPT_TOKENS = counter("tercet_gateway_prompt_tokens_total", "tokens of prompts of ended requests", "model", "class")
CACHED_TOKENS = counter(
    "tercet_gateway_cached_prompt_tokens_total", "of those, the ones that a prefix cache had", "model", "class"
)
GENERATED_TOKENS = counter(
    "tercet_gateway_generated_tokens_total", "tokens generated for ended requests", "model", "class"
)
DELIVERED_TOKENS = counter(
    "tercet_gateway_delivered_tokens_total", "of those, the ones handed to clients", "model", "class"
)
WASTED_TOKENS = counter("tercet_gateway_wasted_tokens_total", "of those, the others", "model", "class")
GPU_SECONDS = counter(
    "tercet_gateway_gpu_seconds_total",
    "time of steps that ended requests have used, on whatever device",
    "model",
    "class",
)
CPU_SECONDS = counter(
    "tercet_gateway_cpu_seconds_total", "of those, the ones on workers without a GPU", "model", "class"
)
COST = counter("tercet_gateway_cost_total", "what both cost, in the currency of the prices", "model", "class")
SLO = counter(
    "tercet_gateway_slo_total",
    "requests that somebody wanted, by what became of the promise: met, or the part that was broken",
    "class", "result",
)  # fmt: skip
TTFT = histogram("tercet_gateway_time_to_first_token_seconds", "from arrival to the first token", "class")
TPOT = histogram(
    "tercet_gateway_time_per_output_token_seconds", "mean time from one token to the next of each request", "class"
)
GAP = histogram("tercet_gateway_inter_token_seconds", "each time from one token of an output to the next", "class")
LARGEST_GAP = histogram("tercet_gateway_largest_gap_seconds", "the longest of these of each request", "class")
DURATION = histogram("tercet_gateway_request_seconds", "from arrival to the end", "class")
STAGE = histogram("tercet_gateway_stage_seconds", "what requests spent where; the stages add up", "class", "stage")
CANCELS = histogram(
    "tercet_gateway_cancel_seconds", "from the moment that a cancel was seen until nothing was left of it", "origin"
)
PAUSES = counter("tercet_gateway_pauses_total", "how often requests were paused for their readers, once they ended")
TAKEOVERS = counter("tercet_gateway_takeovers_total", "how often another scheduler took requests over, once they ended")
TENANT_REQUESTS = counter("tercet_gateway_tenant_requests_total", "ended requests of a tenant", "tenant", "outcome")
TENANT_TOKENS = counter(
    "tercet_gateway_tenant_tokens_total", "tokens of its prompts, and generated for it", "tenant", "kind"
)
TENANT_GPU_SECONDS = counter("tercet_gateway_tenant_gpu_seconds_total", "time of steps that it has used", "tenant")
TENANT_COST = counter("tercet_gateway_tenant_cost_total", "what that costs", "tenant")

# As it is now.
RUNNING = gauge("tercet_gateway_requests_running", "requests from arrival to end")
PAUSED = gauge("tercet_gateway_streams_paused", "of those, the ones whose clients are far behind")
TURNED_AWAY = counter("tercet_gateway_calls_turned_away_total", "calls for which there was no room")
SCHEDULERS = gauge("tercet_gateway_schedulers", "schedulers that are connected")
WORKERS = gauge("tercet_gateway_workers", "live workers of a model that it serves, as its schedulers say", "model")
LEDGER_WAITING = gauge("tercet_gateway_ledger_rows_waiting", "rows of ended requests that the database does not have")
LEDGER_OLDEST = gauge("tercet_gateway_ledger_oldest_row_seconds", "age of the oldest of them, 0 without any")
LEDGER_LOST = gauge("tercet_gateway_ledger_lost", "1 while rows cannot be written to the database or the journal")

METRICS = (
    HEALTH, REQUESTS, PROMPT_TOKENS, CACHED_TOKENS, GENERATED_TOKENS, DELIVERED_TOKENS, WASTED_TOKENS, GPU_SECONDS,
    CPU_SECONDS, COST, SLO, TTFT, TPOT, GAP, LARGEST_GAP, DURATION, STAGE, CANCELS, PAUSES, TAKEOVERS,
    TENANT_REQUESTS, TENANT_TOKENS, TENANT_GPU_SECONDS, TENANT_COST, RUNNING, PAUSED, TURNED_AWAY, SCHEDULERS,
    WORKERS, LEDGER_WAITING, LEDGER_OLDEST, LEDGER_LOST, SPANS,
)  # fmt: skip
