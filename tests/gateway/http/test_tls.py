"""HTTP with TLS: the gateway's certificate, and its renewal."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import openai
import pytest

from gateway.http import server
from tercet.sections import GatewaySettings, LedgerSettings, MeshConfig, ModelSettings
from tercet.tls.settings import TlsSettings

from ...tercet import certificates
from ..conftest import start_gateway, stop_gateway


@pytest.fixture
def authority(tmp_path: Path) -> Any:
    return certificates.make(tmp_path)


async def serial_of(port: int, ca: Path) -> str:
    """The number of the certificate that a new connection is shown."""
    context = ssl.create_default_context(cafile=str(ca))
    _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
    shown = writer.get_extra_info("peercert")
    writer.close()
    return shown["serialNumber"]


@pytest.fixture
async def gateway(
    scheduler: Any, model_path: Path, authority: Any, tmp_path: Path, http_port: int
) -> AsyncIterator[None]:
    config = MeshConfig(
        model=ModelSettings(model=str(model_path), served_model_name=("bytes",)),
        gateway=GatewaySettings(port=0, http_port=http_port, scheduler=(f"127.0.0.1:{scheduler.port}",)),
        ledger=LedgerSettings(database="none"),
        tls=TlsSettings(certificate=f"{tmp_path}/edge.pem", key=f"{tmp_path}/edge-key.pem"),
    )
    running = await start_gateway(config)
    yield
    await stop_gateway(running)


@pytest.fixture
def short_handshakes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "HANDSHAKE_SECONDS", 0.2)


async def test_a_handshake_that_does_not_end_is_given_up(short_handshakes: None, gateway: None, http_port: int) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", http_port)
    assert await asyncio.wait_for(reader.read(), 10) == b""
    writer.close()


async def test_a_renewed_certificate_is_shown_to_who_comes_next(
    gateway: None, authority: Any, tmp_path: Path, http_port: int
) -> None:
    context = ssl.create_default_context(cafile=f"{tmp_path}/ca.pem")
    async with openai.AsyncOpenAI(
        base_url=f"https://127.0.0.1:{http_port}/v1",
        api_key="none",
        max_retries=20,
        http_client=openai.DefaultAsyncHttpxClient(verify=context),
    ) as client:
        assert (await client.completions.create(model="bytes", prompt="hello")).choices[0].text == "hello"
        first = await serial_of(http_port, tmp_path / "ca.pem")
        certificates.issue(authority)
        assert await serial_of(http_port, tmp_path / "ca.pem") != first
        # What is connected stays connected.
        assert (await client.completions.create(model="bytes", prompt="hello")).choices[0].text == "hello"
