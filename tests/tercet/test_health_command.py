"""tercet health: whom it asks, what it shows, its exit codes."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import certificates
import pytest
from command_line import run

from tercet.mesh_layout import SERVICES
from tercet.ports import free_ports
from tercet.rpc import Server
from tercet.tls.mesh import mesh_identity
from tercet.tls.server import ServerTls, edge_tls
from tercet.v1 import models_pb2

TLS_KEYS = ("certificate", "key", "mesh_ca", "mesh_certificate", "mesh_key")


class Process:
    """A service that has health and nothing else, in a thread."""

    def __init__(self, tls: ServerTls | None = None) -> None:
        self.address = ""
        self._tls = tls
        self._started = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()))
        self._thread.start()
        assert self._started.wait(20)

    async def _serve(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        self._server = Server(tls=self._tls)
        port = await self._server.start("127.0.0.1", 0, [models_pb2.DESCRIPTOR], key="gateway.port")
        self.address = f"127.0.0.1:{port}"
        self._started.set()
        await self._stop.wait()
        await self._server.stop(0)

    def tell(self, **conditions: tuple[str, ...]) -> None:
        """What holds of names; in their keywords _ stands for -."""
        told = {name.replace("_", "-"): reasons for name, reasons in conditions.items()}
        self._loop.call_soon_threadsafe(self._server.tell, told)

    def stop(self) -> None:
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join(20)


@pytest.fixture
def start() -> Iterator[Callable[..., Process]]:
    made: list[Process] = []

    def make(tls: ServerTls | None = None) -> Process:
        made.append(Process(tls))
        return made[-1]

    yield make
    for each in made:
        each.stop()


@pytest.fixture
def mesh(start: Callable[..., Process], monkeypatch: pytest.MonkeyPatch) -> dict[str, Process]:
    """A process of each kind, where the settings say so."""
    return place({name: start() for name in SERVICES}, monkeypatch)


def place(processes: dict[str, Process], monkeypatch: pytest.MonkeyPatch) -> dict[str, Process]:
    """Settings that say where these are."""
    monkeypatch.setenv("TERCET_GATEWAY_PORT", processes["gateway"].address.rpartition(":")[2])
    monkeypatch.setenv("TERCET_GATEWAY_SCHEDULER", processes["scheduler"].address)
    monkeypatch.setenv("TERCET_SCHEDULER_WORKERS", processes["worker"].address)
    return processes


def shown(*arguments: str, code: int) -> list[Any]:
    done = run("health", "--format", "json", *arguments)
    assert done.exit_code == code, done.output
    # Those that are asked log to the same output, here.
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def until_shown(code: int) -> list[Any]:
    """Of what was told from another thread."""
    for _ in range(200):
        if run("health").exit_code == code:
            return shown(code=code)
        time.sleep(0.05)
    pytest.fail(f"no exit code {code} within 10 s")


def test_a_mesh_that_is_well(mesh: dict[str, Process]) -> None:
    reports = shown(code=0)
    assert [each["service"] for each in reports] == ["gateway", "scheduler", "worker"]
    assert [each["address"] for each in reports] == [process.address for process in mesh.values()]
    for report in reports:
        assert [*report["names"]][:4] == ["live", "ready", "intact", "has-room"]
        assert report["names"].keys() >= {"", "tercet.v1.Models"}
        assert all(each == {"serving": True, "reason": ""} for each in report["names"].values())
        assert report["problem"] == ""
    lines = run("health").stdout.splitlines()
    assert lines[0].split() == ["service", "address", "live", "ready", "intact", "has-room"]
    assert [line.split()[2:] for line in lines[1:]] == [["yes"] * 4] * 3


def test_less_than_it_should_be_is_told_with_its_reason(mesh: dict[str, Process]) -> None:
    mesh["scheduler"].tell(intact=("1 of 2 workers not connected",), has_room=("no room for class batch",))
    reports = until_shown(3)
    assert reports[1]["names"]["intact"] == {"serving": False, "reason": "1 of 2 workers not connected"}
    lines = run("health").stdout.splitlines()
    assert lines[2].split()[2:] == ["yes", "yes", "no", "no"]
    assert lines[4:] == [
        f"scheduler {mesh['scheduler'].address}: not intact: 1 of 2 workers not connected",
        f"scheduler {mesh['scheduler'].address}: not has-room: no room for class batch",
    ]


def test_some_names_alone_as_a_probe_asks(mesh: dict[str, Process]) -> None:
    mesh["gateway"].tell(intact=("its tenants cannot be read",))
    until_shown(3)
    address = ("--address", mesh["gateway"].address)
    (report,) = shown("--name", "live", "--name", "tercet.v1.Models", *address, code=0)
    assert [*report["names"]] == ["live", "tercet.v1.Models"]
    assert shown("--name", "intact", *address, code=1)[0]["names"]["intact"]["reason"] == "its tenants cannot be read"
    (report,) = shown("--name", "no such name", *address, code=1)
    assert (report["names"], report["problem"]) == ({}, "it knows no such name of health")
    assert run("health", "--name", "ready", *address).stdout.splitlines()[0].split() == ["service", "address", "ready"]


@pytest.mark.parametrize("name", ["live", "ready"])
def test_who_does_not_serve_is_a_failure(mesh: dict[str, Process], name: str) -> None:
    mesh["worker"].tell(**{name: ("its device has been at one step for 400 s",)})
    assert not until_shown(1)[2]["names"][name]["serving"]


def test_who_does_not_answer_is_a_failure_and_the_others_are_told(mesh: dict[str, Process]) -> None:
    mesh["worker"].stop()
    *others, gone = shown(code=1)
    assert gone["names"] == {}
    assert "refused" in gone["problem"]
    assert all(each["names"]["ready"]["serving"] for each in others)
    assert run("health").stdout.splitlines()[3].split()[2:] == ["-"] * 4


def test_one_that_accepts_and_says_nothing_is_not_waited_for(mesh: dict[str, Process]) -> None:
    async def ask() -> list[Any]:
        server = await asyncio.start_server(lambda _reader, _writer: None, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        try:
            return await asyncio.to_thread(shown, "--timeout", "0.3", "--address", f"127.0.0.1:{port}", code=1)
        finally:
            server.close()

    (report,) = asyncio.run(ask())
    assert report["problem"] == "no answer within 0.3 s"


def test_addresses_that_are_given_are_asked_and_no_others(mesh: dict[str, Process]) -> None:
    addresses = [mesh["worker"].address, mesh["scheduler"].address]
    arguments = [word for address in addresses for word in ("--address", address)]
    assert [each["address"] for each in shown(*arguments, "--service", "worker", code=0)] == addresses
    assert run("health", "--address", "nowhere").exit_code == 2


def test_a_name_of_workers_is_each_of_its_addresses(mesh: dict[str, Process], monkeypatch: pytest.MonkeyPatch) -> None:
    port = mesh["worker"].address.rpartition(":")[2]
    monkeypatch.setenv("TERCET_SCHEDULER_WORKERS", f"dns://127.0.0.1:{port},dns://no-such-host.invalid:1")
    _, _, one, two = shown("--timeout", "5", code=1)
    assert (one["address"], one["problem"]) == (mesh["worker"].address, "")
    assert two["address"] == "no-such-host.invalid:1"
    assert two["problem"]


def test_it_waits_until_all_serve(mesh: dict[str, Process]) -> None:
    mesh["gateway"].tell(ready=("no worker is there for its model",))
    until_shown(1)
    threading.Timer(0.8, lambda: mesh["gateway"].tell(ready=())).start()
    assert shown("--wait", "20", code=0)[0]["names"]["ready"]["serving"]


def test_a_wait_has_an_end(mesh: dict[str, Process]) -> None:
    (port,) = free_ports(1)
    (report,) = shown("--wait", "0.6", "--address", f"127.0.0.1:{port}", code=1)
    assert report["problem"]


def test_a_mesh_with_tls_is_asked_with_the_certificates_that_it_has(
    start: Callable[..., Process], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificates.make(tmp_path / "pki")
    settings = certificates.settings(tmp_path / "pki")
    listening = {"gateway": edge_tls(settings)}
    for name, caller in (("scheduler", "gateway"), ("worker", "scheduler")):
        identity = mesh_identity(settings, name)
        assert identity is not None
        listening[name] = identity.listening_to(caller)
    mesh = place({name: start(listening[name]) for name in SERVICES}, monkeypatch)
    flags = [f"--tls-{key.replace('_', '-')}={getattr(settings, key)}" for key in TLS_KEYS]
    assert len(shown(*flags, code=0)) == 3
    assert shown("--address", mesh["worker"].address, "--service", "worker", *flags, code=0)
    # From elsewhere, with nothing but the CA.
    assert shown("--address", mesh["gateway"].address, "--tls-ca", f"{tmp_path}/pki/ca.pem", code=0)
    (report,) = shown("--address", mesh["gateway"].address, code=1)
    assert report["problem"]
