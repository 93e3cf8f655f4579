"""A rolling restart under load: two of each service, each told to stop and started anew in turn (or killed), while
clients that know nothing but gRPC ask at a steady rate.

    python -m bench.rolling
    python -m bench.rolling --rate 50 --kill scheduler

Prints for each step how many calls there were, how many failed, whether a token was changed, lost or repeated, and the
longest that a client waited for anything.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import click
import grpc
import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc

from bench.dummy_model import write_dummy_model
from bench.workload import Shape
from tercet.config import PARENT_PID_VARIABLE
from tercet.ports import free_ports
from tercet.v1 import inference_pb2 as pb
from tercet.v1 import inference_pb2_grpc

ROOT = Path(__file__).resolve().parents[1]
SHAPE = Shape(64, 96, 2, 4, 2, 16, 320, tie_word_embeddings=True)
SERVICES = ("gateway", "scheduler", "worker")
NAMES = tuple(f"{service}-{index}" for service in SERVICES for index in (1, 2))
MAX_TOKENS = 40
# Different prompts and seeds; each has one answer.
NUM_QUESTIONS = 16
NUM_CHANNELS = 8
STARTED_S = 120.0
HANDOVER_S = 3.0
# Load before and behind each step.
AROUND_S = 2.0


class RollingMesh:
    """Six processes, as a scope. Gateways share a port."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        *ports, self.port = free_ports(len(NAMES) + 1)
        self._ports = dict(zip(NAMES, ports, strict=True))

    def __enter__(self) -> RollingMesh:
        write_dummy_model(SHAPE, self._folder / "model")
        for name in reversed(NAMES):
            self.start(name)
        for name in NAMES:
            self.wait_ready(name)
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes.values():
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            process.wait()

    def start(self, name: str) -> None:
        """Returns before it is ready."""
        with (self._folder / f"{name}.log").open("ab") as log:
            command = [sys.executable, "-m", "tercet", name.partition("-")[0]]
            environment = {**os.environ, **self._environment(name)}
            self._processes[name] = subprocess.Popen(command, env=environment, cwd=ROOT, stdout=log, stderr=log)

    def end(self, name: str, number: int) -> None:
        """Sends a signal, and waits for the end."""
        self._processes[name].send_signal(number)
        self._processes[name].wait(STARTED_S)

    def wait_ready(self, name: str) -> None:
        """Raises TimeoutError."""
        give_up = time.monotonic() + STARTED_S
        while not self._ready(name):
            if time.monotonic() > give_up:
                raise TimeoutError(
                    f"{name} is not ready; its log:\n{(self._folder / f'{name}.log').read_text()[-2000:]}"
                )
            time.sleep(0.1)

    def _ready(self, name: str) -> bool:
        with grpc.insecure_channel(f"127.0.0.1:{self._ports[name]}") as channel:
            try:
                stub = health_pb2_grpc.HealthStub(channel)
                status = stub.Check(health_pb2.HealthCheckRequest(service="ready"), timeout=2).status
            except grpc.RpcError:
                return False
        return bool(status == health_pb2.HealthCheckResponse.SERVING)

    def _addresses(self, service: str) -> str:
        return ",".join(f"127.0.0.1:{self._ports[f'{service}-{index}']}" for index in (1, 2))

    def _environment(self, name: str) -> dict[str, str]:
        port = str(self._ports[name])
        return {
            PARENT_PID_VARIABLE: str(os.getpid()),
            "PYTHONPATH": str(ROOT),
            "TERCET_LOG_FORMAT": "json",
            "TERCET_MODEL_MODEL": str(self._folder / "model"),
            "TERCET_MODEL_LOAD_FORMAT": "dummy",
            "TERCET_MODEL_MAX_MODEL_LEN": "1024",
            "TERCET_GATEWAY_PORT": port,
            "TERCET_GATEWAY_SHARED_PORT": str(self.port),
            "TERCET_GATEWAY_SCHEDULER": self._addresses("scheduler"),
            "TERCET_GATEWAY_HANDOVER_SECONDS": str(HANDOVER_S),
            "TERCET_SCHEDULER_PORT": port,
            "TERCET_SCHEDULER_PEERS": self._addresses("scheduler"),
            "TERCET_SCHEDULER_WORKERS": self._addresses("worker"),
            "TERCET_SCHEDULER_ADMISSION_MODE": "off",
            "TERCET_LEDGER_DATABASE": str(self._folder / "ledger.db"),
            "TERCET_WORKER_PORT": port,
            "TERCET_WORKER_DTYPE": "float32",
            "TERCET_WORKER_NUM_THREADS": "1",
            "TERCET_WORKER_KV_CACHE_MEMORY": "12MiB",
        }


