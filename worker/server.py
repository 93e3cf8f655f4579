"""The worker's process: loads the model, listens, and runs until it is told to stop."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable

import structlog

from tercet import ids, rpc
from tercet.config import MeshConfig
from tercet.mesh.v1 import worker_pb2, worker_pb2_grpc
from tercet.model_source import ModelSource, fingerprint, resolve_model

from .engine import Layout, build_executor, plan_layout, warm_up
from .service import WorkerService

log = structlog.get_logger()


async def serve(config: MeshConfig, ready: Callable[[int], None] | None = None) -> None:
    """Runs a worker until SIGTERM or SIGINT; calls `ready` with its port once the model is loaded.

    Raises StartupError.
    """
    settings = config.worker
    source = resolve_model(config.model.model)
    layout = plan_layout(config, source)
    for line in layout.budget.lines():
        log.info("budget", line=line)
    service = WorkerService()
    server = rpc.Server()
    worker_pb2_grpc.add_WorkerServicer_to_server(service, server.grpc_server)
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    # Before the model is loaded: a port in use should be known at once, and probes answered meanwhile.
    port = await server.start(settings.host, settings.port, [worker_pb2.DESCRIPTOR], key="worker.port", serving=False)
    executor = await asyncio.to_thread(build_executor, layout, source, settings, _log_progress)
    executor.start()
    try:
        await asyncio.to_thread(warm_up, executor, layout)
        service.open(executor, _hello(config, source, layout))
        await server.set_serving(worker_pb2.DESCRIPTOR.services_by_name["Worker"].full_name, True)
        log.info("worker_ready", host=settings.host, port=port)
        if ready is not None:
            ready(port)
        await stopping.wait()
        log.info("worker_stopping")
        service.close()
        await server.stop(1.0)
    finally:
        executor.stop()


def budget_lines(config: MeshConfig) -> list[str]:
    """How a worker of this configuration would spend its memory. Loads nothing. Raises StartupError."""
    return plan_layout(config, resolve_model(config.model.model)).budget.lines()


def _hello(config: MeshConfig, source: ModelSource, layout: Layout) -> worker_pb2.Hello:
    names = config.model.served_model_name or (source.default_name,)
    return worker_pb2.Hello(
        worker_id=ids.new_process_id("worker"),
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
    )


def _log_progress(line: str) -> None:
    log.info("loading", progress=line)
