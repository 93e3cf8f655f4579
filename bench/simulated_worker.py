"""A worker process without a model: serves tercet.mesh.v1.Worker with steps of a given length, and keeps a trace.

    python -m bench.simulated_worker --step-ms 2 --trace FOLDER

Settings come from the environment, as those of `tercet worker` do. Model and revision are those of the model that is
set, so that a real gateway takes it for a worker of that model; its tokens mean nothing. At its end it writes
``NAME.json`` into the folder: the trace of bench/simulated_device.py, lists of numbers by name.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import click
import grpc.aio
import uvloop

from bench.simulated_codec import decode_command, encode_event, encode_hello
from bench.simulated_device import SameToken, SimulatedDevice, Trace
from scheduler.events import Event, WorkerInfo
from scheduler.simulator.cost import StepCost
from scheduler.simulator.worker import SimulatedWorker
from tercet import ids, rpc
from tercet.config import PROCESS_NAME_VARIABLE, load_config
from tercet.garbage import settle
from tercet.mesh.v1 import worker_pb2, worker_pb2_grpc
from tercet.mesh_processes import die_with_parent
from tercet.model_source import fingerprint, resolve_model
from tercet.sections import MeshConfig

BLOCK_SIZE = 16
MAX_MODEL_LEN = 8192
VOCAB_SIZE = 49152
# Every sequence may be so long at once.
TOKENS_EACH = 4096
# Wake-ups of the device's thread must not wait for the usual 5 ms.
SWITCH_SECONDS = 0.0002


class SimulatedService(worker_pb2_grpc.WorkerServicer):
    """One scheduler at a time, with a fresh pool for each."""

    def __init__(self, info: WorkerInfo, cost: StepCost) -> None:
        self.traces: list[Trace] = []
        self._info = info
        self._cost = cost

    async def Attach(  # noqa: N802 - the contract's name
        self, request_iterator: AsyncIterator[worker_pb2.WorkerCommands], context: grpc.aio.ServicerContext
    ) -> None:
        """Until the scheduler leaves."""
        await anext(request_iterator)
        loop = asyncio.get_running_loop()
        events: asyncio.Queue[list[Event]] = asyncio.Queue()
        worker = SimulatedWorker(1, self._info, caching=False, verify=False, cost=self._cost, text=SameToken())

        def emit(some: list[Event]) -> None:
            loop.call_soon_threadsafe(events.put_nowait, some)

        device = SimulatedDevice(worker, emit)
        self.traces.append(device.trace)
        device.start()

        async def read() -> None:
            async for message in request_iterator:
                device.submit([decode_command(command) for command in message.commands])

        reader = asyncio.create_task(read())
        try:
            await context.write(worker_pb2.WorkerEvents(events=[encode_hello(self._info)]))
            while not reader.done():
                taken = await events.get()
                while not events.empty():
                    taken += events.get_nowait()
                await context.write(worker_pb2.WorkerEvents(events=map(encode_event, taken)))
        finally:
            reader.cancel()
            device.stop()


def info_of(config: MeshConfig, device: str) -> WorkerInfo:
    """What the worker says of itself."""
    source = resolve_model(config.model.model, config.model.load_format)
    settings = config.worker
    return WorkerInfo(
        worker_id=ids.new_process_id("worker"),
        epoch=ids.new_epoch(),
        model=(config.model.served_model_name or (source.default_name,))[0],
        model_revision=fingerprint(source),
        device=device,
        dtype="none",
        block_size=BLOCK_SIZE,
        num_blocks=settings.max_num_seqs * TOKENS_EACH // BLOCK_SIZE,
        max_num_seqs=settings.max_num_seqs,
        max_num_batched_tokens=settings.max_num_batched_tokens,
        max_model_len=MAX_MODEL_LEN,
        vocab_size=VOCAB_SIZE,
    )


@click.command()
@click.option("--step-ms", type=float, default=2.0, show_default=True, help="a step with one token")
@click.option("--token-us", type=float, default=0.0, show_default=True, help="more for each token that is computed")
@click.option(
    "--trace", type=click.Path(path_type=Path, file_okay=False), default=None, help="where to write the trace"
)
def main(step_ms: float, token_us: float, trace: Path | None) -> None:
    """Serves until told to stop."""
    die_with_parent()
    sys.setswitchinterval(SWITCH_SECONDS)
    config = load_config(env=os.environ)
    cost = StepCost(step_ms / 1e3, token_us / 1e6)
    service = SimulatedService(info_of(config, f"simulated, {step_ms:g} ms a step"), cost)
    settle()
    uvloop.run(_serve(config, service))
    if trace is not None:
        name = os.environ.get(PROCESS_NAME_VARIABLE, "worker")
        # The last stream's; those before it were lost.
        last = service.traces[-1] if service.traces else Trace()
        (trace / f"{name}.json").write_text(json.dumps(dataclasses.asdict(last)))


async def _serve(config: MeshConfig, service: SimulatedService) -> None:
    server = rpc.Server()
    worker_pb2_grpc.add_WorkerServicer_to_server(service, server.grpc_server)
    await server.start(config.worker.host, config.worker.port, [worker_pb2.DESCRIPTOR], key="worker.port")
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    await stopped.wait()
    await server.stop(0.5)


if __name__ == "__main__":
    main()
