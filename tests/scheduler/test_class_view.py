"""What classes ask for, told without a look at each that waits: the same as with one."""

from __future__ import annotations

from typing import Any

import pytest
from recorded import live

from scheduler.core import Core
from scheduler.events import Event


@pytest.mark.parametrize("seed", range(6))
def test_it_says_what_a_look_at_all_says(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    apply, plan, seen = Core.apply, Core.plan, {"waiting": 0, "running": 0, "oldest": 0}

    def compare(core: Core, now: float) -> None:
        full, brief = core.traffic(now, 10), core.class_view(now)
        assert [each.traffic_class for each in brief.classes] == [each.traffic_class for each in full.classes]
        for mine, theirs in zip(brief.classes, full.classes, strict=True):
            load = theirs.load
            assert mine.traffic.counts is theirs.counts
            assert mine.load.requests_waiting == load.requests_waiting
            assert mine.load.tokens_waiting == load.tokens_waiting
            assert mine.load.oldest == load.oldest
            assert mine.load.requests_running == load.requests_running
            seen["waiting"] += load.requests_waiting
            seen["running"] += load.requests_running
            seen["oldest"] += load.oldest is not None

    def applied(core: Core, event: Event, now: float) -> Any:
        actions = apply(core, event, now)
        compare(core, now)
        return actions

    def planned(core: Core, now: float) -> Any:
        actions = plan(core, now)
        compare(core, now)
        return actions

    monkeypatch.setattr(Core, "apply", applied)
    monkeypatch.setattr(Core, "plan", planned)
    live(seed, 100)
    assert all(seen.values())
