"""What traces cost: CPU time of gateway and scheduler for a request, at several ratios, and of a worker for a sequence.

    python -m bench.tracing_cost
    python -m bench.tracing_cost --rounds 20 --seconds 8

A mesh for each ratio, all in one run: blocks of load take turns in an order that is drawn anew in each round, and each
is compared with that of the same round on the mesh without traces. Workers are simulated, of a step of 1 ms. Before
that, what each service does for a request, and what it takes to hand a span over, is timed by itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
import timeit
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median
from types import MappingProxyType
from typing import Any

import click

from bench.plan_mesh import PlanMesh, Simulated, fixed, plan_mesh
from bench.span_sink import collector
from gateway.served_model import Catalogue, load_model
from gateway.stages import Stage, StageClock
from gateway.traces import begin_trace
from gateway.validate import validate_generate
from scheduler.actions import Accepted, Account, Action, Log, SequenceEnd, ToGateway, TokenBatch, ToWorker
from scheduler.actions import NewSequence as ToBeComputed
from scheduler.events import EndReason as SchedulerEnd
from scheduler.simulator.small import submission
from scheduler.traces import Traces as SchedulerTraces
from tercet.client import AsyncClient
from tercet.ledger.row import Outcome, Row
from tercet.sections import ModelSettings
from tercet.tracing.context import TraceContext, context_of
from tercet.tracing.exporting import BATCH_SPANS
from tercet.tracing.settings import TracesSettings
from tercet.tracing.span import Span, SpanEvent, Value
from tercet.tracing.tracer import Tracer
from tercet.v1 import inference_pb2 as pb
from worker.messages import BlockCounts, Ended, EndReason, NewSequence, PlanDone, PrefillProgress, StepResult
from worker.traces import Traces

PROMPT = [7] * 16
SERVICES = ("gateway", "scheduler")
# As clients send it.
_METADATA = (("user-agent", "grpc-python-asyncio"), ("te", "trailers"), ("grpc-accept-encoding", "identity"))
OFF = "off"
RATIOS: dict[str, float | None] = {OFF: None, "0": 0.0, "0.1": 0.1, "1": 1.0}


@dataclass(frozen=True, slots=True)
class Block:
    """One block of load: requests, seconds, and CPU seconds by service."""

    requests: int
    seconds: float
    cpu_s: dict[str, float]


async def load(address: str, streams: int, tokens: int, seconds: float) -> int:
    """Requests of streams that ask again as soon as they have ended."""
    until = time.perf_counter() + seconds
    count = 0

    async def stream(client: AsyncClient) -> None:
        nonlocal count
        while time.perf_counter() < until:
            async with client.generate(PROMPT, max_tokens=tokens, ignore_eos=True, temperature=0) as events:
                async for _ in events:
                    pass
            count += 1

    async with AsyncClient(address) as client:
        await asyncio.gather(*(stream(client) for _ in range(streams)))
    return count


async def block(mesh: PlanMesh, streams: int, tokens: int, seconds: float) -> Block:
    """One block on one mesh, with what its spans cost once they leave."""
    before = {name: mesh.cpu_seconds(name) for name in SERVICES}
    began_at = time.perf_counter()
    count = await load(mesh.gateway, streams, tokens, seconds)
    took_s = time.perf_counter() - began_at
    await asyncio.sleep(1.5)
    return Block(count, took_s, {name: mesh.cpu_seconds(name) - before[name] for name in SERVICES})


async def measure(rounds: int, streams: int, tokens: int, seconds: float, rng: random.Random) -> dict[str, list[Block]]:
    """The blocks of each ratio, by round."""
    blocks: dict[str, list[Block]] = {name: [] for name in RATIOS}
    async with contextlib.AsyncExitStack() as stack:
        port = await stack.enter_async_context(collector())
        meshes = {}
        for name, ratio in RATIOS.items():
            flags: dict[str, Any] = fixed(0) | {"worker.max_num_seqs": max(64, streams)}
            if ratio is not None:
                flags |= {"traces.endpoint": f"http://127.0.0.1:{port}", "traces.sample_ratio": ratio}
            meshes[name] = await stack.enter_async_context(plan_mesh(flags, Simulated(step_ms=1.0)))
        # The first block of each warms it up.
        for number in range(rounds + 1):
            for name in rng.sample(list(meshes), len(meshes)):
                found = await block(meshes[name], streams, tokens, seconds)
                if number:
                    blocks[name].append(found)
    return blocks


class _Nobody:
    """Takes spans to nowhere."""

    counts: Mapping[str, int] = MappingProxyType({})

    def put(self, span: Span) -> None:
        pass

    def stop(self) -> None:
        pass


def gateway_us(tracer: Tracer) -> float:
    """Of a gateway's loop, microseconds for one request with no context of its client's."""
    model = load_model(ModelSettings())
    asked = pb.GenerateRequest(prompt="Once", stop=pb.StopConditions(max_tokens=32))
    request = validate_generate(asked, Catalogue([model]), max_prompt_bytes=1024)
    row = Row(
        1, "id", "tenant", "interactive", model.name, model.revision, 1, 0.0, Outcome.COMPLETED, "length", 16, 0, 32,
        32, 0, 0.1, 0.2, 0.02, 0.05, 1.2, 0.1, cost=0.1, slo="met",
    )  # fmt: skip
    stages = StageClock(time.monotonic, time.monotonic())
    for stage in Stage:
        stages.begin(stage)

    def live() -> None:
        trace = begin_trace(tracer, context_of(_METADATA), request)
        if trace is not None:
            trace.close(row, stages, None, time.monotonic(), time.monotonic())

    return _us(live)


def scheduler_us(tokens: int, context: TraceContext | None) -> float:
    """Of a scheduler's loop, microseconds for one request of so many steps beside 31 others that are not traced."""
    asked = submission(1, PROMPT, tokens)
    batch = TokenBatch(tuple(range(1, 33)), tuple(range(1, 33)), ())
    end = SequenceEnd(1, SchedulerEnd.LENGTH, 0, None, Account(0, 1, 1, 1))
    line = Log("request_finished", {"request_id": asked.request_id, "outcome": "LENGTH", "tokens": tokens})
    steps: list[list[Action]] = [[ToGateway(1, batch)] for _ in range(tokens)]
    rounds: list[list[Action]] = [
        [ToGateway(1, Accepted(1, (1,), 0))],
        [ToWorker(1, ToBeComputed(1, asked.prompt_token_ids, 99, (), asked.sampling, b""))],
        *steps,
        [line, ToGateway(1, TokenBatch((), (), (end,)))],
    ]
    tracer = Tracer(_Nobody())

    def live() -> None:
        traces = SchedulerTraces(tracer)
        traces.submitted(1, asked, context)
        for actions in rounds:
            if traces:
                traces.look(actions)

    return _us(live)


