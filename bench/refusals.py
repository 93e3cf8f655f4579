"""What refusing costs, through a real gateway, and what it costs those who were let in.

    python -m bench.refusals
    python -m bench.refusals --case quota,queue --rates 100,1000 --seconds 10 --json refusals.json

Gateway, scheduler and a simulated worker with steps of 10 ms; in a process of their own 16 streams, whose gaps are
measured, and in another one calls that come when they are due and are refused, each case for another reason:

key        without a key: UNAUTHENTICATED
model      for a model that is not served: MODEL_NOT_FOUND
quota      of a tenant that has had its requests of the minute: TENANT_QUOTA
concurrent of a tenant that runs as many as it may: TENANT_QUOTA
class      of a class that the tenant's plan does not include: PERMISSION_DENIED
queue      of a class whose queue is full: QUEUE_FULL
promise    of a class whose promise cannot be kept: SLO_UNREACHABLE

For each the time from call to refusal on the client's clock, the CPU time that gateway and scheduler spent on one, over
what the streams alone cost, and the streams' gaps. A client that is late itself cannot keep up with the rate. In the
last case some are let in, to see whether they are refused rightly; they count among the calls that time is spent on.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import multiprocessing
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import click
import uvloop

from bench.plan_mesh import PlanMesh, Simulated, plan_mesh
from bench.refusal_load import LEAD_S, Answers, Flood, flood, in_ms, started, stream_gaps
from tercet.client import Accepted, AsyncClient
from tercet.tenants.plan import TenantPlan
from tercet.tenants.store import Store
from tercet.v1 import inference_pb2 as pb

Figures = dict[str, Any]
STEP = Simulated(10.0, token_us=10.0)
STREAMS = 16
SENTENCE = "The quick brown fox jumps over the lazy dog. "
SETTINGS = {
    "worker.max_num_seqs": 64,
    "log.format": "json",
    # Streams are let in on any machine, and leave room for what holds a place.
    "classes.interactive.ttft_ms": 0.0,
    "classes.single.rank": 1,
    "classes.single.max_running": 1,
    "classes.single.max_queued_requests": 1,
    "classes.hasty.rank": 1,
    "classes.hasty.ttft_ms": 1.0,
}
PLANS = {
    "free": TenantPlan(),
    "metered": TenantPlan(requests_per_minute=1),
    "alone": TenantPlan(max_concurrent=1),
    "chatty": TenantPlan(classes=("interactive",)),
}


@dataclasses.dataclass(frozen=True, slots=True)
class Case:
    """Calls that are refused with `reason`: whose they are, what they name, and requests (class, how many) that have to
    run or wait for it."""

    reason: str
    tenant: str = "free"
    model: str = ""
    traffic_class: str = ""
    held: tuple[str, int] | None = None


CASES = {
    "key": Case("UNAUTHENTICATED", tenant=""),
    "model": Case("MODEL_NOT_FOUND", model="none-such"),
    "quota": Case("TENANT_QUOTA", tenant="metered"),
    "concurrent": Case("TENANT_QUOTA", tenant="alone", held=("", 1)),
    "class": Case("PERMISSION_DENIED", tenant="chatty", traffic_class="batch"),
    "queue": Case("QUEUE_FULL", traffic_class="single", held=("single", 2)),
    "promise": Case("SLO_UNREACHABLE", traffic_class="hasty"),
}


class Bench:
    """A running mesh with its tenants' keys, and processes for clients."""

    def __init__(self, mesh: PlanMesh, keys: dict[str, str], clients: ProcessPoolExecutor, prompt: str) -> None:
        self._mesh = mesh
        self._keys = keys
        self._clients = clients
        self._prompt = prompt

    async def run(self, case: Case, rate: float, seconds: float) -> Figures:
        """Streams alone, and then the same beside refusals."""
        async with self._holding(case):
            before = await self._beside(None, seconds)
            asked = Flood(self._mesh.gateway, self._keys.get(case.tenant, ""), self._body(case), rate, 0.0, seconds)
            during = await self._beside(asked, seconds)
        answers: Answers = during.pop("answers")
        figures: Figures = {"rate": rate, "reasons": dict(answers.reasons), "reason": case.reason}
        if answers.took:
            figures["refused"] = in_ms(answers.took, 50, 99)
        figures["client_late"] = in_ms(answers.late, 50, 99)
        figures["gaps_alone"], figures["gaps"] = before["gaps"], during["gaps"]
        for name in ("gateway", "scheduler"):
            spent = during[name] - before[name]
            figures[f"{name}_us_each"] = spent * 1e6 / max(1, sum(moment <= during["end"] for moment in answers.ended))
            figures[f"{name}_core"] = during[name] / seconds
        return figures

    async def _beside(self, asked: Flood | None, seconds: float) -> Figures:
        loop = asyncio.get_running_loop()
        begin = time.monotonic() + LEAD_S
        streams = loop.run_in_executor(
            self._clients, stream_gaps, self._mesh.gateway, self._keys["free"], STREAMS, begin, seconds
        )
        answers = None
        if asked is not None:
            answers = loop.run_in_executor(self._clients, flood, dataclasses.replace(asked, begin=begin))
        await asyncio.sleep(begin - time.monotonic())
        spent = {name: self._mesh.cpu_seconds(name) for name in ("gateway", "scheduler")}
        await asyncio.sleep(begin + seconds - time.monotonic())
        spent = {name: self._mesh.cpu_seconds(name) - before for name, before in spent.items()}
        figures: Figures = {**spent, "end": begin + seconds, "gaps": in_ms(await streams, 50, 99, 99.9)}
        if answers is not None:
            figures["answers"] = await answers
        return figures

    def _body(self, case: Case) -> bytes:
        request = pb.GenerateRequest(model=case.model, prompt=self._prompt, traffic_class=case.traffic_class)
        request.stop.max_tokens = 16
        return request.SerializeToString()

    @contextlib.asynccontextmanager
    async def _holding(self, case: Case) -> AsyncIterator[None]:
        """What has to run or wait for the case's calls to be refused."""
        if case.held is None:
            yield
            return
        traffic_class, count = case.held
        async with AsyncClient(self._mesh.gateway, api_key=self._keys[case.tenant]) as client:
            tasks = []
            for _ in range(count):
                accepted = asyncio.Event()
                tasks.append(asyncio.create_task(_hold(client, traffic_class, accepted)))
                await asyncio.wait_for(accepted.wait(), 10)
                # So long that it runs if it can, and the next one waits.
                await asyncio.sleep(0.2)
            try:
                yield
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
                # The cancels are on their way.
                await asyncio.sleep(0.5)


