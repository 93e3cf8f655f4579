"""What a run cost, and what its requests were charged with."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tercet.errors import LedgerError, LoadError
from tercet.ledger.ledger import Ledger
from tercet.ledger.row import Outcome
from tercet.ledger.row import Row as LedgerRow
from tercet.ledger.usage import Usage
from tercet.load.record import ClientSample, Sample, ServerSample, WorkerSample
from tercet.load.report.charges import Charges, read_charges
from tercet.load.report.cost import PointCost, Price, costs, workers_of

from .made_run import ENVIRONMENT, refused, row, run


def worker(address: str) -> WorkerSample:
    return WorkerSample(address, True, 1, 1, 1, 1, None)


def sample(*workers: WorkerSample) -> Sample:
    return Sample(0, 1.0, ClientSample(1, 1, 1, 0.1, 0.1), ServerSample(0, 1, 1, 1, 1, None, workers), 0.5)


def test_a_run_costs_its_time() -> None:
    rows = [row(at, at * 0.1, qualified=at < 30) for at in range(40)]
    made = run([*rows, refused(40, 0.1)])
    (cost,) = costs(made, Price(hour=3.6, workers=2))
    seconds = made.summary.points[0].duration_s
    assert cost.worker_s == pytest.approx(2 * seconds)
    assert cost.cost == pytest.approx(0.002 * seconds)
    assert cost.cost_per_qualified == pytest.approx(cost.cost / 30)
    assert cost.cost_per_1000 == pytest.approx(1_000 * cost.cost / (40 * 11))
    # Half of them qualified: each costs twice as much.
    (half,) = costs(run([dataclasses.replace(each, qualified=each.index < 15) for each in rows]), Price(3.6, 2))
    assert half.cost_per_qualified == pytest.approx(2 * cost.cost_per_qualified)


def test_nothing_served_has_no_price() -> None:
    (cost,) = costs(run([refused(at, at * 1.0) for at in range(3)]), Price(1.0, 1))
    assert cost.cost > 0
    assert (cost.cost_per_qualified, cost.cost_per_1000) == (None, None)
    assert costs(run([]), Price(1.0, 1)) == (PointCost(0, 0.0, 0.0, 0, 0),)


def test_workers_are_those_of_the_mesh() -> None:
    made = run([row()], [sample(worker("a"), worker("b")), sample(worker("a"))])
    assert workers_of(made) == 2
    host = {"same_host": True, "host": {"gpus": [{"name": "H200"}] * 4}}
    assert workers_of(run([row()], [sample()], environment=host)) == 4
    for environment in ({**host, "same_host": False}, ENVIRONMENT, {"same_host": True, "host": {"gpus": []}}):
        with pytest.raises(LoadError, match="--workers"):
            workers_of(run([row()], environment=environment))


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    made = Ledger(str(tmp_path / "ledger.db"), time.time)
    made.create()
    yield made
    made.close()


def charged(number: int, request_id: str, **changes: Any) -> LedgerRow:
    values: dict[str, Any] = {
        "outcome": Outcome.COMPLETED, "prompt_tokens": 10, "delivered_tokens": 100, "wasted_tokens": 5, "gpu_s": 1.8,
        "cost": 0.5, "slo": "met",
    }  # fmt: skip
    values.update(changes)
    outcome, tenant = values.pop("outcome"), values.pop("tenant", "acme")
    return LedgerRow(number, request_id, tenant, "interactive", "small", "v1", 1, time.time(), outcome, **values)


def test_charges_are_those_of_the_run_alone(ledger: Ledger) -> None:
    rows = [
        charged(1, "r1"),
        charged(2, "r2", outcome=Outcome.FAILED, slo=None),
        charged(3, "r3", slo="ttft", tenant="globex"),
        charged(4, "of-another-run"),
        charged(5, "r5"),
        charged(6, "r6", outcome=Outcome.CANCELLED, delivered_tokens=None, wasted_tokens=None, gpu_s=None, cost=None),
    ]
    ledger.write("one", rows, [])
    mine = [row(1), row(2), row(3), row(5, warm_up=True), row(6), row(7), refused(8, request_id="")]
    found = read_charges(ledger, mine, None)
    # Failed work is paid for by those that qualified.
    assert found.total == Usage(
        (), requests=4, qualified=1, delivered_tokens=300, gpu_s=pytest.approx(5.4), cost=pytest.approx(1.5)
    )
    assert found.total.cost_per_qualified == pytest.approx(1.5)
    assert found.total.cost_per_1000 == pytest.approx(5.0)
    assert found.asked == 5
    assert found.hour == pytest.approx(1_000)
    assert list(found.by_class) == ["interactive"]
    assert found.by_tenant["globex"] == Usage(("globex",), requests=1, delivered_tokens=100, gpu_s=1.8, cost=0.5)
    assert found.by_tenant["globex"].cost_per_qualified is None
    for groups in (found.by_class, found.by_tenant):
        assert sum(each.cost for each in groups.values()) == pytest.approx(found.total.cost)
    # Another price.
    assert read_charges(ledger, mine, 3_600.0).total.cost == pytest.approx(5.4)


def test_many_requests_are_looked_for_in_parts(ledger: Ledger) -> None:
    ledger.write("one", [charged(at, f"r{at}") for at in range(1_200)], [])
    assert read_charges(ledger, [row(at) for at in range(1_200)], None).total.requests == 1_200
    assert read_charges(ledger, [], None) == Charges(0, Usage(()), {}, {})


def test_a_ledger_that_is_none(tmp_path: Path) -> None:
    none = Ledger(str(tmp_path / "none" / "ledger.db"), time.time)
    with pytest.raises(LedgerError):
        read_charges(none, [row()], None)
    none.close()
