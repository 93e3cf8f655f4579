"""The composition root of the scheduler: builds it from settings, serves until told to stop, stops cleanly."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from typing import Any

import structlog

from tercet import ids, rpc
from tercet.dialer import Dialer
from tercet.mesh.v1 import scheduler_pb2, scheduler_pb2_grpc
from tercet.metrics.collector import make_registry
from tercet.metrics.exposition import Exposition
from tercet.metrics.metric import Reading
from tercet.sections import MeshConfig
from tercet.tls.mesh import mesh_identity
from tercet.tracing.metrics import put_spans
from tercet.tracing.tracer import open_tracer

from .admission import AdmissionMode, QueueBounds
from .core_settings import CoreSettings
from .discovery import Discovery
from .health import Health
from .leadership import Leadership
from .links import Links
from .loop import Loop
from .metrics import METRICS, read
from .peers import Peers
from .plan_log.recorder import recorded_core
from .policy import Policy
from .service import SchedulerService
from .traces import Traces
from .traffic_class import class_of

SERVICE = scheduler_pb2.DESCRIPTOR.services_by_name["Scheduler"].full_name
# For gateways to read the last messages.
CLOSE_SECONDS = 3.0

_CANCEL_AGAIN_S = 0.2


async def serve(config: MeshConfig, ready: Callable[[int], None] | None = None) -> None:
    """Runs until SIGTERM or SIGINT; a second signal ends the grace. `ready` is told the port once it listens.

    Raises errors.ConfigError naming the setting if it cannot listen or has no use for its certificates.
    """
    settings = config.scheduler
    log = structlog.get_logger()
    core, recorder = recorded_core(core_settings(config), settings.plan_log_rounds)
    tracer = open_tracer(config.traces, "scheduler", ids.new_process_id("scheduler"))
    loop = Loop(core, time.monotonic, recorder, Traces(tracer))
    identity = mesh_identity(config.tls, "scheduler")
    server = rpc.Server(tls=None if identity is None else identity.listening_to("gateway", "scheduler"))
    epoch = ids.new_epoch()
    discovery = Discovery(settings.workers, settings.resolve_seconds)
    peers = Peers([Dialer(each, "scheduler", identity) for each in settings.peers], time.monotonic)

    async def lead(term: int) -> None:
        try:
            await Links(discovery, loop, term, identity).run()
        finally:
            if not leadership.standing.leaving:
                service.open()

    leadership = Leadership(peers, epoch, ids.new_epoch, lead, lambda: service.part())
    service = SchedulerService(loop, epoch, leadership.standings)
    scheduler_pb2_grpc.add_SchedulerServicer_to_server(service, server.grpc_server)
    health = Health(server, SERVICE, loop, identity, stands_by=lambda: not leadership.standing.term)

    def look() -> Reading:
        reading = read(loop, health.look(), leads=leadership.standing.term > 0)
        put_spans(reading, tracer)
        return reading

    metrics = Exposition(config.metrics, make_registry("scheduler", METRICS, look))
    port = await server.start(
        settings.host, settings.port, [scheduler_pb2.DESCRIPTOR], key="scheduler.port", serving=False
    )
    server.tell(health.look())
    metrics.start()
    async with _signals() as signals:
        runner = asyncio.create_task(loop.run())
        leading = asyncio.create_task(leadership.run())
        telling = asyncio.create_task(health.run())
        try:
            log.info("scheduler_ready", host=settings.host, port=port, workers=settings.workers)
            if ready is not None:
                ready(port)
            await _first(runner, leading, telling, server.crash(), signals.get())
            log.info("scheduler_draining", seconds=settings.drain_seconds)
            health.stop()
            if service.may_part:
                # What runs goes on at the next one, as soon as there is one.
                await _first(runner, leadership.successor(), loop.drain(settings.drain_seconds), signals.get())
            else:
                await _first(runner, loop.drain(settings.drain_seconds), signals.get())
            await _first(runner, leadership.leave(), leading)
            loop.close()
            await server.stop(CLOSE_SECONDS)
            log.info("scheduler_stopped")
        finally:
            metrics.stop()
            await server.stop(0)
            await _cancel([leading, runner, telling])
            await tracer.stop()


def core_settings(config: MeshConfig) -> CoreSettings:
    """What the core takes from the settings."""
    settings = config.scheduler
    return CoreSettings(
        addresses=settings.workers,
        policy=Policy(settings.num_scheduler_steps, settings.max_prefill_tokens, settings.max_mixed_step_ms / 1e3),
        bounds=QueueBounds(settings.max_queued_requests, settings.max_queued_tokens),
        worker_grace_s=settings.worker_grace_seconds,
        hung_s=settings.hung_seconds,
        classes=tuple(class_of(name, each) for name, each in config.classes.items()),
        default_class=settings.default_class,
        admission_mode=AdmissionMode(settings.admission_mode),
    )


@contextlib.asynccontextmanager
async def _signals() -> AsyncIterator[asyncio.Queue[int]]:
    """SIGTERM and SIGINT as they come."""
    queue: asyncio.Queue[int] = asyncio.Queue()
    running = asyncio.get_running_loop()
    numbers = (signal.SIGTERM, signal.SIGINT)
    for number in numbers:
        running.add_signal_handler(number, queue.put_nowait, number)
    try:
        yield queue
    finally:
        for number in numbers:
            running.remove_signal_handler(number)


async def _first(runner: asyncio.Task[None], *waits: asyncio.Task[None] | Coroutine[Any, Any, object]) -> None:
    """Waits for the first of `waits` or the runner. Tasks run for ever: one that died raises its error here."""
    tasks = [wait if isinstance(wait, asyncio.Task) else asyncio.create_task(wait) for wait in waits]
    try:
        done, _ = await asyncio.wait({runner, *tasks}, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        await _cancel(task for task, wait in zip(tasks, waits, strict=True) if task is not wait)


async def _cancel(tasks: Iterable[asyncio.Task[Any]]) -> None:
    tasks = list(tasks)
    # What they await may lose a cancel, as asyncio.wait_for does up to Python 3.11 with one that comes with a result.
    while waiting := [task for task in tasks if not task.done()]:
        for task in waiting:
            task.cancel()
        await asyncio.wait(waiting, timeout=_CANCEL_AGAIN_S)
    await asyncio.gather(*tasks, return_exceptions=True)
