"""A simulated worker behind real gRPC, in real time."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable
from typing import Any

import grpc
import grpc.aio

from bench.simulated_codec import decode_command, encode_event, encode_hello
from scheduler.events import Event, WorkerInfo
from scheduler.simulator.cost import StepCost
from scheduler.simulator.worker import SimulatedWorker
from tercet import rpc
from tercet.mesh.v1 import worker_pb2, worker_pb2_grpc


class WorkerServer(worker_pb2_grpc.WorkerServicer):
    """`port` 0 picks one at the first start and keeps it over restarts."""

    def __init__(self, info: WorkerInfo, step_seconds: float = 0.002) -> None:
        self.info = info
        self.step_seconds = step_seconds
        self.port = 0
        self.worker: SimulatedWorker | None = None
        self.epochs: list[int] = []
        self._server: rpc.Server | None = None

    async def start(self) -> str:
        self._server = rpc.Server()
        worker_pb2_grpc.add_WorkerServicer_to_server(self, self._server.grpc_server)
        self.port = await self._server.start("127.0.0.1", self.port, [worker_pb2.DESCRIPTOR], key="worker.port")
        return f"127.0.0.1:{self.port}"

    async def kill(self) -> None:
        if self._server is not None:
            await self._server.stop(0)
            self._server = None

    async def Attach(self, _requests: Any, context: grpc.aio.ServicerContext) -> None:
        opening = await context.read()
        self.epochs.append(opening.commands[0].open.scheduler_epoch)
        await context.write(worker_pb2.WorkerEvents(events=[encode_hello(self.info)]))
        worker = self.worker = SimulatedWorker(0, self.info, cost=StepCost(self.step_seconds))
        wake = asyncio.Event()
        runner = asyncio.create_task(self._run(worker, wake, context))
        try:
            while (message := await context.read()) is not grpc.aio.EOF:
                for command in message.commands:
                    worker.receive(decode_command(command))
                wake.set()
        finally:
            runner.cancel()
            with contextlib.suppress(BaseException):
                await runner

    async def _run(self, worker: SimulatedWorker, wake: asyncio.Event, context: grpc.aio.ServicerContext) -> None:
        while True:
            await self._send(context, worker.begin())
            if not worker.busy:
                await wake.wait()
                wake.clear()
                continue
            await asyncio.sleep(self.step_seconds)
            await self._send(context, worker.finish())

    async def _send(self, context: grpc.aio.ServicerContext, events: Iterable[Event]) -> None:
        if messages := [encode_event(event) for event in events]:
            await context.write(worker_pb2.WorkerEvents(events=messages))
