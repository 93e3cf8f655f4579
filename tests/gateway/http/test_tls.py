"""HTTP with TLS: the gateway's certificate, and its renewal."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path
from typing import Any

import openai
import pytest

from tercet.config import GatewaySettings, LedgerSettings, MeshConfig, ModelSettings
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


async def test_a_renewed_certificate_is_shown_to_who_comes_next(
    scheduler: Any, model_path: Path, authority: Any, tmp_path: Path, http_port: int
) -> None:
    config = MeshConfig(
        model=ModelSettings(model=str(model_path), served_model_name=("bytes",)),
        gateway=GatewaySettings(port=0, http_port=http_port, scheduler=(f"127.0.0.1:{scheduler.port}",)),
        ledger=LedgerSettings(database="none"),
        tls=TlsSettings(certificate=f"{tmp_path}/edge.pem", key=f"{tmp_path}/edge-key.pem"),
    )
    gateway = await start_gateway(config)
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
    await stop_gateway(gateway)
