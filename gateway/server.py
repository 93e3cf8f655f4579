"""The gateway process: everything is put together here, and nowhere else."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from tercet import rpc
from tercet.dialer import Dialer
from tercet.ids import new_epoch, new_process_id
from tercet.ledger.place import journal_prefix, ledger_place, make_ledger_folder
from tercet.ledger.prices import prices_of
from tercet.metrics.collector import make_registry
from tercet.metrics.exposition import Exposition
from tercet.metrics.labels import TenantLabels
from tercet.metrics.metric import Reading
from tercet.public_bind import is_public
from tercet.sections import LedgerSettings, MeshConfig, TenantsSettings
from tercet.tenants.directory import Directory
from tercet.tls.mesh import mesh_identity
from tercet.tls.server import edge_tls
from tercet.tracing.metrics import put_spans
from tercet.tracing.tracer import open_tracer
from tercet.v1 import inference_pb2, models_pb2, operations_pb2

from .books import Books
from .generations import Generations
from .guard import Guard
from .health import Health
from .http.application import Application
from .http.generating import Generating
from .http.looking_up import LookingUp
from .http.metrics import Metrics
from .http.server import HttpServer
from .http.web import Web
from .metrics import METRICS
from .metrics_counts import RequestCounts
from .metrics_reading import MetricsReader
from .models_service import ModelsService
from .operations_service import OperationsService
from .registration import add_services
from .schedulers import Schedulers
from .served_model import Catalogue, load_model
from .service import InferenceService
from .tenant_watch import TenantWatch

if TYPE_CHECKING:
    from tercet.ledger.ledger import Ledger
    from tercet.tenants.store import Store

log = structlog.get_logger()

INFERENCE = "tercet.v1.Inference"
# A prompt that is somewhat too long gets an error that says so. What is longer than this is not even received.
MIN_REQUEST_BYTES = 8 * 1024 * 1024


async def serve(config: MeshConfig, ready: Callable[[int], None] | None = None) -> None:
    """Serves until SIGTERM or SIGINT. `ready` gets the bound port once clients can connect.

    Raises errors.StartupError if the model's files, certificates, the store of tenants, the ledger or the port do not
    allow to start.
    """
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for signal_number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(signal_number, stopping.set)
    try:
        await run(config, stopping, ready)
    finally:
        for signal_number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(signal_number)


async def run(config: MeshConfig, stopping: asyncio.Event, ready: Callable[[int], None] | None = None) -> None:
    """Serves until `stopping` is set, then drains; as `serve`, without signals."""
    settings = config.gateway
    tls, identity = edge_tls(config.tls), mesh_identity(config.tls, "gateway")
    # Reading a vocabulary takes a second; signals and the event loop do not wait for it.
    model = await asyncio.to_thread(load_model, config.model)
    catalogue = Catalogue([model])
    changed = asyncio.Event()
    gateway_id = new_process_id("gateway")
    dialers = [Dialer(address, "scheduler", identity) for address in settings.scheduler]
    replaces = settings.handover_seconds > 0
    grace_s = config.scheduler.worker_grace_seconds
    link = Schedulers(dialers, gateway_id, changed.set, time.monotonic, worker_grace_s=grace_s, replaces=replaces)
    # In the ledger for years, beside those of all other processes there will ever be.
    instance = f"{gateway_id}-{new_epoch()}"
    labels = TenantLabels(config.metrics.tenants, config.metrics.max_tenants)
    counts = RequestCounts(labels, config.classes.keys())
    prices = prices_of(config.costs, config.ledger)
    books = Books(_ledger(config.ledger), config.ledger, instance, config.classes.keys(), prices=prices, counts=counts)
    tracer = open_tracer(config.traces, "gateway", gateway_id)
    generations = Generations(settings, link, books, tracer=tracer)

    def tenants_changed(directory: Directory) -> None:
        link.tell_tenants(directory)
        generations.end_revoked(directory)

    store = _store(config.tenants)
    tenants = None
    if store is not None:
        tenants = TenantWatch(store.read, config.tenants.stale_seconds, tenants_changed, check=store.check)
        await tenants.start()
    await books.start()
    guard = Guard(tenants, note=lambda error: generations.note_refusal(None, "", error))
    server = rpc.Server(
        rpc.server_options(
            max(MIN_REQUEST_BYTES, 4 * settings.max_prompt_bytes),
            shares=bool(settings.shared_port),
            renew_s=settings.handover_seconds,
        ),
        tls=tls,
        admit=guard.caller,
        stall_s=settings.stream_stall_seconds,
    )
    models = ModelsService(catalogue, link)
    operations = OperationsService(generations, books, link, guard)
    add_services(
        server.grpc_server,
        guard,
        InferenceService(catalogue, generations, guard),
        models,
        operations,
    )
    health = Health(server, INFERENCE, link, catalogue, generations, books, tenants, identity, changed)
    reader = MetricsReader(server, link, catalogue, generations, books, health.look)

    def look() -> Reading:
        reading = reader.read()
        put_spans(reading, tracer)
        return reading

    registry = make_registry("gateway", METRICS, look)
    files = [inference_pb2.DESCRIPTOR, models_pb2.DESCRIPTOR, operations_pb2.DESCRIPTOR]
    http: HttpServer | None = None
    metrics: Exposition | None = None
    try:
        metrics = Exposition(config.metrics, registry)
        if settings.http_port:
            looking_up = LookingUp(catalogue, generations, models, health.look, time.time())
            web = Web(operations, config.classes) if settings.web else None
            # Of others a key keeps out who means another host; and public addresses have any name.
            own_host = settings.host if store is None and not is_public(settings.host) else None
            generating = Generating(catalogue, generations)
            application = Application(guard, generating, looking_up, web, Metrics(registry), own_host=own_host)
            http = HttpServer(application, settings, tls)
        port = await server.start(
            settings.host, settings.port, files, key="gateway.port", serving=False, shared_port=settings.shared_port
        )
    except BaseException:
        if metrics is not None:
            metrics.stop()
        if http is not None:
            await http.stop(0)
        # Started again and again, as a supervisor does, it would leave a journal each time.
        await books.stop()
        raise
    metrics.start()
    # These answer with or without a mesh behind them; Inference waits for a live worker.
    for name in ("tercet.v1.Models", "tercet.v1.Operations"):
        server.set_serving(name, True)
    background: list[asyncio.Task[object]] = [
        asyncio.create_task(link.run(), name="link"),
        asyncio.create_task(health.run(), name="health"),
        asyncio.create_task(health.ask(), name="scheduler_health"),
        asyncio.create_task(server.crash(), name="server"),
    ]
    if tenants is not None:
        background.append(asyncio.create_task(tenants.run(), name="tenants"))
    if http is not None:
        background.append(asyncio.create_task(http.run(), name="http"))
    stopped = asyncio.create_task(stopping.wait(), name="stopping")
    try:
        log.info("gateway_started", port=port, model=model.name, revision=model.revision, scheduler=settings.scheduler)
        if ready is not None:
            ready(port)
        done, _ = await asyncio.wait([stopped, *background], return_when=asyncio.FIRST_COMPLETED)
        for task in done - {stopped}:
            task.result()  # neither ends by itself: this raises what broke it
        log.info("gateway_draining", requests=len(generations))
        health.stop()
        if settings.handover_seconds:
            # A client that hears of it in its own time is not refused meanwhile.
            if http is not None:
                http.leave()
            await server.leave(settings.handover_seconds)
        await generations.drain(settings.drain_seconds)
    finally:
        metrics.stop()
        stops = [server.stop(0.5)] + ([] if http is None else [http.stop(0.5)])
        await asyncio.gather(*stops)
        for task in (stopped, *background):
            task.cancel()
        await asyncio.gather(stopped, *background, return_exceptions=True)
        # Behind the link: what it ends with is written, too.
        await books.stop()
        await tracer.stop()
        generations.tokenizing.close()
        generations.grammars.close()
        if store is not None:
            store.close()
        log.info("gateway_stopped")


def _store(settings: TenantsSettings) -> Store | None:
    """Where tenants are kept; None where nobody keeps any. Raises errors.StoreError."""
    if not settings.store:
        return None
    # Here, because it imports SQLAlchemy, which a gateway without tenants need not have.
    from tercet.tenants.store import Store

    return Store(settings.store, time.time)


def _ledger(settings: LedgerSettings) -> tuple[Ledger, Path] | None:
    """Where requests are written, and what the names of its journals begin with; None where nobody keeps a ledger.
    Raises errors.LedgerError."""
    place = ledger_place(settings, os.environ)
    if place is None:
        return None
    # As above.
    from tercet.ledger.ledger import Ledger

    make_ledger_folder(settings, os.environ)
    ledger = Ledger(place, time.time)
    return ledger, journal_prefix(settings, ledger.name, ledger.file, os.environ)
