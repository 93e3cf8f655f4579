"""What Prometheus is told of a mesh of real processes: it adds up to the ledger, and to what clients received."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tercet.client import AsyncClient
from tercet.errors import RequestError
from tercet.ledger.ledger import Ledger
from tercet.ledger.usage import usage

from .conftest import HEALTH_NAMES, ROOT, Mesh, free_port, wait_until
from .prometheus import BINARY, Prometheus

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(BINARY is None, reason="prometheus is not there (Debian's package prometheus)"),
]

# Kinds of requests, and how many of each.
KINDS = {"once": 8, "stream": 8, "several": 3, "leaves": 4, "cancelled": 4, "long": 3, "unknown": 3, "late": 2}


class Watched:
    """A mesh whose services tell metrics at `ports`, with a ledger, and a Prometheus."""

    def __init__(self, mesh: Mesh, folder: Path) -> None:
        self.mesh = mesh
        self.ports = {name: free_port() for name in HEALTH_NAMES}
        self.http_port = free_port()
        database = str(folder / "ledger.db")
        mesh.set(
            TERCET_LEDGER_DATABASE=database,
            TERCET_LEDGER_GPU_HOUR_PRICE="3600",
            TERCET_GATEWAY_HTTP_PORT=str(self.http_port),
        )
        for name, port in self.ports.items():
            mesh.set(TERCET_METRICS_PORT=str(port))
            mesh.start(name)
        self.ledger = Ledger(database, time.time)
        self.prometheus = Prometheus(folder, self.ports)

    def text(self, name: str) -> str:
        """What a service tells now."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.ports[name]}/metrics", timeout=20) as answer:
            return str(answer.read().decode())

    def families(self, name: str) -> dict[str, Any]:
        """The same by name."""
        return {family.name: family for family in text_string_to_metric_families(self.text(name))}

    def close(self) -> None:
        self.prometheus.stop()
        self.ledger.close()


@pytest.fixture
def watched(own_mesh: Callable[..., Mesh], tmp_path: Path) -> Iterator[Watched]:
    made = Watched(own_mesh(TERCET_SCHEDULER_WORKER_GRACE_SECONDS="0.5"), tmp_path)
    try:
        made.prometheus.wait_scraping()
        yield made
    finally:
        made.close()


async def _ask(client: AsyncClient, kind: str, request_id: str, told: Counter[str]) -> None:
    """One client, who counts how it ended and the tokens it got."""
    prompt: Any = [5] * 9000 if kind == "long" else "Once upon a time"
    options: dict[str, Any] = {
        "request_id": request_id, "ignore_eos": True, "n": 2 if kind == "several" else 1, "temperature": 0,
        "max_tokens": 2000 if kind in ("leaves", "cancelled", "late") else 6,
        "model": "nobody" if kind == "unknown" else "",
    }  # fmt: skip
    try:
        if kind == "once":
            told["tokens"] += len((await client.generate_once(prompt, **options)).token_ids)
        else:
            leaves_after = 3
            async with client.generate(prompt, timeout_s=4.0 if kind == "late" else None, **options) as events:
                async for event in events:
                    told["tokens"] += len(getattr(event, "token_ids", ()))
                    leaves_after -= 1
                    if not leaves_after and kind == "leaves":
                        break
                    if not leaves_after and kind == "cancelled":
                        await client.cancel(request_id)
        told["cancelled client" if kind == "leaves" else "completed length"] += 1
    except RequestError as error:
        outcome = {"cancelled": "cancelled", "late": "expired"}.get(kind, "refused")
        told[f"{outcome} {error.reason}"] += 1


async def _burst(address: str) -> Counter[str]:
    told: Counter[str] = Counter()
    async with AsyncClient(address) as client:
        asked = [(kind, f"{kind}-{number}") for kind, count in KINDS.items() for number in range(count)]
        await asyncio.gather(*(_ask(client, kind, request_id, told) for kind, request_id in asked))
    return told


def _endings(watched: Watched) -> Counter[str]:
    found = watched.prometheus.get("query", query="sum by (outcome, reason) (tercet_gateway_requests_total)")["result"]
    return Counter({f"{each['metric']['outcome']} {each['metric']['reason']}": int(each["value"][1]) for each in found})


