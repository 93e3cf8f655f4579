"""Bad input, missing peers and start-up mistakes: one clear typed error each, and the others go on."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tercet import errors
from tercet.client import AsyncClient, ChatMessage, Prompt

from .conftest import ROOT, Mesh, wait_until

pytestmark = pytest.mark.e2e

BAD_REQUESTS: dict[str, tuple[Prompt, dict[str, Any], type[errors.RequestError]]] = {
    "unknown model": ("x", {"model": "nobody"}, errors.ModelNotFoundError),
    "empty prompt": ("", {}, errors.InvalidFieldError),
    "no tokens": ([], {}, errors.InvalidFieldError),
    "token id out of range": ([1, 999_999], {}, errors.InvalidFieldError),
    "prompt longer than the context": ([5] * 9000, {}, errors.PromptTooLongError),
    "prompt and output longer than the context": ("x", {"max_tokens": 100_000}, errors.PromptTooLongError),
    "no output": ("x", {"max_tokens": 0}, errors.InvalidFieldError),
    "negative temperature": ("x", {"temperature": -0.1}, errors.InvalidFieldError),
    "NaN temperature": ("x", {"temperature": float("nan")}, errors.InvalidFieldError),
    "infinite temperature": ("x", {"temperature": float("inf")}, errors.InvalidFieldError),
    "top_p of zero": ("x", {"top_p": 0.0}, errors.InvalidFieldError),
    "NaN top_p": ("x", {"top_p": float("nan")}, errors.InvalidFieldError),
    "min_p above one": ("x", {"min_p": 1.5}, errors.InvalidFieldError),
    "too many stop strings": ("x", {"stop": tuple(map(str, range(17)))}, errors.InvalidFieldError),
    "empty stop string": ("x", {"stop": ("",)}, errors.InvalidFieldError),
    "unknown role": ([ChatMessage("wizard", "x")], {}, errors.InvalidFieldError),
    "5 MB prompt": ("word " * 1_000_000, {}, errors.PromptTooLongError),
    "bad request id": ("x", {"request_id": "line\nbreak"}, errors.InvalidFieldError),
}


@pytest.mark.parametrize("case", BAD_REQUESTS)
async def test_a_bad_request_is_refused_and_a_good_one_beside_it_goes_on(client: AsyncClient, case: str) -> None:
    prompt, options, expected = BAD_REQUESTS[case]
    good = asyncio.create_task(client.generate_once("Once", temperature=0.0, max_tokens=8, ignore_eos=True))
    with pytest.raises(expected) as caught:
        await client.generate(prompt, timeout_s=20, **options).answer()
    assert type(caught.value) is expected
    assert len((await good).token_ids) == 8


async def test_a_request_that_can_never_fit_the_pool(own_mesh: Callable[..., Mesh]) -> None:
    # 64 blocks of 16 tokens: 1,024 tokens, less than the model's context.
    mesh = own_mesh(TERCET_WORKER_KV_CACHE_MEMORY=str(64 * 16 * 23_040))
    mesh.start()
    async with AsyncClient(mesh.address) as client:
        with pytest.raises(errors.KvNeverFitsError) as caught:
            await client.generate_once([5] * 800, max_tokens=800)
        assert caught.value.metadata["blocks_needed"] == "100"
        # Five that fit one by one, but not together: some wait or give way, none fails.
        answers = await asyncio.gather(
            *(
                client.generate_once([5 + number] * 200, temperature=0.0, max_tokens=120, ignore_eos=True)
                for number in range(5)
            )
        )
        assert [len(answer.token_ids) for answer in answers] == [120] * 5
    mesh.wait_idle()


async def test_no_scheduler_then_no_worker_then_all_is_well(own_mesh: Callable[..., Mesh]) -> None:
    mesh = own_mesh()
    mesh.start("gateway")
    wait_until(lambda: mesh.health("gateway", "") == 1, "the gateway answers probes")
    async with AsyncClient(mesh.address) as client:
        with pytest.raises(errors.SchedulerLostError) as caught:
            await client.generate_once("x", timeout_s=10)
        assert caught.value.retry_after_s is not None
        mesh.start("scheduler")
        wait_until(lambda: mesh.health("scheduler", "") == 1, "the scheduler answers probes")

        async def refused_for_want_of_a_worker() -> bool:
            try:
                await client.generate_once("x", max_tokens=1, timeout_s=10)
            except errors.NoWorkerError:
                return True
            except errors.SchedulerLostError:
                return False
            return False

        for _ in range(200):
            if await refused_for_want_of_a_worker():
                break
            await asyncio.sleep(0.05)
        else:
            pytest.fail("never refused with NO_WORKER")
        mesh.start("worker")
        answer = await client.generate_once("Once", temperature=0.0, max_tokens=4, ignore_eos=True)
        assert len(answer.token_ids) == 4


# A worker that starts again on a busy machine may take longer than anybody would wait for it.
PATIENT = {"TERCET_SCHEDULER_WORKER_GRACE_SECONDS": "120"}


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mesh]:
    """A mesh that tests break, and leave whole and idle."""
    mesh = Mesh(tmp_path_factory.mktemp("broken"), {"TERCET_WORKER_DTYPE": "float32", **PATIENT})
    try:
        mesh.start()
        yield mesh
    finally:
        mesh.stop()


async def test_a_killed_worker_comes_back_and_the_stream_goes_on(broken: Mesh) -> None:
    mesh = broken
    async with AsyncClient(mesh.address) as client:
        options: dict[str, Any] = {"temperature": 0.8, "seed": 3, "max_tokens": 60, "ignore_eos": True}
        undisturbed = await client.generate_once("Once upon a time", **options)
        texts = []
        killed = False
        async for event in client.generate("Once upon a time", timeout_s=120, **options):
            texts.append(getattr(event, "text", ""))
            if len(texts) == 8 and not killed:
                killed = True
                mesh.kill("worker")
                mesh.start("worker")
        assert "".join(texts) == undisturbed.text
    mesh.wait_idle()


async def test_a_killed_scheduler_ends_requests_typed_and_the_mesh_recovers(broken: Mesh) -> None:
    mesh = broken
    async with AsyncClient(mesh.address) as client:
        with pytest.raises(errors.SchedulerLostError) as caught:
            seen = 0
            async for _ in client.generate("Once upon a time", max_tokens=2000, ignore_eos=True, timeout_s=60):
                seen += 1
                if seen == 3:
                    mesh.kill("scheduler")
        assert caught.value.retry_after_s is not None
        mesh.start("scheduler")
        answer = await client.generate_once("Once", temperature=0.0, max_tokens=4, ignore_eos=True)
        assert len(answer.token_ids) == 4
    mesh.wait_idle()


async def test_a_killed_gateway_frees_its_requests(broken: Mesh) -> None:
    mesh = broken
    async with AsyncClient(mesh.address) as client:
        with pytest.raises(errors.RequestError):
            seen = 0
            async for _ in client.generate("Once upon a time", max_tokens=2000, ignore_eos=True, timeout_s=60):
                seen += 1
                if seen == 3:
                    mesh.kill("gateway")
    mesh.start("gateway")
    mesh.wait_idle()


def test_every_service_stops_cleanly_on_sigterm(broken: Mesh) -> None:
    """Behind all that."""
    assert broken.stop() == {"gateway": 0, "scheduler": 0, "worker": 0}


def _start_up_error(command: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "tercet", command],
        env={**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "1000", **environment},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    return done.stderr


@pytest.mark.parametrize("command", ["gateway", "scheduler", "worker"])
def test_a_port_in_use(command: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        message = _start_up_error(command, **{f"TERCET_{command}_PORT".upper(): str(port)})
    assert f"{command}.port" in message
    assert str(port) in message


def test_too_little_memory_for_one_block() -> None:
    message = _start_up_error("worker", TERCET_WORKER_KV_CACHE_MEMORY="1000", TERCET_WORKER_PORT="0")
    assert "worker.kv_cache_memory" in message
    assert "1,000 bytes" in message


def test_more_memory_than_the_machine_has() -> None:
    message = _start_up_error("worker", TERCET_WORKER_KV_CACHE_MEMORY="900000GiB", TERCET_WORKER_PORT="0")
    assert "worker.kv_cache_memory" in message


@pytest.mark.parametrize("command", ["gateway", "worker"])
def test_a_model_that_is_not_there(tmp_path: Path, command: str) -> None:
    message = _start_up_error(command, TERCET_MODEL_MODEL=str(tmp_path / "nothing"))
    assert "nothing" in message
    assert "does not exist" in message
