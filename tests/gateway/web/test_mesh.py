"""The mesh in the console: what a scheduler says is what is shown, and it moves."""

from __future__ import annotations

from typing import Any

import pytest

from tercet.errors import SchedulerLostError
from tercet.v1 import operations_pb2 as pb

from .browser import Page
from .conftest import WatchedScheduler


def kept(yes: int, no: int) -> pb.PromiseCount:
    return pb.PromiseCount(kept=yes, broken=no)


def a_class(name: str, waiting: int = 0, running: int = 0, tokens: int = 0, **refused: int) -> pb.ClassTraffic:
    """Promises 95 % in a second; keeps 9 of 10."""
    return pb.ClassTraffic(
        name=name,
        load=pb.TrafficLoad(requests_waiting=waiting, requests_running=running, oldest_seconds=1.5),
        counts=pb.TrafficCounts(accepted=running, generated_tokens=tokens, refused=refused),
        targets=pb.TrafficTargets(ttft_seconds=1, ttft_percentile=95),
        recent=pb.RecentService(
            promises=pb.PromiseCounts(ttft=kept(9, 1)), ttft=pb.Spread(count=10, p50_seconds=0.091, p95_seconds=1.2)
        ),
    )


def traffic(uptime_s: float, *classes: pb.ClassTraffic, **fields: Any) -> pb.Traffic:
    return pb.Traffic(epoch=1, uptime_seconds=uptime_s, classes=classes, **fields)


def a_worker(address: str, used: int, steps: int = 0, *, live: bool = True) -> pb.WorkerStatus:
    return pb.WorkerStatus(
        address=address, live=live, model="bytes", device="cpu", sequences=3, blocks_total=100, blocks_used=used,
        blocks_cached=20, blocks_free=80 - used, steps=steps, tokens=2 * steps,
    )  # fmt: skip


async def rows(page: Page, table: str) -> list[dict[str, str]]:
    """A table's rows, by its heads."""
    script = (
        "const table = document.getElementById(arguments[0]);"
        "const read = (row) => [...row.cells].map((cell) => cell.innerText.trim());"
        "return [...table.rows].map(read);"
    )
    head, *body = await page.run(script, table)
    return [dict(zip(head, row, strict=True)) for row in body]


async def label(page: Page, chart: str) -> str:
    return str(await page.run(f"return document.querySelector('#{chart} svg').getAttribute('aria-label')"))


async def line(page: Page, chart: str, tone: int) -> str:
    """The path that a chart draws of one series."""
    script = f"return document.querySelector('#{chart} .canvas .line[data-tone=\"{tone}\"]').getAttribute('d')"
    return str(await page.run(script))


@pytest.fixture
async def mesh(page: Page, scheduler: WatchedScheduler) -> Page:
    scheduler.fleet = pb.Fleet(
        requests_waiting=4, requests_running=2, workers=[a_worker("a:1", 30), a_worker("b:1", 0, live=False)]
    )
    scheduler.traffic = traffic(10, a_class("interactive", 4, 1, 100), a_class("batch", 0, 1, 0, QUEUE_FULL=2))
    await page.open("mesh")
    await page.until_shown("#mesh-data", "Workers live")
    return page


async def test_what_there_is_is_shown(mesh: Page) -> None:
    tiles = [await mesh.shown(f"#tile-{name}") for name in ("workers", "running", "waiting", "blocks", "uptime")]
    assert [tile.replace("\u202f", " ") for tile in tiles] == ["1 of 2", "2", "4", "15 %", "10 s"]
    first, second = await rows(mesh, "classes")
    assert (first["Class"], first["Waiting"], first["First token p50"], first["p95"]) == (
        "interactive", "4", "91\u202fms", "1.2\u202fs",
    )  # fmt: skip
    assert first["In time"] == "90\u202f%"
    assert second["Refused, why"] == "QUEUE_FULL 2"
    assert await mesh.run("return document.querySelector('#classes td[data-tone=bad]').innerText") == "90\u202f%"
    workers = await rows(mesh, "workers")
    assert [(each["Worker"], each["State"], each["KV in use"]) for each in workers] == [
        ("a:1", "live", "30\u202f%"), ("b:1", "lost", "0\u202f%"),
    ]  # fmt: skip
    assert await label(mesh, "chart-waiting") == "Requests waiting: interactive 4, batch 0"
    assert "interactive 90\u202f% of 95\u202f%" in await label(mesh, "chart-first")
    assert await mesh.run("return document.getElementById('tenants-part').hidden")


