"""Measures what HTTP costs beside gRPC: the time to the first token, and many streams at once.

    python -m bench.edges --out edges.json

The workers are simulated, so that gateway and clients are what is measured. First tokens are taken in pairs, one
request over gRPC and one over HTTP, so that both see the same noise; the clients are as thin as they can be, and their
time is in it. With many streams the gateway's own processor time says what a token costs it either way.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import click
import grpc.aio
import uvloop

from bench.plan_mesh import PlanMesh, Simulated, plan_mesh
from tercet import rpc
from tercet.ports import free_ports
from tercet.v1 import inference_pb2 as pb
from tercet.v1 import inference_pb2_grpc

PROMPT = "Once upon a time there was a gateway"
PAIRS = 200
WARM_UP = 20


@dataclass(frozen=True, slots=True)
class Answer:
    """Seconds to the first token and to the end, and messages with tokens."""

    first_s: float
    total_s: float
    messages: int


Ask = Callable[[int], Awaitable[Answer]]


def over_grpc(channel: grpc.aio.Channel) -> Ask:
    """Asks for so many tokens."""
    stub = inference_pb2_grpc.InferenceStub(channel)

    async def ask(max_tokens: int) -> Answer:
        began, first_s, messages = time.perf_counter(), 0.0, 0
        stop = pb.StopConditions(max_tokens=max_tokens, ignore_eos=True)
        async for event in stub.Generate(pb.GenerateRequest(prompt=PROMPT, stop=stop)):
            if event.HasField("delta"):
                first_s = first_s or time.perf_counter() - began
                messages += 1
        return Answer(first_s, time.perf_counter() - began, messages)

    return ask


def over_http(port: int) -> Ask:
    """The same, each on one of the connections that are free."""
    free: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def ask(max_tokens: int) -> Answer:
        reader, writer = free.pop() if free else await asyncio.open_connection("127.0.0.1", port)
        began, first_s, messages = time.perf_counter(), 0.0, 0
        body = json.dumps({"prompt": PROMPT, "max_tokens": max_tokens, "ignore_eos": True, "stream": True}).encode()
        head = "POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: "
        writer.write(f"{head}{len(body)}\r\n\r\n".encode() + body)
        status = await reader.readuntil(b"\r\n\r\n")
        assert status.startswith(b"HTTP/1.1 200 "), status
        while size := int(await reader.readline(), 16):
            event = (await reader.readexactly(size + 2))[len(b"data: ") : -4]
            if event.startswith(b"{") and json.loads(event)["choices"][0]["finish_reason"] is None:
                first_s = first_s or time.perf_counter() - began
                messages += 1
        await reader.readline()
        free.append((reader, writer))
        return Answer(first_s, time.perf_counter() - began, messages)

    return ask


async def first_tokens(ask_grpc: Ask, ask_http: Ask) -> dict[str, float]:
    """Milliseconds to the first token over either, and what the second takes more, in pairs."""
    pairs = [(await ask_grpc(1), await ask_http(1)) for _ in range(WARM_UP + PAIRS)][WARM_UP:]
    added = [1e3 * (by_http.first_s - by_grpc.first_s) for by_grpc, by_http in pairs]
    deciles = quantiles(added, n=10)
    result = {
        "grpc_first_ms": 1e3 * median(by_grpc.first_s for by_grpc, _ in pairs),
        "http_first_ms": 1e3 * median(by_http.first_s for _, by_http in pairs),
        "added_first_ms": median(added),
        "added_first_p10_ms": deciles[0],
        "added_first_p90_ms": deciles[-1],
    }
    print(
        f"first token: gRPC {result['grpc_first_ms']:.2f} ms, HTTP {result['http_first_ms']:.2f} ms, which is "
        f"{result['added_first_ms']:+.2f} ms (p10 {deciles[0]:+.2f}, p90 {deciles[-1]:+.2f})",
        flush=True,
    )
    return result


async def streams(name: str, ask: Ask, mesh: PlanMesh, num_clients: int, tokens: int, step_ms: float) -> dict[str, Any]:
    """So many clients at once, each with so many tokens."""
    await asyncio.gather(*(ask(2) for _ in range(num_clients)))
    cpu_s, began = mesh.cpu_seconds("gateway"), time.perf_counter()
    answers: Sequence[Answer] = await asyncio.gather(*(ask(tokens) for _ in range(num_clients)))
    took_s, cpu_s = time.perf_counter() - began, mesh.cpu_seconds("gateway") - cpu_s
    total = num_clients * tokens
    result = {
        f"{name}_streams_tokens_per_s": total / took_s,
        f"{name}_streams_of_engine": tokens * step_ms / 1e3 / took_s,
        f"{name}_streams_gateway_us_per_token": 1e6 * cpu_s / total,
        f"{name}_streams_messages_per_token": sum(each.messages for each in answers) / total,
    }
    print(
        f"{num_clients} streams of {tokens} tokens over {name}: {total / took_s:,.0f} tokens/s, "
        f"{100 * result[f'{name}_streams_of_engine']:.0f} % of the workers' pace; gateway "
        f"{result[f'{name}_streams_gateway_us_per_token']:.0f} us of processor a token, "
        f"{result[f'{name}_streams_messages_per_token']:.2f} messages a token",
        flush=True,
    )
    return result


async def run(num_clients: int, tokens: int, step_ms: float) -> dict[str, Any]:
    """All of it on one mesh."""
    (port,) = free_ports(1)
    flags = {"gateway.http_port": port, "scheduler.admission_mode": "off", "worker.max_num_seqs": num_clients}
    async with plan_mesh(flags, Simulated(step_ms)) as mesh, rpc.open_channel(mesh.gateway) as channel:
        ask_grpc, ask_http = over_grpc(channel), over_http(port)
        result: dict[str, Any] = {"num_clients": num_clients, "tokens": tokens, "step_ms": step_ms}
        result |= await first_tokens(ask_grpc, ask_http)
        for name, ask in (("grpc", ask_grpc), ("http", ask_http)):
            result |= await streams(name, ask, mesh, num_clients, tokens, step_ms)
    return result


@click.command()
@click.option("--clients", default=64, show_default=True, help="streams at once")
@click.option("--tokens", default=256, show_default=True, help="tokens of each")
@click.option("--step-ms", default=20.0, show_default=True, help="time of a simulated step")
@click.option("--out", type=click.Path(path_type=Path), default=None, help="JSON file to write")
def main(clients: int, tokens: int, step_ms: float, out: Path | None) -> None:
    """Runs the work and prints each figure as it is known."""
    result = uvloop.run(run(clients, tokens, step_ms))
    if out is not None:
        out.write_text(json.dumps(result))


if __name__ == "__main__":
    main()
