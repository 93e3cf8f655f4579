"""A gateway's names: the table, and what is looked at."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from gateway.health import GatewayFacts, conditions

SERVICE = "tercet.v1.Inference"
WELL = GatewayFacts(
    stopping=False,
    attached=True,
    silent=False,
    served=True,
    tenants_lost=False,
    tenants_stale=False,
    ledger_lost=False,
    ledger_full=False,
    ledger_dead=False,
    certificate="",
    mesh_certificate="",
    crowded=(),
    scheduler={"intact": (), "has-room": ()},
)
UNREADY = {"ready", SERVICE}


@pytest.mark.parametrize(
    ("facts", "lost"),
    [
        ({}, set()),
        ({"scheduler": {}}, set()),
        ({"stopping": True}, {"", *UNREADY}),
        ({"attached": False, "served": False}, {*UNREADY, "intact"}),
        ({"silent": True}, {*UNREADY, "intact"}),
        ({"served": False}, UNREADY),
        ({"tenants_lost": True}, {"intact"}),
        ({"tenants_lost": True, "tenants_stale": True}, {*UNREADY, "intact"}),
        ({"ledger_lost": True}, {"intact"}),
        ({"ledger_lost": True, "ledger_full": True}, {*UNREADY, "intact"}),
        ({"ledger_dead": True}, {"", "live", *UNREADY}),
        ({"certificate": "its certificate has expired"}, {"intact"}),
        ({"mesh_certificate": "its certificate has expired"}, {"intact"}),
        ({"crowded": ("no room for requests",)}, {"has-room"}),
        ({"scheduler": {"intact": ("1 of 2 workers not connected",)}}, {"intact"}),
        ({"scheduler": {"has-room": ("no room for class batch",)}}, {"has-room"}),
    ],
)
def test_what_is_lost_by_what(facts: dict[str, Any], lost: set[str]) -> None:
    found = conditions(dataclasses.replace(WELL, **facts), SERVICE)
    assert found.keys() == {"", "live", "ready", SERVICE, "intact", "has-room"}
    assert {name for name, reasons in found.items() if reasons} == lost


def test_one_cause_is_told_once() -> None:
    nobody = conditions(dataclasses.replace(WELL, attached=False, served=False), SERVICE)
    assert nobody["ready"] == ("no scheduler is there",)
    away = conditions(dataclasses.replace(WELL, scheduler={"intact": ("1 of 2 workers not connected",)}), SERVICE)
    assert away["intact"] == ("scheduler: 1 of 2 workers not connected",)
