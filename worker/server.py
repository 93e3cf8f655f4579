"""The worker's process: loads the model, listens, and runs until it is told to stop."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import Callable, Coroutine
from typing import Any, NoReturn

import structlog

from tercet import ids, rpc
from tercet.errors import EngineFaultError
from tercet.mesh.v1 import worker_pb2, worker_pb2_grpc
from tercet.metrics.collector import make_registry
from tercet.metrics.exposition import Exposition
from tercet.metrics.metric import Reading
from tercet.model_source import ModelSource, fingerprint, resolve_model
from tercet.sections import MeshConfig
from tercet.tls.mesh import mesh_identity
from tercet.tracing.metrics import put_spans
from tercet.tracing.span import Value
from tercet.tracing.tracer import open_tracer

from .engine import build_executor, warm_up
from .executor import Executor
from .health import Health
from .layout import Layout, plan_layout
from .metrics import METRICS, read
from .ops.dtypes import KERNELS_BUILT
from .service import WorkerService
from .swap_space import SwapSpace

log = structlog.get_logger()

_SERVICE = worker_pb2.DESCRIPTOR.services_by_name["Worker"].full_name


async def serve(config: MeshConfig, ready: Callable[[int], None] | None = None) -> None:
    """Runs a worker until SIGTERM or SIGINT; calls `ready` with its port once the model is loaded.

    What it runs then may end, or go elsewhere, within worker.drain_seconds; a second signal ends the grace. Raises
    StartupError if it cannot start, EngineFaultError if a bug ended its executor.
    """
    source = resolve_model(config.model.model, config.model.load_format)
    layout = plan_layout(config, source)
    for line in layout.budget.lines():
        log.info("budget", line=line)
    worker_id = ids.new_process_id("worker")
    tracer = open_tracer(config.traces, "worker", worker_id, _traced_facts(config, source, layout))
    service = WorkerService(tracer)
    identity = mesh_identity(config.tls, "worker")
    server = rpc.Server(tls=None if identity is None else identity.listening_to("scheduler"))
    worker_pb2_grpc.add_WorkerServicer_to_server(service, server.grpc_server)
    health = Health(server, _SERVICE, config.worker.hung_seconds, lambda: service.found)
    loop = asyncio.get_running_loop()
    stopping, hurrying, died = asyncio.Event(), asyncio.Event(), asyncio.Event()

    def on_signal() -> None:
        (hurrying if stopping.is_set() else stopping).set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal)
    executor: Executor | None = None

    def look() -> Reading:
        reading = read(executor, health.look(), health.still_s, time.perf_counter)
        put_spans(reading, tracer)
        return reading

    # Before the model is loaded: a port in use should be known at once, and probes answered meanwhile.
    metrics = Exposition(config.metrics, make_registry("worker", METRICS, look))
    port = await server.start(
        config.worker.host, config.worker.port, [worker_pb2.DESCRIPTOR], key="worker.port", serving=False
    )
    metrics.start()
    telling = asyncio.create_task(health.run())

    def on_death() -> None:
        loop.call_soon_threadsafe(died.set)

    try:
        loaded, layout = await asyncio.to_thread(_load, layout, source, config, stopping.is_set, on_death)
        executor = loaded
        service.open(loaded, _hello(config, source, layout, loaded.swap_space, worker_id))
        health.loaded(loaded, without_kernels=layout.device.type == "cuda" and not KERNELS_BUILT)
        log.info("worker_ready", host=config.worker.host, port=port)
        if ready is not None:
            ready(port)
        await _first(stopping.wait(), died.wait(), server.crash(), _end_of(telling))
        if not died.is_set():
            log.info("worker_draining", sequences=loaded.num_sequences, seconds=config.worker.drain_seconds)
            health.stop()
            await _first(service.drain(), hurrying.wait(), died.wait(), timeout_s=config.worker.drain_seconds)
        if died.is_set():
            raise EngineFaultError("the executor ended by a bug; the log tells where")
        log.info("worker_stopping", sequences=loaded.num_sequences)
    except _LoadStoppedError:
        log.info("worker_stopped_while_loading")
    finally:
        service.close()
        metrics.stop()
        telling.cancel()
        await server.stop(1.0)
        await asyncio.gather(telling, return_exceptions=True)
        await tracer.stop()
        if executor is not None and not await asyncio.to_thread(executor.stop):
            _leave_device()


def _leave_device() -> NoReturn:
    """Ends the process at once: what else runs at its end would wait for a device that does not come back."""
    log.error("device_did_not_come_back")
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(1)


class _LoadStoppedError(Exception):
    """The worker was told to stop while it loaded its model."""


def _load(
    layout: Layout,
    source: ModelSource,
    config: MeshConfig,
    stopped: Callable[[], bool],
    on_death: Callable[[], None],
) -> tuple[Executor, Layout]:
    """A started executor that has run its first steps, and what it was built by.

    Raises StartupError; _LoadStoppedError soon after `stopped`.
    """

    def progress(line: str) -> None:
        if stopped():
            raise _LoadStoppedError
        log.info("loading", progress=line)

    executor, built = build_executor(layout, source, config.worker, progress, on_death)
    if built is not layout:
        for line in built.budget.lines():
            log.info("budget_measured", line=line)
    executor.start()
    try:
        warm_up(executor, built)
    except BaseException:
        executor.stop()
        raise
    return executor, built


async def _first(*waits: Coroutine[Any, Any, object], timeout_s: float | None = None) -> None:
    """Waits for the first of `waits`, at most `timeout_s` seconds; the others are cancelled. Raises what it raised."""
    tasks = [asyncio.create_task(wait) for wait in waits]
    try:
        done, _ = await asyncio.wait(tasks, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _end_of(task: asyncio.Task[NoReturn]) -> None:
    """Waits for what only a bug ends. Raises that."""
    await asyncio.shield(task)


def budget_lines(config: MeshConfig) -> list[str]:
    """How a worker of this configuration would spend its memory, on a GPU about. Loads nothing. Raises StartupError."""
    return plan_layout(config, resolve_model(config.model.model, config.model.load_format)).budget.lines()


def _traced_facts(config: MeshConfig, source: ModelSource, layout: Layout) -> dict[str, Value]:
    """What holds of all spans."""
    return {
        "tercet.model.revision": fingerprint(source),
        "tercet.quantization": config.worker.quantization,
        # One device a worker.
        "tercet.parallel.tensor": 1,
        "tercet.device": str(layout.device),
        "tercet.dtype": str(layout.dtype).removeprefix("torch."),
    }


def _hello(
    config: MeshConfig, source: ModelSource, layout: Layout, swap_space: SwapSpace, worker_id: str
) -> worker_pb2.Hello:
    names = config.model.served_model_name or (source.default_name,)
    return worker_pb2.Hello(
        worker_id=worker_id,
        epoch=ids.new_epoch(),
        model=names[0],
        model_revision=fingerprint(source),
        device=str(layout.device),
        dtype=str(layout.dtype).removeprefix("torch."),
        block_size=layout.budget.block_size,
        num_blocks=layout.budget.num_blocks,
        max_num_seqs=config.worker.max_num_seqs,
        max_num_batched_tokens=config.worker.max_num_batched_tokens,
        max_model_len=layout.model.max_model_len,
        vocab_size=layout.model.vocab_size,
        num_swap_blocks=swap_space.num_total,
        swap_block_ns=swap_space.block_ns,
    )
