"""Several workers behind one scheduler: of one model, and of two that do not get in each other's way."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from tercet import errors
from tercet.client import AsyncClient
from tests.gateway.conftest import make_byte_tokenizer
from tests.worker.models import save_tiny

from .conftest import Mesh, free_port, wait_until
from .two_workers import Stream, TwoWorkers, until

pytestmark = pytest.mark.e2e


@pytest.fixture
def tiny_model(tmp_path: Path) -> Path:
    """A random model that a gateway can serve, too."""
    folder = tmp_path / "tiny"
    folder.mkdir()
    save_tiny(folder, "llama", vocab_size=280)
    (folder / "tokenizer.json").write_text(make_byte_tokenizer().to_str())
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|end|>"}))
    return folder


async def test_every_address_of_a_name_is_a_worker(own_mesh: Callable[..., Mesh]) -> None:
    """Workers on one port, one for each address of localhost: 127.0.0.1, and ::1 on most hosts."""
    hosts = sorted({str(found[4][0]) for found in socket.getaddrinfo("localhost", None, type=socket.SOCK_STREAM)})
    port = str(free_port())
    workers = [own_mesh(TERCET_WORKER_HOST=host, TERCET_WORKER_PORT=port) for host in hosts]
    front = own_mesh(TERCET_SCHEDULER_WORKERS=f"dns://localhost:{port}", TERCET_SCHEDULER_RESOLVE_SECONDS="0.2")
    front.start("scheduler", "gateway")
    wait_until(lambda: front.health("gateway", "") == 1, "the gateway answers probes")
    for worker in workers:
        worker.start("worker")
    wait_until(lambda: front.healthy("gateway"), "the first worker is found")
    wait_until(lambda: all(worker.live for worker in front.fleet().workers), "all are live")
    addresses = {f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host in hosts}
    assert {worker.address for worker in front.fleet().workers} == addresses
    async with AsyncClient(front.address) as client:
        answer = await client.generate_once("Once", temperature=0.0, max_tokens=4, ignore_eos=True)
    assert len(answer.token_ids) == 4


async def test_two_models_in_one_mesh_and_a_full_pool_refuses_its_own_requests_alone(
    own_mesh: Callable[..., Mesh], tiny_model: Path
) -> None:
    tiny = {"TERCET_MODEL_MODEL": str(tiny_model), "TERCET_MODEL_SERVED_MODEL_NAME": "tiny"}
    two = TwoWorkers(own_mesh, {"TERCET_WORKER_MAX_NUM_SEQS": "1"}, tiny, TERCET_SCHEDULER_MAX_QUEUED_REQUESTS="2")
    second_gateway = own_mesh(**tiny, TERCET_GATEWAY_SCHEDULER=f"127.0.0.1:{two.front.ports['scheduler']}")
    second_gateway.start("gateway")
    wait_until(lambda: second_gateway.healthy("gateway"), "the second gateway serves")
    async with AsyncClient(two.front.address) as client, AsyncClient(second_gateway.address) as tiny_client:
        assert (await tiny_client.model()).name == "tiny"
        streams = [Stream(client, index, 1000) for index in range(3)]
        tasks = [asyncio.create_task(stream.run()) for stream in streams]
        await until(lambda: two.front.fleet().requests_waiting == 2, "one runs and two wait")
        with pytest.raises(errors.QueueFullError):
            await client.generate_once("x", max_tokens=1, timeout_s=10)
        # Four times two on the other model, whose queue has a bound of its own.
        answers = []
        for turn in range(4):
            answers += await asyncio.gather(
                *(
                    tiny_client.generate_once([index, 7], temperature=0.0, max_tokens=20, ignore_eos=True, timeout_s=60)
                    for index in (2 * turn, 2 * turn + 1)
                )
            )
        assert [len(answer.token_ids) for answer in answers] == [20] * 8
        assert two.front.fleet().requests_waiting == 2
        statuses = [two.status(index) for index in range(2)]
        assert statuses[0].model != statuses[1].model == "tiny"
        assert statuses[1].tokens == 160
        # A model that a worker serves and this gateway does not is unknown here.
        with pytest.raises(errors.ModelNotFoundError):
            await client.generate_once("x", model="tiny", max_tokens=1)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    two.front.wait_idle()