async def test_charts_move(mesh: Page, scheduler: WatchedScheduler) -> None:
    def grow(told: pb.Fleet | pb.Traffic) -> None:
        """A second passes from one look to the next."""
        if isinstance(told, pb.Fleet):
            told.workers[0].steps += 10
        else:
            told.uptime_seconds += 1
            told.classes[0].load.requests_waiting += 5
            told.classes[0].counts.generated_tokens += 100
            told.classes[1].counts.refused["QUEUE_FULL"] += 3

    before = await line(mesh, "chart-waiting", 0)
    scheduler.grow = grow
    await mesh.until_shown("#tile-tokens", "100")
    assert await label(mesh, "chart-tokens") == "Tokens per second: interactive 100, batch 0"
    assert await label(mesh, "chart-refused") == "Refusals per second: QUEUE_FULL 3"
    assert (await rows(mesh, "workers"))[0]["Steps/s"] == "10"
    after = await line(mesh, "chart-waiting", 0)
    assert after != before
    points = [float(y) for _, y in (each.split(" ") for each in after[1:].split("L"))]
    # What waits grows, and what is higher is nearer to the top.
    assert points[-1] < points[0]


async def test_what_was_a_moment_ago_is_told_to_the_pointer(mesh: Page, scheduler: WatchedScheduler) -> None:
    scheduler.traffic = traffic(11, a_class("interactive", 7))
    await mesh.until_shown("#chart-waiting .value", "7")
    box = await mesh.run("return document.querySelector('#chart-waiting svg').getBoundingClientRect().toJSON()")
    first = {"type": "mouseMoved", "x": box["x"] + 50, "y": box["y"] + 50}
    await mesh.command("Input.dispatchMouseEvent", first)
    await mesh.until_shown("#chart-waiting .when", "ago")
    assert await mesh.shown("#chart-waiting .value") == "4"
    await mesh.command("Input.dispatchMouseEvent", {**first, "y": 1})
    await mesh.until("return document.querySelector('#chart-waiting .when').innerText === ''")
    assert await mesh.shown("#chart-waiting .value") == "7"


async def test_a_class_that_comes_and_one_that_goes(mesh: Page, scheduler: WatchedScheduler) -> None:
    scheduler.traffic = traffic(20, a_class("batch"), a_class("rag", 1), a_class("", INVALID_FIELD=1))
    await mesh.until_shown("#chart-waiting .legend", "rag")
    assert await label(mesh, "chart-waiting") == "Requests waiting: batch 0, rag 1"
    assert [each["Class"] for each in await rows(mesh, "classes")] == ["batch", "rag", "(no class)"]


async def test_tenants_are_shown_where_there_are_any(mesh: Page, scheduler: WatchedScheduler) -> None:
    load = pb.TrafficLoad(requests_running=2, kv_blocks=50)
    counts = pb.TrafficCounts(promises=pb.PromiseCounts(request=kept(3, 1)), refused={"TENANT_QUOTA": 5})
    tenants = [
        pb.TenantTraffic(tenant_id="acme", traffic_class="interactive", load=load, counts=counts),
        pb.TenantTraffic(tenant_id="acme", traffic_class="batch", load=load, counts=counts),
        pb.TenantTraffic(traffic_class="batch"),
    ]
    scheduler.traffic = traffic(20, a_class("interactive"), tenants=tenants, tenants_omitted=7)
    await mesh.until_shown("#tenants-part", "7 more are not shown.")
    acme, others = await rows(mesh, "tenants")
    wanted = {"Tenant": "acme", "Running": "4", "KV": "50\u202f%", "Promises kept": "75\u202f%", "Refused": "10"}
    assert {name: acme[name] for name in wanted} == wanted
    assert others["Tenant"] == "(others)"


class TestLost:
    @pytest.fixture
    def complaints(self) -> list[str]:
        return ["the server responded with a status of 503"]

    async def test_a_mesh_that_is_lost_stays_as_it_was_seen(self, mesh: Page, scheduler: WatchedScheduler) -> None:
        scheduler.traffic_failure = SchedulerLostError("nobody is there", retry_after_s=1)
        await mesh.until_shown("#mesh-problem", "nobody is there")
        assert await mesh.run("return document.getElementById('mesh-data').dataset.stale") == "true"
        assert await mesh.shown("#tile-running") == "2"
        scheduler.traffic_failure = None
        await mesh.until("return document.getElementById('mesh-problem').hidden")
        assert await mesh.run("return document.getElementById('mesh-data').dataset.stale") == "false"


async def test_nobody_looks_while_nothing_is_shown(mesh: Page) -> None:
    looks = "performance.getEntriesByType('resource').filter((each) => each.name.endsWith('/mesh')).length"
    await mesh.click("nav a[href='#chat']")
    # One may have been on its way.
    await mesh.run("return new Promise((resume) => setTimeout(resume, 500))")
    before = await mesh.run(f"return {looks}")
    await mesh.run("return new Promise((resume) => setTimeout(resume, 1500))")
    assert await mesh.run(f"return {looks}") == before
    await mesh.click("nav a[href='#mesh']")
    await mesh.until(f"return {looks} > {before}")
