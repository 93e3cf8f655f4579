"""What `tercet top` draws of fixed numbers."""

from __future__ import annotations

import dataclasses
import io
import re
from typing import Any

import pytest
from looks import a_class, counts, moment, tenant, worker
from rich.console import Console

from tercet.cli.top_picture import Picture
from tercet.cli.top_rates import Moment, rates_between
from tercet.traffic import CancelTraffic, ForecastQuality, Kept, Load, Promises, Spread, Targets

KEPT = Promises(Kept(96, 4), Kept(90, 10), Kept(88, 12))


def busy(uptime_s: float, *, num_workers: int = 2, num_tenants: int = 3) -> Moment:
    """One second more is 50 steps of each worker, 400 tokens, and 3 refusals."""
    more = round(uptime_s - 60)
    spread = Spread(100, 0.3, 0.21, 0.64, 0.9)
    chat = a_class(
        load=Load(12, 8400, 0.4, 31, 40),
        counts=counts(
            100 + 10 * more, 9000 + 400 * more, {"SLO_UNREACHABLE": 7 + 2 * more, "QUEUE_FULL": 3 + more}, KEPT
        ),
        targets=Targets(1.0, 95.0, 0.2, 95.0),
        recent=KEPT,
        ttft=spread,
    )
    batch = a_class("batch", load=Load(3012, 4_500_000, 75.0, 8, 20), counts=counts(50, 7000))
    nameless = a_class("", counts=counts(refused={"INVALID_FIELD": 5 + more}))
    tenants = [
        tenant(f"tenant-{index}", 10 + more, Load(1, 2, None, 3, 20), promises=KEPT) for index in range(num_tenants)
    ]
    workers = [worker(f"host:{index}", steps=1000 + 50 * more) for index in range(num_workers)]
    return moment(uptime_s, (chat, batch, nameless), tuple(tenants), tuple(workers))


def drawn(picture: Picture, width: int = 80, **options: Any) -> list[str]:
    console = Console(width=width, record=True, file=io.StringIO(), **options)
    console.print(picture)
    return [line.rstrip() for line in console.export_text().splitlines()]


def live(width: int = 80, height: int | None = None, **more: Any) -> list[str]:
    before, after = busy(60.0, **more), busy(61.0, **more)
    return drawn(Picture("gate:1", after, rates_between(before, after), height=height), width)


def row(lines: list[str], name: str) -> str:
    """The line that begins so, without the space between its columns."""
    return " ".join(next(line for line in lines if line.startswith(name)).split())


def test_a_picture_of_80_by_24() -> None:
    lines = live(height=24)
    assert lines[0] == "tercet gate:1  up 61 s"
    assert lines[1].startswith("2/2 workers, 100 steps/s, 400 tok/s, 4 running, 2 waiting, 17 ended")
    assert lines[3] == "host:0 ██████████▒▒▒▒▒····· KV 50 %, cached 25 %, 3 seqs"
    heading = row(lines, "class")
    assert heading == "class wait oldest run tok/s TTFT p50 p95 kept gap kept refused/s"
    assert row(lines, "interactive") == "interactive 12 400 ms 31 400 210 ms 640 ms 96 % 90 % 3"
    assert row(lines, "batch") == "batch 3,012 75 s 8 0 - - - - 0"
    assert "refused interactive: SLO_UNREACHABLE 2/s, QUEUE_FULL 1/s" in lines
    assert "refused of no class: INVALID_FIELD 1/s" in lines
    assert row(lines, "tenant-1") == "tenant-1 1 3 10 % 1 0 96 % 88 % 0"


def test_how_long_cancels_took_until_blocks_were_free() -> None:
    now = busy(61.0, num_tenants=30)
    cancels = (
        CancelTraffic("deadline", Spread(3, 0.02, 0.02, 0.03, 0.04)),
        CancelTraffic("client", Spread(1204, 0.01, 0.008, 0.02, 0.031)),
        CancelTraffic("operator", Spread(0, 0.0, 0.0, 0.0, 0.0)),
    )
    told = dataclasses.replace(now, traffic=dataclasses.replace(now.traffic, cancels=cancels))
    line = "cancel to free: client 8 ms, p99 31 ms (1,204); deadline 20 ms, p99 40 ms (3)"
    assert line in drawn(Picture("gate:1", told))
    # It has its line of what there are.
    assert len(drawn(Picture("gate:1", told, height=24))) == 24
    assert not any(each.startswith("cancel") for each in drawn(Picture("gate:1", now)))


def test_a_wide_terminal_shows_targets_too() -> None:
    lines = live(width=140)
    heading = row(lines, "class")
    for name in ("tokens", "acc/s", "target", "gap target", "all kept"):
        assert name in heading
    assert row(lines, "interactive") == (
        "interactive 12 8,400 400 ms 31 10 400 210 ms 640 ms 1.0 s 96 % 200 ms 90 % 88 % 3"
    )


