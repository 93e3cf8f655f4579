"""Measures the load generator itself: processor time of the client for each request and each message with tokens.

    python -m bench.client_cost --out client_cost.json

The workers are simulated, the gateway is real, and asked over gRPC and over HTTP: so many streams all the time, with
outputs of two lengths. The difference between these is what messages cost, the rest is the requests'. A process that
has a processor for itself carries the inverse; what is asked of a client beyond that makes it late, and it says so.
"""

from __future__ import annotations

import dataclasses
import json
import time
from pathlib import Path
from typing import Any

import click
import uvloop

from bench.plan_mesh import Simulated, plan_mesh
from tercet.garbage import settle
from tercet.load.endpoint import Endpoint
from tercet.load.runner import run
from tercet.load.workload import Workload
from tercet.ports import free_ports

PROMPT_TOKENS = 512
OUTPUTS = (4, 132)


async def cost(endpoint: Endpoint, streams: int, requests: int, output: int) -> tuple[float, float]:
    """Microseconds of processor time of this process, all threads, and messages with tokens; for each of so many
    requests."""
    workload = Workload(
        input=f"constant:{PROMPT_TOKENS}",
        output=f"constant:{output}",
        arrivals=f"closed:{streams}",
        requests=requests,
        ignore_eos=True,
    )
    # Connections, and what is loaded at first use.
    await run(workload, endpoint)
    before = time.process_time()
    # What a run costs apart from its requests.
    await run(dataclasses.replace(workload, requests=1), endpoint)
    begun = time.process_time()
    result = await run(workload, endpoint)
    took_us = 1e6 * (time.process_time() - begun - (begun - before))
    point = result.summary.points[0]
    if point.outcomes["completed"] < requests or point.gap_ms is None:
        raise RuntimeError(f"{point.outcomes['completed']} of {requests} requests were completed")
    return took_us / requests, 1 + point.gap_ms.count / requests


async def measure(streams: int, requests: int, step_ms: float) -> dict[str, Any]:
    """Both ways on one mesh."""
    (port,) = free_ports(1)
    flags = {"gateway.http_port": port, "scheduler.admission_mode": "off", "worker.max_num_seqs": streams}
    result: dict[str, Any] = {"streams": streams, "requests": requests, "step_ms": step_ms}
    async with plan_mesh(flags, Simulated(step_ms)) as mesh:
        for name, endpoint in (
            ("grpc", Endpoint(mesh.gateway)),
            ("http", Endpoint(openai=f"http://127.0.0.1:{port}/v1")),
        ):
            few, many = [await cost(endpoint, streams, requests, output) for output in OUTPUTS]
            message_us = (many[0] - few[0]) / (many[1] - few[1])
            request_us = few[0] - few[1] * message_us
            result[name] = {"message_us": message_us, "request_us": request_us, "messages": many[1]}
            print(
                f"{name}: {message_us:.0f} us a message, {request_us:.0f} us a request; {many[1]:.0f} messages for "
                f"{OUTPUTS[1]} tokens",
                flush=True,
            )
    return result


@click.command()
@click.option("--streams", default=64, show_default=True, help="at once")
@click.option("--requests", default=512, show_default=True, help="of each kind")
@click.option("--step-ms", default=10.0, show_default=True, help="time of a simulated step")
@click.option("--out", type=click.Path(path_type=Path), default=None, help="JSON file to write")
def main(streams: int, requests: int, step_ms: float, out: Path | None) -> None:
    """Runs the work and prints each figure as it is known."""
    settle()
    result = uvloop.run(measure(streams, requests, step_ms))
    if out is not None:
        out.write_text(json.dumps(result))


if __name__ == "__main__":
    main()
