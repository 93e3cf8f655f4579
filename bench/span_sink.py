"""A collector that counts spans and keeps none.

    python -m bench.span_sink --port 4317

Prints the number of spans when it is told to stop.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from collections.abc import AsyncIterator
from typing import Any

import click
import grpc
import grpc.aio

from tercet.ports import free_ports

METHOD = ("opentelemetry.proto.collector.trace.v1.TraceService", "Export")


async def serve(port: int) -> int:
    """Takes what comes on a port of loopback until SIGTERM; how many spans there were."""
    from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as pb

    count = 0

    async def export(request: pb.ExportTraceServiceRequest, _context: Any) -> pb.ExportTraceServiceResponse:
        nonlocal count
        count += sum(len(scope.spans) for part in request.resource_spans for scope in part.scope_spans)
        return pb.ExportTraceServiceResponse()

    service, method = METHOD
    handler = grpc.unary_unary_rpc_method_handler(
        export, pb.ExportTraceServiceRequest.FromString, pb.ExportTraceServiceResponse.SerializeToString
    )
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, {method: handler}),))
    server.add_insecure_port(f"127.0.0.1:{port}")
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    await server.start()
    await stopped.wait()
    await server.stop(1.0)
    return count


@contextlib.asynccontextmanager
async def collector() -> AsyncIterator[int]:
    """The port of one in a process of its own. Tells at its end how many spans came."""
    (port,) = free_ports(1)
    line = (sys.executable, "-m", "bench.span_sink", "--port", str(port))
    process = await asyncio.create_subprocess_exec(*line, stdout=asyncio.subprocess.PIPE)
    try:
        yield port
    finally:
        process.terminate()
        spans, _ = await asyncio.wait_for(process.communicate(), 30)
        click.echo(f"{int(spans)} spans came to the collector")


@click.command()
@click.option("--port", required=True, type=int)
def main(port: int) -> None:
    """Runs it."""
    click.echo(asyncio.run(serve(port)))


if __name__ == "__main__":
    main()
