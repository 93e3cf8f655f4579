"""What nobody may find in a log: texts, keys, secrets of any kind, whatever went wrong."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import grpc.aio
import pytest

from tercet.client import AsyncClient, ChatMessage, Delta
from tercet.errors import RequestError
from tercet.rpc import open_channel
from tercet.tenants.api_key import new_key, read_key
from tercet.tenants.plan import TenantPlan
from tercet.tenants.store import Store

from .conftest import ROOT, wait_until
from .tls_mesh import TlsMesh

pytestmark = pytest.mark.e2e

# In every text that clients send; no word of it is in any message of ours.
MARKER = "quartzzebra"
PROMPT = f"The {MARKER} sleeps. The {MARKER} sleeps. The {MARKER}"


async def ask_in_all_ways(mesh: TlsMesh, key: str) -> list[str]:
    """Requests that go well and requests that fail, each with the marker where a text can be. What was answered."""
    answers: list[str] = []
    good = {"max_tokens": 24, "ignore_eos": True, "temperature": 0.0, "timeout_s": 60}
    async with AsyncClient(mesh.address, api_key=key, tls=mesh.tls) as client:
        answer = await client.generate_once(PROMPT, cache_salt=MARKER, logprobs=3, n=2, **good)
        answers += [output.text for output in answer.outputs]
        answers.append((await client.generate_once([ChatMessage("user", PROMPT)], stop=(MARKER,), **good)).text)
        assert await client.detokenize(await client.tokenize(PROMPT)) == PROMPT
        refused = [
            client.generate_once(PROMPT * 3000, **good),
            client.generate_once(PROMPT, model="nosuch"),
            client.generate_once(PROMPT, temperature=-1.0),
            client.generate_once(PROMPT, stop=(MARKER,) * 1000),
            client.generate_once(PROMPT, traffic_class="nosuch"),
            client.generate_once([ChatMessage(MARKER, PROMPT)]),
            client.generate_once([ChatMessage("user", PROMPT)] * 2000, **good),
            client.tokenize(PROMPT * 50_000),
            client.model("nosuch"),
            client.cancel(""),
            client.fleet(),
            client.generate_once(PROMPT, max_tokens=5, timeout_s=0.01),
        ]
        for each in await asyncio.gather(*refused, return_exceptions=True):
            assert isinstance(each, RequestError), each
        call = client.generate(PROMPT, max_tokens=2000, ignore_eos=True)
        async for event in call:
            if isinstance(event, Delta):
                break
    async with open_channel(mesh.address, mesh.tls) as channel:
        metadata = (("authorization", f"Bearer {key}"),)
        for data in (b"\x12\xff" + PROMPT.encode(), b"\x12\x05\xff\xfe" + MARKER.encode()[:3], MARKER.encode()):
            with pytest.raises(grpc.aio.AioRpcError):
                await channel.unary_unary("/tercet.v1.Inference/GenerateOnce")(data, metadata=metadata, timeout=20)
    return answers


async def ask_with(mesh: TlsMesh, key: str) -> None:
    """A call with a key that opens nothing."""
    async with AsyncClient(mesh.address, api_key=key, tls=mesh.tls) as client:
        with pytest.raises(RequestError):
            await client.generate_once(PROMPT)


async def lose_the_worker(mesh: TlsMesh, key: str) -> None:
    """In the middle of an answer."""
    async with AsyncClient(mesh.address, api_key=key, tls=mesh.tls) as client:
        killed = False
        with contextlib.suppress(RequestError):
            async for event in client.generate(PROMPT, max_tokens=500, ignore_eos=True, timeout_s=20):
                if isinstance(event, Delta) and not killed:
                    killed = True
                    mesh.kill("worker", signal.SIGKILL)
        assert killed


def times_read(log: Path) -> int:
    """How often a gateway has read its tenants."""
    return log.read_text().count("tenants_read")


def test_no_log_has_a_secret(tmp_path: Path) -> None:
    store = Store(str(tmp_path / "tenants.db"), time.time)
    store.create()
    keys = {name: store.add(name, TenantPlan(), operator=name == "boss") for name in ("alice", "boss")}
    wrong = new_key()
    half = f"tct_{keys['alice'].id}_{wrong.secret}"
    logs = tmp_path / "mesh"
    logs.mkdir()
    mesh = TlsMesh(
        logs,
        {
            "TERCET_TENANTS_STORE": str(tmp_path / "tenants.db"),
            "TERCET_LEDGER_DATABASE": str(tmp_path / "ledger.db"),
            "TERCET_LOG_LEVEL": "debug",
            # The format for people, which tells more.
            "TERCET_LOG_FORMAT": "console",
            "TERCET_SCHEDULER_WORKER_GRACE_SECONDS": "1",
        },
    )
    private = {path.name: path.read_text() for path in mesh.pki.glob("*-key.pem")}
    plans = tmp_path / "plans"
    try:
        mesh.start()
        answers = asyncio.run(ask_in_all_ways(mesh, keys["alice"].text))
        for key in (wrong.text, half, MARKER, keys["alice"].text[:-1]):
            asyncio.run(ask_with(mesh, key))
        (mesh.pki / "edge-key.pem").write_text(private["worker-key.pem"])
        asyncio.run(ask_with(mesh, wrong.text))
        (mesh.pki / "edge-key.pem").write_text(private["edge-key.pem"])
        done = subprocess.run(
            [sys.executable, "-m", "tercet", "dump-plans", f"--address={mesh.address}", str(plans)],
            env={**os.environ, "TERCET_API_KEY": keys["boss"].text, "TERCET_CA": str(mesh.pki / "ca.pem")},
            capture_output=True, text=True, cwd=ROOT, timeout=60,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        for grace_s in (0.0, 60.0):
            before = times_read(logs / "gateway.log")
            fresh = store.rotate("alice", grace_s=grace_s, operator=None)
            wait_until(lambda: times_read(logs / "gateway.log") > before, "the gateway reads its tenants")  # noqa: B023
        asyncio.run(lose_the_worker(mesh, fresh.text))
    finally:
        mesh.stop()
        store.close()
    written = {path.name: path.read_bytes() for path in [*logs.glob("*.log"), plans, *tmp_path.glob("ledger.db*")]}
    assert {"gateway.log", "scheduler.log", "worker.log", "plans", "ledger.db"} <= set(written)
    assert all(len(text) > 500 for name, text in written.items() if name.endswith(".log"))
    # Something of each of these was told, so that not to find a secret there means something.
    for event in (b"call_refused", b"request_ended", b"certificate_not_renewed", b"worker_stream_broke"):
        assert any(event in text for text in written.values()), event
    secrets = {"a prompt": MARKER.encode(), "a wrong key": wrong.secret.encode()}
    for name, key in {**keys, "fresh": fresh}.items():
        read = read_key(key.text)
        assert read is not None
        secrets[f"the key of {name}"] = read.secret.encode()
        secrets[f"its digest, {name}"] = read.digest.hex().encode()
    for name, text in private.items():
        secrets[name] = base64.b64decode("".join(text.splitlines()[1:-1])).hex().encode()[20:60]
        secrets[f"{name}, a line"] = text.splitlines()[1].encode()
    secrets |= {f"answer {index}": text.strip()[:20].encode() for index, text in enumerate(answers) if text.strip()}
    for what, secret in secrets.items():
        found = [name for name, text in written.items() if secret in text]
        assert not found, f"{what} is in {', '.join(found)}"