async def test_what_prometheus_adds_up_is_what_happened(watched: Watched) -> None:
    prometheus, total = watched.prometheus, sum(KINDS.values())
    warm_up = watched.families("worker")["tercet_worker_generated_tokens"].samples[0].value
    told = await _burst(watched.mesh.address)
    tokens = told.pop("tokens")

    def settled() -> bool:
        (found,) = usage(watched.ledger, 0.0, 1e12)
        return found.open == 0 and found.requests == total == prometheus.value("sum(tercet_gateway_requests_total)")

    await asyncio.to_thread(wait_until, settled, "all requests are in the ledger and scraped")
    (books,) = await asyncio.to_thread(usage, watched.ledger, 0.0, 1e12)
    # Outcomes and reasons are what clients were told.
    assert await asyncio.to_thread(_endings, watched) == told
    # Sums are those of the ledger's rows.
    for name, wanted in (
        ("prompt_tokens", books.prompt_tokens),
        ("generated_tokens", books.generated_tokens),
        ("delivered_tokens", books.delivered_tokens),
        ("wasted_tokens", books.generated_tokens - books.delivered_tokens),
        ("gpu_seconds", books.gpu_s),
        ("cost", books.cost),
    ):
        found = prometheus.value(f"sum(tercet_gateway_{name}_total)")
        assert found == pytest.approx(wanted, rel=1e-6), name
    assert prometheus.value("sum(tercet_gateway_tenant_cost_total)") == pytest.approx(books.cost)
    # Who left or was late did not count all that was delivered to its connection.
    assert tokens <= books.delivered_tokens
    # What the scheduler counted, and the worker.
    assert prometheus.value("sum(tercet_scheduler_requests_accepted_total)") == sum(
        count for ending, count in told.items() if not ending.startswith("refused")
    )
    waiting = "tercet_gateway_ledger_rows_waiting"
    await asyncio.to_thread(wait_until, lambda: prometheus.value(waiting) == 0, "the ledger has all rows")
    assert watched.families("worker")["tercet_worker_generated_tokens"].samples[0].value - warm_up >= tokens
    used = 'sum(tercet_worker_kv_blocks{state="used"})'
    await asyncio.to_thread(wait_until, lambda: prometheus.value(used) == 0, "no block is in use")
    await asyncio.to_thread(_check_scrapes, watched)
    await _lose_the_worker(watched)


def _check_scrapes(watched: Watched) -> None:
    """All that services tell is on the page; all that rules and dashboard ask for is there; no rule fails."""
    page = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
    documented = set(re.findall(r"^\| `(tercet_\w+)` \|", page, re.MULTILINE))
    told = set()
    for name in watched.ports:
        families = watched.families(name).values()
        told |= {f"{each.name}_total" if each.type == "counter" else each.name for each in families}
    assert {name for name in told if name.startswith("tercet_")} == documented
    assert {name for name in told if not name.startswith("tercet_")} == set(re.findall(r"`(process_\w+)`", page))
    for name in watched.ports:
        command = ["promtool", "check", "metrics"]
        done = subprocess.run(command, input=watched.text(name), capture_output=True, text=True, timeout=60)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", ""), name
    prometheus = watched.prometheus
    wait_until(
        lambda: all(group["lastEvaluation"] > "1" for group in prometheus.get("rules")["groups"]), "rules are evaluated"
    )
    for group in prometheus.get("rules")["groups"]:
        for rule in group["rules"]:
            assert rule["health"] in ("ok", "unknown"), rule
            assert not rule.get("lastError"), rule
    firing = [
        alert["labels"]["alertname"] for alert in prometheus.get("alerts")["alerts"] if alert["state"] == "firing"
    ]
    assert not firing
    names = prometheus.names()
    dashboard = json.loads((ROOT / "ops" / "grafana" / "tercet-mesh.json").read_text(encoding="utf-8"))
    for panel in dashboard["panels"]:
        for target in panel.get("targets", ()):
            query = target["expr"].replace("$class", ".*").replace("$__rate_interval", "1m")
            prometheus.get("query", query=query)
            asked = {name for name in re.findall(r"(?<!:)\b(tercet_\w+)\b(?!:)", query) if name != "tercet-"}
            # Of forecasts there is none while admission is off.
            assert asked - names <= {"tercet_scheduler_forecast_error_ratio", "tercet_scheduler_forecast_bias_ratio"}


async def _lose_the_worker(watched: Watched) -> None:
    """What it takes with it is counted, and alerts begin."""
    prometheus, mesh = watched.prometheus, watched.mesh
    before = _endings(watched)
    told: Counter[str] = Counter()
    running = asyncio.Event()

    async def ask(client: AsyncClient, request_id: str) -> None:
        try:
            async with client.generate("Once", request_id=request_id, max_tokens=2000, ignore_eos=True) as events:
                async for event in events:
                    told["tokens"] += len(getattr(event, "token_ids", ()))
                    if told["tokens"] >= 30:
                        running.set()
        except RequestError as error:
            told[f"lost {error.reason}"] += 1

    async with AsyncClient(mesh.address) as client:
        asking = [asyncio.create_task(ask(client, str(number))) for number in range(3)]
        await running.wait()
        mesh.kill("worker")
        await asyncio.gather(*asking)
    del told["tokens"]
    assert told == {"lost WORKER_LOST": 3}

    def seen() -> bool:
        return _endings(watched) - before == told and prometheus.values('tercet_scheduler_workers{state="away"}') == [
            1.0
        ]

    await asyncio.to_thread(wait_until, seen, "it is counted")
    assert prometheus.value("tercet_scheduler_workers_lost_total") == 1
    assert prometheus.value('up{job="tercet-worker"}') == 0
    assert prometheus.value('tercet_health{job="tercet-gateway", name="ready"}') == 0

    def pending() -> set[str]:
        return {alert["labels"]["alertname"] for alert in prometheus.get("alerts")["alerts"]}

    wanted = {"TercetServiceDown", "TercetNoWorker"}
    await asyncio.to_thread(wait_until, lambda: wanted <= pending(), "the alerts are pending")
