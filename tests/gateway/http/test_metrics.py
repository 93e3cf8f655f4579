"""Who may read a gateway's metrics over HTTP, and what it then sees."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import httpx2
import pytest
from prometheus_client.parser import text_string_to_metric_families

from gateway import books as books_module
from gateway.metrics_counts import REASONS, SEVERAL
from tercet.errors import EngineFaultError, QueueFullError
from tercet.metrics.labels import OTHER
from tercet.ports import free_ports

from ..guarded_gateway import guarded_gateway


def _values(text: str) -> dict[tuple[str, tuple[str, ...]], float]:
    return {
        (sample.name, tuple(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


async def test_without_keys_everyone_may(gateway: Any, http: httpx2.AsyncClient) -> None:
    assert (await http.post("/v1/completions", json={"prompt": "hello", "max_tokens": 5})).status_code == 200
    answer = await http.get("/metrics")
    assert (answer.status_code, answer.headers["cache-control"]) == (200, "no-store")
    values = _values(answer.text)
    # The scripted scheduler says the prompt's tokens again, and names no class.
    assert values["tercet_gateway_requests_total", ("", "bytes", "completed", "stop")] == 1
    assert values["tercet_gateway_delivered_tokens_total", ("", "bytes")] == 2
    assert values["tercet_gateway_inter_token_seconds_count", ("",)] == 1
    assert values["tercet_gateway_schedulers", ()] == values["tercet_gateway_workers", ("bytes",)] == 1
    assert values["tercet_gateway_requests_running", ()] == 0
    openmetrics = await http.get("/metrics", headers={"accept": "application/openmetrics-text; version=1.0.0"})
    assert openmetrics.text.endswith("# EOF\n")


async def test_another_host_is_not_answered(gateway: Any, http: httpx2.AsyncClient) -> None:
    assert (await http.get("/metrics", headers={"host": "evil.example"})).status_code == 421


async def test_with_keys_operators_may(scheduler: Any, model_path: Path, tmp_path: Path) -> None:
    port = free_ports(1)[0]
    async with (
        guarded_gateway(scheduler, model_path, tmp_path / "tenants.db", port) as guarded,
        httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}") as http,
    ):
        statuses = {}
        for who in ("alice", "boss"):
            headers = {"authorization": f"Bearer {guarded.keys[who].text}"}
            answer = await http.get("/metrics", headers=headers)
            statuses[who] = answer.status_code
        assert statuses == {"alice": 403, "boss": 200}
        assert (await http.get("/metrics")).status_code == 401
        assert (await http.get("/metrics", headers={"authorization": "Bearer tct_wrong"})).status_code == 401
        values = _values((await http.get("/metrics", headers=headers)).text)
        # Who had no valid key is nobody.
        assert values["tercet_gateway_tenant_requests_total", ("refused", "")] == 2


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[books_module.Books]:
    """The books of gateways that are started."""
    made: list[books_module.Books] = []
    begin = books_module.Books.start

    async def start(self: books_module.Books) -> None:
        made.append(self)
        await begin(self)

    monkeypatch.setattr(books_module.Books, "start", start)
    return made


async def test_ten_thousand_tenants_and_strange_words_make_few_series(
    counted: list[books_module.Books], gateway: Any, http: httpx2.AsyncClient
) -> None:
    before = len(_values((await http.get("/metrics")).text))
    books = counted[0]
    for number in range(10_000):
        reason = (QueueFullError.reason, EngineFaultError.reason, f"REASON {number}\n", "length,stop")[number % 4]
        books.refuse(f'tenant "{number}"', f"class-{number}", "bytes", reason, "")
    answer = await http.get("/metrics")
    values = _values(answer.text)
    requests = {key: value for key, value in values.items() if key[0] == "tercet_gateway_requests_total"}
    assert sum(requests.values()) == 10_000
    assert {labels[3] for _, labels in requests} <= {*REASONS, SEVERAL, OTHER}
    tenants = {labels[1]: value for (name, labels), value in values.items() if "tenant_requests" in name}
    assert len(tenants) == 32 + 1
    assert tenants[OTHER] == 10_000 - 32
    assert len(values) - before <= 32 + 1 + 4
    assert len(answer.content) < 100_000


async def test_no_text_of_a_client_is_told(gateway: Any, http: httpx2.AsyncClient) -> None:
    secret = "xyzzy"
    fields = ("prompt", "user", "model", "request_id", "traffic_class", "stop")
    body = dict.fromkeys(fields, secret)
    statuses = Counter()
    for left_out in body:
        sent = {key: value for key, value in body.items() if key != left_out}
        statuses[(await http.post("/v1/completions", content=json.dumps(sent))).status_code // 100] += 1
        headers = {"content-type": "application/json", "x-request-id": secret}
        statuses[(await http.post("/v1/completions", json=sent, headers=headers)).status_code // 100] += 1
    assert statuses[5] == 0
    assert secret not in (await http.get("/metrics")).text
