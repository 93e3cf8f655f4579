"""Tenants with three real processes: keys that come and go while the mesh runs, and neighbours who learn nothing."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tercet.client import AsyncClient
from tercet.errors import PermissionDeniedError, RequestCancelledError, RequestError, UnauthenticatedError
from tercet.tenants.api_key import read_key

from .conftest import ROOT, Mesh

pytestmark = pytest.mark.e2e

PROMPT = "A letter that nobody else should know was ever read here. " * 8
GRPCURL = shutil.which("grpcurl", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}") or "grpcurl"


class Tenants:
    """A mesh whose gateway asks for keys, and the commands that make them."""

    def __init__(self, mesh: Mesh, store: Path) -> None:
        self.mesh = mesh
        self._store = store
        self.keys: dict[str, str] = {}

    def command(self, *arguments: str) -> str:
        """What `tercet tenant` prints."""
        return self._run("tenant", *arguments, "--tenants-store", str(self._store), key=None).stdout.strip()

    def add(self, name: str, *arguments: str) -> None:
        """A tenant whose key is in `keys`."""
        self.keys[name] = self.command("add", name, *arguments)

    def ask(self, name: str | None, *arguments: str) -> subprocess.CompletedProcess[str]:
        """A command that talks to the mesh, as a tenant or as nobody."""
        key = None if name is None else self.keys[name]
        return self._run(*arguments, "--address", self.mesh.address, key=key, check=False)

    def client(self, name: str) -> AsyncClient:
        """A client with a tenant's key."""
        return AsyncClient(self.mesh.address, api_key=self.keys[name])

    def _run(self, *arguments: str, key: str | None, check: bool = True) -> subprocess.CompletedProcess[str]:
        env = {name: value for name, value in os.environ.items() if name != "TERCET_API_KEY"}
        if key is not None:
            env["TERCET_API_KEY"] = key
        command = [sys.executable, "-m", "tercet", *arguments]
        return subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, cwd=ROOT, check=check)


@pytest.fixture(scope="module")
def tenants(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tenants]:
    """A mesh with two tenants and an operator; tests add tenants that they take the keys of."""
    folder = tmp_path_factory.mktemp("tenants")
    made = Tenants(Mesh(folder, {"TERCET_TENANTS_STORE": str(folder / "tenants.db")}), folder / "tenants.db")
    for name, arguments in (("alice", ()), ("bob", ()), ("boss", ("--operator",))):
        made.add(name, *arguments)
    try:
        made.mesh.start()
        yield made
    finally:
        made.mesh.stop()


def test_commands_need_a_key(tenants: Tenants) -> None:
    question = ("generate", "Once upon a time", "--raw", "--max-tokens", "4")
    refused = tenants.ask(None, *question)
    assert (refused.returncode, refused.stdout) == (1, "")
    assert refused.stderr.startswith("tercet: UNAUTHENTICATED: ")
    answered = tenants.ask("alice", *question)
    assert (answered.returncode, bool(answered.stdout.strip())) == (0, True), answered.stderr
    assert tenants.ask("alice", "fleet").stderr.startswith("tercet: PERMISSION_DENIED: ")
    assert f"127.0.0.1:{tenants.mesh.ports['worker']}" in tenants.ask("boss", "fleet").stdout


def test_grpcurl_sends_a_key_as_a_header(tenants: Tenants) -> None:
    def grpcurl(*arguments: str, data: dict[str, Any] | None = None) -> subprocess.CompletedProcess[str]:
        given = [] if data is None else ["-d", json.dumps(data)]
        command = [GRPCURL, "-plaintext", *given, *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=60)

    address, method = tenants.mesh.address, "tercet.v1.Inference/Generate"
    request = {"prompt": "Once", "stop": {"max_tokens": 4, "ignore_eos": True}}
    answered = grpcurl("-H", f"authorization: Bearer {tenants.keys['alice']}", address, method, data=request)
    assert answered.returncode == 0, answered.stderr
    assert '"completion_tokens": 4' in answered.stdout
    refused = grpcurl(address, method, data=request)
    assert refused.returncode != 0
    assert "Code: Unauthenticated" in refused.stderr
    assert "authorization: Bearer KEY" in refused.stderr
    # What needs no key: reflection and health.
    assert "tercet.v1.Inference" in grpcurl(address, "list").stdout.split()
    health = grpcurl(address, "grpc.health.v1.Health/Check", data={"service": "tercet.v1.Inference"})
    assert json.loads(health.stdout) == {"status": "SERVING"}


async def cached(tenants: Tenants, name: str, prompt: str, salt: str = "") -> tuple[int | None, tuple[int, ...]]:
    async with tenants.client(name) as client:
        answer = await client.generate_once(prompt, temperature=0.0, max_tokens=3, ignore_eos=True, cache_salt=salt)
    return answer.finished.usage.cached_tokens, answer.token_ids


async def test_a_tenant_finds_no_prefix_of_another(tenants: Tenants) -> None:
    first, text = await cached(tenants, "alice", PROMPT)
    again, _ = await cached(tenants, "alice", PROMPT)
    assert first == 0
    assert again is not None
    assert again >= 16
    # Not by the same salt either, nor by one that looks like what the gateway makes of a tenant.
    for salt in ("", "alice", "x"):
        assert await cached(tenants, "bob", PROMPT, salt) == (0, text)
    assert await cached(tenants, "alice", PROMPT, "x") == (0, text)
    assert await cached(tenants, "bob", PROMPT, "x") != (0, text)


