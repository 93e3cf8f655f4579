"""A simulated worker behind real gRPC, in real time."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable
from typing import Any

import grpc
import grpc.aio

from scheduler.actions import NewSequence, Plan, Release, ReleaseCause, Resume, WorkerCommand
from scheduler.events import (
    BlockCounts,
    Event,
    KvChanged,
    PlanEnded,
    Sampling,
    SequenceReleased,
    StepReported,
    WorkerDraining,
    WorkerInfo,
)
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
        hello = worker_pb2.WorkerEvent(hello=hello_to_proto(self.info))
        await context.write(worker_pb2.WorkerEvents(events=[hello]))
        worker = self.worker = SimulatedWorker(0, self.info, cost=StepCost(self.step_seconds))
        wake = asyncio.Event()
        runner = asyncio.create_task(self._run(worker, wake, context))
        try:
            while (message := await context.read()) is not grpc.aio.EOF:
                for command in message.commands:
                    worker.receive(command_from_proto(command))
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
        if messages := [event_to_proto(event) for event in events]:
            await context.write(worker_pb2.WorkerEvents(events=messages))


def hello_to_proto(info: WorkerInfo) -> worker_pb2.Hello:
    return worker_pb2.Hello(**{name: getattr(info, name) for name in worker_pb2.Hello.DESCRIPTOR.fields_by_name})


def command_from_proto(command: worker_pb2.WorkerCommand) -> WorkerCommand:
    kind = command.WhichOneof("command")
    if kind == "new_sequence":
        new = command.new_sequence
        how = new.sampling
        return NewSequence(
            new.sequence_id,
            tuple(new.token_ids),
            new.max_length,
            tuple(new.stop_token_ids),
            Sampling(how.temperature, how.top_p, how.top_k, how.min_p, how.seed),
            new.prefix_salt,
            tuple((fork.sequence_id, fork.seed) for fork in new.forks),
        )
    if kind == "plan":
        plan = command.plan
        chunks = tuple((chunk.sequence_id, chunk.num_tokens) for chunk in plan.chunks)
        return Plan(plan.plan_seq, plan.num_steps, chunks, tuple(plan.join), plan.revoke_through)
    if kind == "resume":
        return Resume(tuple(command.resume.sequence_ids))
    return Release(tuple(command.release.sequence_ids), ReleaseCause(command.release.cause))


def counts_to_proto(counts: BlockCounts) -> worker_pb2.BlockCounts:
    return worker_pb2.BlockCounts(free=counts.free, cached=counts.cached, used=counts.used)


def event_to_proto(event: Event) -> worker_pb2.WorkerEvent:
    if isinstance(event, StepReported):
        step = worker_pb2.StepResult(
            plan_seq=event.plan_seq,
            step=event.step,
            sequence_ids=event.sequence_ids,
            token_ids=event.token_ids,
            prefills=[
                worker_pb2.PrefillProgress(
                    sequence_id=each.sequence_id, num_computed=each.num_computed, num_cached=each.num_cached
                )
                for each in event.prefills
            ],
            ended=[
                worker_pb2.Ended(
                    sequence_id=each.sequence_id,
                    reason=int(each.reason),
                    stop_token_id=each.stop_token_id,
                    blocks_used=each.blocks_used,
                    blocks_freed=each.blocks_freed,
                )
                for each in event.ended
            ],
            blocks=counts_to_proto(event.blocks),
            step_us=event.step_us,
        )
        return worker_pb2.WorkerEvent(step=step)
    if isinstance(event, PlanEnded):
        done = worker_pb2.PlanDone(
            plan_seq=event.plan_seq,
            steps_run=event.steps_run,
            revoked=event.revoked,
            blocks=counts_to_proto(event.blocks),
            step_us=event.step_us,
        )
        return worker_pb2.WorkerEvent(plan_done=done)
    if isinstance(event, KvChanged):
        kv = worker_pb2.KvEvents(reset=event.reset, removed=event.removed, stored=event.stored)
        return worker_pb2.WorkerEvent(kv=kv)
    if isinstance(event, WorkerDraining):
        return worker_pb2.WorkerEvent(draining=worker_pb2.Draining())
    assert isinstance(event, SequenceReleased)
    gone = worker_pb2.Released(
        sequence_id=event.sequence_id,
        found=event.found,
        blocks_used=event.blocks_used,
        blocks_freed=event.blocks_freed,
        blocks=counts_to_proto(event.blocks),
        swapped=event.swapped,
    )
    return worker_pb2.WorkerEvent(released=gone)