async def _hold(client: AsyncClient, traffic_class: str, accepted: asyncio.Event) -> None:
    """Runs or waits until it is cancelled."""
    async for event in client.generate([7] * 32, max_tokens=4000, ignore_eos=True, traffic_class=traffic_class):
        if isinstance(event, Accepted):
            accepted.set()


async def _measure(cases: list[str], rates: list[float], seconds: float, chars: int, show: Callable[..., None]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        store = Store(f"{folder}/tenants.db", time.time)
        store.create()
        keys = {name: store.add(name, plan, operator=False).text for name, plan in PLANS.items()}
        store.close()
        flags = {**SETTINGS, "tenants.store": f"{folder}/tenants.db"}
        context = multiprocessing.get_context("spawn")
        async with plan_mesh(flags, STEP) as mesh:
            with ProcessPoolExecutor(2, mp_context=context) as clients:
                bench = Bench(mesh, keys, clients, (SENTENCE * (chars // len(SENTENCE) + 1))[:chars])
                loop = asyncio.get_running_loop()
                await asyncio.gather(*(loop.run_in_executor(clients, started) for _ in range(2)))
                await bench.run(CASES["model"], 10.0, 1.0)
                async with AsyncClient(mesh.gateway, api_key=keys["metered"]) as client:
                    await client.generate_once("Once", max_tokens=1)
                for name in cases:
                    for rate in rates:
                        show(name, await bench.run(CASES[name], rate, seconds))


@click.command()
@click.option("--case", "cases", default=",".join(CASES), show_default=True)
@click.option("--rates", default="100,300,1000", show_default=True, help="refusals a second, one run for each")
@click.option("--seconds", default=5.0, show_default=True, help="of each measurement")
@click.option("--prompt-chars", default=1000, show_default=True)
@click.option("--json", "out", type=click.Path(path_type=Path), default=None, help="JSON file to write")
def main(cases: str, rates: str, seconds: float, prompt_chars: int, out: Path | None) -> None:
    """Measures, and prints a line for each case and rate."""
    result: dict[str, list[Figures]] = {}

    def show(name: str, figures: Figures) -> None:
        result.setdefault(name, []).append(figures)
        print(_line(name, figures), flush=True)
        if out is not None:
            out.write_text(json.dumps(result, indent=1))

    asked = [float(rate) for rate in rates.split(",")]
    uvloop.run(_measure(cases.split(","), asked, seconds, prompt_chars, show))


def _line(name: str, figures: Figures) -> str:
    alone, beside = figures["gaps_alone"], figures["gaps"]
    others = {reason: count for reason, count in figures["reasons"].items() if count and reason != figures["reason"]}
    line = f"{name:<10} {figures['rate']:>5.0f}/s:"
    if "refused" in figures:
        line += f" refused p50 {figures['refused']['p50_ms']:.2f} p99 {figures['refused']['p99_ms']:.2f} ms;"
    for service in ("gateway", "scheduler"):
        line += f" {service} {figures[f'{service}_us_each']:.0f} us each, {figures[f'{service}_core']:.0%} of a core;"
    for what in ("p99_ms", "max_ms"):
        line += f" gaps {what} {alone[what]:.1f} -> {beside[what]:.1f};"
    return line + f" client late p99 {figures['client_late']['p99_ms']:.1f} ms" + (f"; {others}" if others else "")


if __name__ == "__main__":
    main()