@dataclass(slots=True)
class Tally:
    """What became of the calls of one step."""

    calls: int = 0
    failed: Counter[str] = field(default_factory=Counter)
    wrong: int = 0
    longest_s: float = 0.0


class Load:
    """Calls at a steady rate over a few channels; every second one streams."""

    def __init__(self, target: str, rate: float) -> None:
        self._target = target
        self._rate = rate
        self._answers: dict[int, list[int]] = {}
        self.tally = Tally()

    async def run(self, over: asyncio.Event) -> None:
        async with contextlib.AsyncExitStack() as stack:
            options = [("grpc.use_local_subchannel_pool", 1)]
            channels = [
                await stack.enter_async_context(grpc.aio.insecure_channel(self._target, options=options))
                for _ in range(NUM_CHANNELS)
            ]
            stubs = [inference_pb2_grpc.InferenceStub(channel) for channel in channels]
            calls: set[asyncio.Task[None]] = set()
            number, began = 0, time.monotonic()
            while not over.is_set():
                call = asyncio.create_task(self._call(stubs[number % NUM_CHANNELS], number, self.tally))
                calls.add(call)
                call.add_done_callback(calls.discard)
                number += 1
                await asyncio.sleep(max(0.0, began + number / self._rate - time.monotonic()))
            await asyncio.gather(*calls)

    async def _call(self, stub: inference_pb2_grpc.InferenceStub, number: int, tally: Tally) -> None:
        question = number % NUM_QUESTIONS
        request = pb.GenerateRequest(
            prompt=f"question {question}",
            sampling=pb.SamplingParams(temperature=0.9, seed=question),
            stop=pb.StopConditions(max_tokens=MAX_TOKENS, ignore_eos=True),
        )
        tally.calls += 1
        got: list[int] = []
        at = time.monotonic()
        try:
            if number // NUM_QUESTIONS % 2:
                result = await stub.GenerateOnce(request)
                got = list(result.outputs[0].token_ids)
                tally.longest_s = max(tally.longest_s, time.monotonic() - at)
            else:
                async for event in stub.Generate(request):
                    tally.longest_s = max(tally.longest_s, time.monotonic() - at)
                    at = time.monotonic()
                    got += event.delta.token_ids
        except grpc.aio.AioRpcError as error:
            tally.failed[f"{error.code().name}: {error.details()}"] += 1
            return
        tally.wrong += got != self._answers.setdefault(question, got) or len(got) != MAX_TOKENS


async def _step(mesh: RollingMesh, load: Load, name: str, number: int) -> Tally:
    load.tally = tally = Tally()
    await asyncio.sleep(AROUND_S)
    await asyncio.to_thread(mesh.end, name, number)
    await asyncio.to_thread(mesh.start, name)
    await asyncio.to_thread(mesh.wait_ready, name)
    await asyncio.sleep(AROUND_S)
    return tally


async def _roll(mesh: RollingMesh, rate: float, kill: str) -> int:
    load, over = Load(f"127.0.0.1:{mesh.port}", rate), asyncio.Event()
    running = asyncio.create_task(load.run(over))
    await asyncio.sleep(AROUND_S)
    print("| step | calls | failed | changed | longest wait |\n|---|---:|---:|---:|---:|")
    problems = 0
    for name, number in _steps(kill):
        tally = await _step(mesh, load, name, number)
        failed, deed = sum(tally.failed.values()), "SIGTERM" if number == signal.SIGTERM else "SIGKILL"
        print(f"| {name}: {deed} | {tally.calls} | {failed} | {tally.wrong} | {tally.longest_s:.2f} s |", flush=True)
        for problem, count in tally.failed.items():
            print(f"  {count} x {problem}", flush=True)
        problems += failed + tally.wrong
    over.set()
    await running
    return problems


def _steps(kill: str) -> Iterator[tuple[str, int]]:
    for name in NAMES:
        yield name, signal.SIGKILL if name.startswith(kill or "nothing") else signal.SIGTERM


@click.command()
@click.option("--rate", default=25.0, show_default=True, help="calls per second")
@click.option("--kill", type=click.Choice(SERVICES), default=None, help="kill these, and tell only the others")
def main(rate: float, kill: str | None) -> None:
    """Exits with 1 if a call failed or got another text."""
    with tempfile.TemporaryDirectory() as folder, RollingMesh(Path(folder)) as mesh:
        problems = asyncio.run(_roll(mesh, rate, kill or ""))
    raise SystemExit(problems > 0)


if __name__ == "__main__":
    main()