@pytest.mark.parametrize("width", [40, 60, 80, 109, 110, 200])
@pytest.mark.parametrize("height", [10, 24, 50])
@pytest.mark.parametrize(("num_workers", "num_tenants"), [(0, 0), (1, 1), (4, 40), (64, 3)])
def test_it_never_has_more_lines_than_the_terminal(width: int, height: int, num_workers: int, num_tenants: int) -> None:
    lines = live(width, height, num_workers=num_workers, num_tenants=num_tenants)
    # Of a terminal that has room for the classes.
    assert len(lines) <= max(height, 15)
    assert all(len(line) <= width for line in lines)


def test_what_there_is_no_room_for_is_said() -> None:
    lines = live(height=24, num_workers=64, num_tenants=40)
    assert sum(line.startswith("tenant-") for line in lines) + int(row(lines, "and 3").split()[1]) == 40
    (workers,) = [line for line in lines if "of all 64" in line]
    assert sum(line.startswith("host:") for line in lines) + int(workers.split()[1]) == 64
    omitted = moment(tenants=(tenant("acme"),), tenants_omitted=7)
    assert "and 7 more" in drawn(Picture("gate:1", omitted))


def test_without_rates_it_shows_what_there_is_since_the_start() -> None:
    lines = drawn(Picture("gate:1", busy(60.0)))
    heading = row(lines, "class")
    assert heading == "class wait oldest run served TTFT p50 p95 kept gap kept refused"
    assert row(lines, "interactive") == "interactive 12 400 ms 31 100 210 ms 640 ms 96 % 90 % 10"
    assert "refused interactive: SLO_UNREACHABLE 7, QUEUE_FULL 3" in lines
    assert "/s" not in "\n".join(lines)


def test_a_mesh_without_tenants_has_no_table_of_them() -> None:
    lines = drawn(Picture("gate:1", moment(classes=(a_class(),), tenants=(tenant("", 5),))))
    assert not [line for line in lines if line.startswith("tenant")]


def test_of_a_tenant_that_is_new_no_rate_is_known() -> None:
    before, after = (
        moment(10.0, tenants=(tenant("acme", 5),)),
        moment(11.0, tenants=(tenant("acme", 9), tenant("new", 3))),
    )
    lines = drawn(Picture("gate:1", after, rates_between(before, after)))
    assert row(lines, "acme") == "acme 0 0 4 0 - - 0"
    assert row(lines, "new") == "new 0 0 - - - - -"


def test_those_that_are_gone_have_a_row() -> None:
    lines = drawn(Picture("gate:1", moment(tenants=(tenant("acme", 5), tenant(None, 3)))))
    assert any(line.startswith("(others)") for line in lines)


def test_workers_that_are_not_there_or_about_to_go() -> None:
    workers = (worker("host:1", live=False), worker("host:2", draining=True, swap_blocks_used=9))
    lines = drawn(Picture("gate:1", moment(workers=workers)))
    assert "host:1 not connected" in lines
    assert "draining" in "\n".join(lines)
    assert "9 swapped" in "\n".join(lines)


def test_workers_that_do_not_move() -> None:
    workers = (worker("host:1", live=False, hung=True), worker("host:2", late=True))
    lines = drawn(Picture("gate:1", moment(workers=workers)))
    assert "host:1 hung" in lines
    assert row(lines, "host:2").endswith(", late")


def test_a_lost_mesh_is_shown_with_what_was_seen_last() -> None:
    nothing = drawn(Picture("gate:1", problem="GATEWAY_LOST: no gateway answers at gate:1"))
    assert nothing == ["tercet gate:1  GATEWAY_LOST: no gateway answers at gate:1"]
    lines = drawn(Picture("gate:1", busy(60.0), problem="GATEWAY_LOST: no gateway answers"))
    assert lines[0] == "tercet gate:1  up 60 s  GATEWAY_LOST: no gateway answers"
    assert row(lines, "interactive")


def test_how_good_forecasts_are() -> None:
    known = ForecastQuality("llama", "f00", 256, 0.12, -0.034, 0, 0)
    tried = ForecastQuality("qwen", "f00", 40, 1.3, 1.2, 5, 1)
    unknown = ForecastQuality("phi", "f00", 0, 0.0, 0.0, 0, 0)
    lines = drawn(Picture("gate:1", moment(forecasts=(known, tried, unknown))), width=120)
    assert lines[-2:] == [
        "forecast of TTFT: off by 12 %, 3 % too low (medians of 256); llama",
        "forecast of TTFT: off by 130 %, 120 % too high (medians of 40); of 5 to be refused and tried 1 in time; qwen",
    ]


def test_a_promise_that_is_broken_too_often_is_red() -> None:
    console = Console(width=80, record=True, file=io.StringIO(), force_terminal=True, color_system="standard")
    console.print(Picture("gate:1", busy(60.0)))
    styled = console.export_text(styles=True)
    assert re.search(r"\x1b\[32m *96 %", styled)
    assert re.search(r"\x1b\[31m *90 %", styled)


def test_a_terminal_without_blocks_gets_other_marks() -> None:
    file = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    Console(width=80, file=file).print(Picture("gate:1", busy(60.0)))
    file.seek(0)
    assert "host:0 ##########+++++..... KV 50 %" in file.read()
