"""What a flood costs its neighbour on the virtual clock: a small run of the bench, and the floor it is held against."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from bench.flood import CHAT, LONG, Step, Wait, floors, main, measure
from bench.overload_study import COST, MESSAGE_DELAY_S
from scheduler import pool


@cache
def beside(own: str, flood: str = "", seconds: float = 10.0) -> dict[str, Any]:
    prompts = {"chat": CHAT, "long": LONG}
    return measure(prompts[own], prompts.get(flood), 3.0, seconds, seed=1)


def ratio(figures: dict[str, Any], percentile: str) -> float:
    """Of the first tokens over what the steps themselves force."""
    return figures["first_token_ms"][percentile] / figures["floor_ms"][percentile]


def test_alone_first_tokens_are_at_the_floor() -> None:
    for own in ("chat", "long"):
        assert ratio(beside(own), "p50") == pytest.approx(1.0, abs=0.05)
        assert ratio(beside(own), "p95") == pytest.approx(1.0, abs=0.05)


@pytest.mark.parametrize(("own", "flood"), [("chat", "chat"), ("long", "chat"), ("long", "long")])
def test_beside_a_flood_they_are_near_it(own: str, flood: str) -> None:
    figures = beside(own, flood)
    assert ratio(figures, "p50") <= 1.25
    assert ratio(figures, "p95") <= 1.4
    # It waits for a step, not for a place.
    assert figures["start_ms"]["p50"] <= 1.0
    assert not figures["flows"]["own"]["refused"]
    assert figures["flows"]["flood"]["refused"]


def test_what_the_neighbour_gets_costs_the_mesh_little(monkeypatch: pytest.MonkeyPatch) -> None:
    figures = beside("chat", "chat")
    monkeypatch.setattr(pool, "OWED_STEPS", 0)
    without = measure(CHAT, CHAT, 3.0, 10.0, seed=1)
    assert figures["tokens_per_second"] >= 0.97 * without["tokens_per_second"]
    assert without["first_token_ms"]["p50"] >= 1.5 * figures["first_token_ms"]["p50"]


def test_the_floor_is_the_step_that_runs_and_those_with_the_own_prompts() -> None:
    # Steps of 10 ms without the flood's prompts, whatever these made of them.
    steps = [Step(0.0, 0.03, 0.01), Step(0.03, 0.03, 0.01), Step(0.06, 0.03, 0.01)]
    waits = [Wait(0.004, 100), Wait(0.005, 3000), Wait(0.2, 50)]
    first, second, third = (
        wait.arrived_at + floor for wait, floor in zip(waits, floors(waits, steps, 0.05), strict=True)
    )
    # The first step ends at 10 ms, and the next one has 40 ms for prompts: all of one, and some of the other.
    room = int(0.04 / COST.token_s)
    end = 0.02 + room * COST.token_s
    assert first == pytest.approx(end + MESSAGE_DELAY_S)
    assert second == pytest.approx(end + 0.01 + (3100 - room) * COST.token_s + MESSAGE_DELAY_S)
    # Nothing runs when the third one comes.
    assert third == pytest.approx(0.2 + MESSAGE_DELAY_S + COST.base_s + 50 * COST.token_s + MESSAGE_DELAY_S)


def test_a_table_and_a_file_of_each_combination(tmp_path: Path) -> None:
    file = tmp_path / "flood.json"
    options = ["--prompts", "chat,long", "--floods", "1", "--seconds", "2", "--json", str(file)]
    done = CliRunner().invoke(main, options, catch_exceptions=False)
    assert done.exit_code == 0
    result = json.loads(file.read_text())
    assert list(result) == [
        "chat, alone",
        "chat, beside 1 x chat",
        "chat, beside 1 x long",
        "long, alone",
        "long, beside 1 x chat",
        "long, beside 1 x long",
    ]
    assert [line.split("  ")[0] for line in done.stdout.splitlines()] == list(result)
    for figures in result.values():
        assert 0 < figures["floor_ms"]["p50"] <= figures["floor_ms"]["p95"]
        assert figures["tokens_per_second"] > 0
