"""What a gateway tells Prometheus at one moment. Knows no Prometheus; decides nothing."""

from __future__ import annotations

from collections.abc import Callable

from tercet import rpc
from tercet.health import Conditions
from tercet.metrics.health import put_health
from tercet.metrics.metric import Reading

from . import metrics as names
from .books import Books
from .generations import Generations
from .metrics_counts import RequestCounts, Times
from .schedulers import Schedulers
from .served_model import Catalogue


class MetricsReader:
    """Looks at a gateway's process, in its event loop. `health` says what holds of it."""

    def __init__(
        self,
        server: rpc.Server,
        link: Schedulers,
        catalogue: Catalogue,
        generations: Generations,
        books: Books,
        health: Callable[[], Conditions],
    ) -> None:
        self._server = server
        self._link = link
        self._catalogue = catalogue
        self._generations = generations
        self._books = books
        self._health = health

    def read(self) -> Reading:
        """All now."""
        reading = Reading()
        put_health(reading, self._health())
        put_counts(reading, self._books.counts)
        self._put_state(reading)
        return reading

    def _put_state(self, reading: Reading) -> None:
        generations, link, books = self._generations, self._link, self._books
        reading.put(names.RUNNING, len(generations))
        reading.put(names.PAUSED, generations.num_behind)
        reading.put(names.TURNED_AWAY, self._server.num_turned_away + generations.num_turned_away)
        reading.put(names.SCHEDULERS, link.num_up)
        for model in self._catalogue.models:
            reading.put(names.WORKERS, link.num_workers(model.name, model.revision), model.name)
        reading.put(names.LEDGER_WAITING, books.num_unwritten)
        reading.put(names.LEDGER_OLDEST, books.oldest_unwritten_s)
        reading.put(names.LEDGER_LOST, books.lost)


def put_counts(reading: Reading, counts: RequestCounts) -> None:
    """What has ended so far."""
    for key, count in counts.requests.items():
        reading.put(names.REQUESTS, count, *key)
    for whose, tokens in counts.tokens.items():
        reading.put(names.PROMPT_TOKENS, tokens.prompt, *whose)
        reading.put(names.CACHED_TOKENS, tokens.cached, *whose)
        reading.put(names.GENERATED_TOKENS, tokens.generated, *whose)
        reading.put(names.DELIVERED_TOKENS, tokens.delivered, *whose)
        reading.put(names.WASTED_TOKENS, tokens.wasted, *whose)
        reading.put(names.GPU_SECONDS, tokens.gpu_s, *whose)
        reading.put(names.CPU_SECONDS, tokens.cpu_s, *whose)
        reading.put(names.COST, tokens.cost, *whose)
    for promise, count in counts.slo.items():
        reading.put(names.SLO, count, *promise)
    for traffic_class, times in counts.times.items():
        _put_times(reading, traffic_class, times)
    for origin, seconds in counts.cancels.items():
        reading.put(names.CANCELS, seconds, origin)
    reading.put(names.PAUSES, counts.num_pauses)
    reading.put(names.TAKEOVERS, counts.num_takeovers)
    for tenant, tokens in counts.tenant_tokens.items():
        reading.put(names.TENANT_TOKENS, tokens.prompt, tenant, "prompt")
        reading.put(names.TENANT_TOKENS, tokens.generated, tenant, "generated")
        reading.put(names.TENANT_GPU_SECONDS, tokens.gpu_s, tenant)
        reading.put(names.TENANT_COST, tokens.cost, tenant)
    for ending, count in counts.tenant_requests.items():
        reading.put(names.TENANT_REQUESTS, count, *ending)


def _put_times(reading: Reading, traffic_class: str, times: Times) -> None:
    reading.put(names.TTFT, times.ttft, traffic_class)
    reading.put(names.TPOT, times.tpot, traffic_class)
    reading.put(names.GAP, times.gap, traffic_class)
    reading.put(names.LARGEST_GAP, times.largest_gap, traffic_class)
    reading.put(names.DURATION, times.total, traffic_class)
    for stage, seconds in times.stages.items():
        reading.put(names.STAGE, seconds, traffic_class, stage)