async def test_errors_say_nothing_of_others(tenants: Tenants) -> None:
    """Whatever a tenant tries with the id of another's running request ends as it would if there were none."""
    async with tenants.client("alice") as alice, tenants.client("bob") as bob:
        events = aiter(alice.generate("Once", max_tokens=4000, ignore_eos=True, request_id="secret"))
        await anext(events)

        async def outcome(request_id: str, **options: Any) -> str:
            try:
                return str(await bob.cancel(request_id, **options))
            except RequestError as error:
                return f"{error.reason} {error.message} {error.metadata} {error.retry_after_s}"

        assert await outcome("secret") == await outcome("nothing") == "False"
        assert await outcome("secret", tenant="alice") == await outcome("nothing", tenant="nobody")
        same = await bob.generate_once("Once", max_tokens=2, ignore_eos=True, request_id="secret")
        assert same.accepted.request_id == "secret"
        for call in (bob.fleet(), bob.traffic()):
            with pytest.raises(PermissionDeniedError):
                await call
        # The operator finds it, and its owner is told.
        async with tenants.client("boss") as boss:
            assert (await boss.fleet()).requests_running == 1
            assert await boss.cancel("secret", tenant="alice")
        with pytest.raises(RequestCancelledError):
            async for _ in events:
                pass


async def running(tenants: Tenants, name: str) -> asyncio.Task[Any]:
    """A request of a tenant that has begun, and would go on for long."""
    began = asyncio.Event()

    async def ask() -> None:
        async with tenants.client(name) as client:
            await client.generate("Once", max_tokens=4000, ignore_eos=True).answer(lambda _: began.set())

    task = asyncio.create_task(ask())
    await asyncio.wait({task, asyncio.create_task(began.wait())}, return_when=asyncio.FIRST_COMPLETED)
    return task


async def works(tenants: Tenants, name: str) -> bool:
    try:
        async with tenants.client(name) as client:
            await client.models()
    except UnauthenticatedError:
        return False
    return True


async def until_works(tenants: Tenants, name: str, expected: bool = True) -> None:
    """Waits until the gateway has seen what became of a key."""
    while True:
        if await works(tenants, name) == expected:
            return
        await asyncio.sleep(0.05)


async def test_a_key_that_is_revoked_opens_nothing(tenants: Tenants) -> None:
    await asyncio.to_thread(tenants.add, "carol")
    await until_works(tenants, "carol")
    task = await running(tenants, "carol")
    assert not task.done()
    await asyncio.to_thread(tenants.command, "revoke", "carol")
    # How long that may take tests/gateway/test_tenant_watch.py says.
    await until_works(tenants, "carol", expected=False)
    # What it had started is over, and costs nothing any more.
    with pytest.raises(RequestCancelledError, match="the key of the request was revoked"):
        await task
    async with tenants.client("boss") as boss:
        while True:
            if not (await boss.fleet()).requests_running:
                break
            await asyncio.sleep(0.05)
    # It is let in again with a new key, and the neighbours have noticed nothing.
    tenants.keys["carol"] = await asyncio.to_thread(tenants.command, "rotate", "carol")
    await until_works(tenants, "carol")
    assert await works(tenants, "alice")


async def test_a_rotation_has_a_grace(tenants: Tenants) -> None:
    await asyncio.to_thread(tenants.add, "dave")
    tenants.keys["new"] = await asyncio.to_thread(tenants.command, "rotate", "dave", "--grace", "3600")
    await until_works(tenants, "new")
    assert await works(tenants, "dave")
    tenants.keys["newer"] = await asyncio.to_thread(tenants.command, "rotate", "dave")
    await until_works(tenants, "newer")
    assert [await works(tenants, name) for name in ("dave", "new", "newer")] == [False, False, True]


async def test_a_plan_holds_without_a_restart(tenants: Tenants) -> None:
    await asyncio.to_thread(tenants.add, "erin", "--class", "batch")
    await until_works(tenants, "erin")
    async with tenants.client("erin") as client:
        options = {"max_tokens": 2, "ignore_eos": True}
        assert (await client.generate_once("Once", **options)).token_ids
        with pytest.raises(PermissionDeniedError):
            await client.generate_once("Once", **options, traffic_class="interactive")
        await asyncio.to_thread(tenants.command, "set", "erin", "--class", "interactive")
        answer = None
        while answer is None:
            with contextlib.suppress(PermissionDeniedError):
                answer = await client.generate_once("Once", **options, traffic_class="interactive")
        assert answer.token_ids
        await asyncio.to_thread(tenants.command, "remove", "erin")
        await until_works(tenants, "erin", expected=False)
        with pytest.raises(UnauthenticatedError):
            await client.generate_once("Once", **options)


def test_no_secret_is_in_logs_or_process_lists(tenants: Tenants) -> None:
    assert tenants.ask("alice", "tokenize", "Once").returncode == 0
    secrets = [key.secret for text in tenants.keys.values() if (key := read_key(text)) is not None]
    assert len(secrets) >= 3
    lines = [
        Path(f"/proc/{tenants.mesh.pid(name)}/{what}").read_text(errors="replace")
        for name in ("gateway", "scheduler", "worker")
        for what in ("cmdline", "environ")
    ]
    written = tenants.mesh.logs() + "".join(lines)
    assert "tenants_read" in written
    assert not any(secret in written for secret in secrets)


def test_a_gateway_without_its_store_does_not_start(tmp_path: Path) -> None:
    store = tmp_path / "absent.db"
    started = subprocess.run(
        [sys.executable, "-m", "tercet", "gateway", "--port", "0", "--tenants-store", str(store)],
        capture_output=True, text=True, timeout=60, cwd=ROOT,
    )  # fmt: skip
    assert started.returncode == 2
    assert f"tercet: tenants.store: {store} is not there; `tercet tenant add NAME` makes it" in started.stderr
