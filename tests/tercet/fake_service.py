"""A stand-in for one process of a mesh: ``python fake_service.py NAME BEHAVIOUR``. Serves health and nothing else.

Behaviours: ``ok`` · ``broken`` cannot start · ``mute`` listens but never serves · ``stubborn`` ignores SIGTERM ·
``torn`` writes a traceback and ends.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys

from tercet.config import load_config
from tercet.mesh_layout import service_of
from tercet.mesh_processes import die_with_parent
from tercet.rpc import Server, server_options

HEALTH = {
    "gateway": "tercet.v1.Inference",
    "scheduler": "tercet.mesh.v1.Scheduler",
    "worker": "tercet.mesh.v1.Worker",
}


async def serve(name: str, behaviour: str) -> None:
    config = load_config(None, os.environ)
    service = service_of(name)
    settings = getattr(config, service)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set if behaviour != "stubborn" else lambda: None)
    shared_port = settings.shared_port if service == "gateway" else 0
    server = Server(server_options(shares=bool(shared_port)))
    await server.start(settings.host, settings.port, [], key=f"{service}.port", shared_port=shared_port)
    server.set_serving(HEALTH[service], behaviour != "mute")
    above, below = ",".join(config.gateway.scheduler), ",".join(config.scheduler.workers)
    sys.stderr.write(f"{name} {above} {below}\n")
    await stop.wait()
    await server.stop(0)


def main() -> None:
    name, behaviour = sys.argv[1:]
    die_with_parent()
    if behaviour == "broken":
        sys.stderr.write(f"tercet: {service_of(name)}.kv_cache_memory: too small for one block\n")
        sys.exit(2)
    if behaviour == "torn":
        raise ValueError("boom")
    asyncio.run(serve(name, behaviour))


if __name__ == "__main__":
    main()
