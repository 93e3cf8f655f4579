"""A scheduler's names: the table, and what is looked at."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from scheduler.events import BlockCounts
from scheduler.fleet_view import WorkerView
from scheduler.health import STUCK_SECONDS, SchedulerFacts, conditions

SERVICE = "tercet.mesh.v1.Scheduler"
THERE = WorkerView(
    address="127.0.0.1:1",
    live=True,
    model="m",
    device="cpu",
    sequences=0,
    blocks_total=8,
    blocks=BlockCounts(8, 0, 0),
    steps=0,
    tokens=0,
    swap_blocks_total=0,
    swap_blocks_used=0,
    draining=False,
)
AWAY = dataclasses.replace(THERE, live=False)
LEAVING = dataclasses.replace(THERE, draining=True)
WELL = SchedulerFacts(stopping=False, stuck_s=0.0, workers=(THERE, THERE), certificate="", crowded=())


@pytest.mark.parametrize(
    ("facts", "lost"),
    [
        ({}, set()),
        ({"stopping": True}, {"", "ready", SERVICE}),
        ({"stuck_s": STUCK_SECONDS - 1}, set()),
        ({"stuck_s": STUCK_SECONDS}, {"", "live", "ready", SERVICE}),
        ({"workers": ()}, {"ready", "intact"}),
        ({"workers": (THERE, AWAY)}, {"intact"}),
        ({"workers": (THERE, LEAVING)}, {"intact"}),
        ({"workers": (AWAY, AWAY)}, {"ready", "intact"}),
        ({"workers": (LEAVING, AWAY)}, {"ready", "intact"}),
        ({"certificate": "its certificate has expired"}, {"intact"}),
        ({"crowded": ("no room for class batch",)}, {"has-room"}),
    ],
)
def test_what_is_lost_by_what(facts: dict[str, Any], lost: set[str]) -> None:
    found = conditions(dataclasses.replace(WELL, **facts), SERVICE)
    assert found.keys() == {"", "live", "ready", SERVICE, "intact", "has-room"}
    assert {name for name, reasons in found.items() if reasons} == lost


def test_reasons_count_and_name_no_address() -> None:
    found = conditions(dataclasses.replace(WELL, workers=(THERE, AWAY, LEAVING)), SERVICE)
    assert found["intact"] == ("1 of 3 workers not connected", "1 of 3 workers about to stop")