def sequence_us(tokens: int, plan_steps: int, context: TraceContext | None) -> float:
    """Of a worker's loop, microseconds for one sequence of so many tokens beside 31 others that are not traced."""
    new = NewSequence(1, tuple(PROMPT), len(PROMPT) + tokens)
    counts, ids = BlockCounts(1, 1, 1), tuple(range(1, 33))
    chunk = (PrefillProgress(1, len(PROMPT), 0),)
    ended = (Ended(1, EndReason.LENGTH, 1, 1),)
    events: list[StepResult | PlanDone] = []
    for step in range(tokens):
        plan_seq, in_plan = divmod(step, plan_steps)
        prefills, ends = () if step else chunk, ended if step == tokens - 1 else ()
        events.append(StepResult(plan_seq, in_plan, ids, ids, prefills, ends, counts, 9))
        if step % plan_steps == plan_steps - 1:
            events.append(PlanDone(plan_seq, plan_steps, False, counts))
    tracer = Tracer(_Nobody())

    def live() -> None:
        traces = Traces(tracer)
        traces.commanded(new, context)
        for event in events:
            traces.told(event)

    return _us(live)


def _us(call: Callable[[], None]) -> float:
    return min(timeit.repeat(call, number=50, repeat=20)) / 50 * 1e6


def handing_over_us() -> float:
    """Of a process's other thread, microseconds for one span, but for what the network takes."""
    from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans

    from tercet.tracing.otlp import OtlpSender

    sender = OtlpSender(TracesSettings(endpoint="http://127.0.0.1:1"), "bench", "one", {})
    facts: dict[str, Value] = {f"tercet.fact_{number}": number for number in range(6)}
    events = tuple(SpanEvent("plan", 1, facts) for _ in range(2))
    span = Span("sequence", TraceContext(1, 2, True), 3, 1, 2, facts | {"tercet.outcome": "length"}, events=events)

    def hand_over() -> None:
        encode_spans([sender.readable(span) for _ in range(BATCH_SPANS)]).SerializeToString()

    try:
        return min(timeit.repeat(hand_over, number=1, repeat=200)) / BATCH_SPANS * 1e6
    finally:
        sender.close()


@click.command()
@click.option("--rounds", default=8, show_default=True)
@click.option("--streams", default=16, show_default=True, help="that run at a time")
@click.option("--tokens", default=32, show_default=True, help="of each request")
@click.option("--seconds", default=4.0, show_default=True, help="of each block")
@click.option("--seed", default=1, show_default=True)
def main(rounds: int, streams: int, tokens: int, seconds: float, seed: int) -> None:
    """Runs the blocks and prints what came of them."""
    for name, tracer in (
        ("without traces", Tracer()),
        ("not traced", Tracer(_Nobody(), 0.0)),
        ("traced", Tracer(_Nobody())),
    ):
        click.echo(f"gateway, a request, {name}: {gateway_us(tracer):.1f} us")
    for name, context in (("not traced", None), ("traced", TraceContext(1, 2, True))):
        click.echo(f"scheduler, a request of {tokens} steps, {name}: {scheduler_us(tokens, context):.1f} us")
        click.echo(f"worker, a sequence of {tokens} steps, {name}: {sequence_us(tokens, 8, context):.1f} us")
    click.echo(f"to hand a span over, beside the work: {handing_over_us():.1f} us")
    blocks = asyncio.run(measure(rounds, streams, tokens, seconds, random.Random(seed)))
    for name, mine in blocks.items():
        pairs = list(zip(mine, blocks[OFF], strict=True))
        rate = median(each.requests / each.seconds for each in mine)
        more = median(one.requests / one.seconds / (off.requests / off.seconds) - 1 for one, off in pairs)
        line = f"ratio {name}: {rate:.0f} requests/s ({100 * more:+.1f} %)"
        for service in SERVICES:
            us = median(each.cpu_s[service] / each.requests for each in mine) * 1e6
            extra = median(one.cpu_s[service] / one.requests - off.cpu_s[service] / off.requests for one, off in pairs)
            line += f", {service} {us:.0f} us of CPU a request ({extra * 1e6:+.0f})"
        click.echo(line)


if __name__ == "__main__":
    main()
