"""The client and the commands at a gateway that asks for keys."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from tercet.cli import main
from tercet.client import AsyncClient, Client
from tercet.errors import UnauthenticatedError

from .guarded_gateway import GuardedGateway


async def whole(client: AsyncClient) -> bytes:
    return b"".join([part async for part in client.dump_plan_log()])


CALLS: dict[str, Callable[[AsyncClient], Awaitable[Any]]] = {
    "generate": lambda client: client.generate("hello").answer(),
    "generate_once": lambda client: client.generate_once("hello"),
    "tokenize": lambda client: client.tokenize("hello"),
    "detokenize": lambda client: client.detokenize([1]),
    "models": lambda client: client.models(),
    "model": lambda client: client.model(),
    "fleet": lambda client: client.fleet(),
    "cancel": lambda client: client.cancel("nothing"),
    "dump_plan_log": whole,
}


@pytest.mark.parametrize("name", CALLS)
async def test_every_call_sends_the_key(guarded: GuardedGateway, name: str) -> None:
    guarded.scheduler.plan_log = [b"x"]
    async with AsyncClient(guarded.address, api_key=guarded.keys["boss"].text) as client:
        await CALLS[name](client)
    async with AsyncClient(guarded.address) as client:
        with pytest.raises(UnauthenticatedError):
            await CALLS[name](client)


async def test_the_forecast_reaches_the_client(guarded: GuardedGateway) -> None:
    guarded.scheduler.forecast_us = 250_000
    async with AsyncClient(guarded.address, api_key=guarded.keys["alice"].text) as client:
        assert (await client.generate("hello").answer()).accepted.forecast_seconds == 0.25
        guarded.scheduler.forecast_us = None
        assert (await client.generate("hello").answer()).accepted.forecast_seconds is None


async def test_code_without_an_event_loop_sends_it(guarded: GuardedGateway) -> None:
    def ask() -> str:
        with Client(guarded.address, api_key=guarded.keys["alice"].text) as client:
            return client.generate_once("hello").text

    assert await asyncio.to_thread(ask) == "hello"


@pytest.mark.parametrize("key", ["two words", "ä", "line\n", "nul\0"])
def test_what_no_metadata_can_hold_is_no_key(key: str) -> None:
    with pytest.raises(ValueError, match="printable ASCII") as caught:
        AsyncClient(api_key=key)
    assert key not in str(caught.value)


def command(guarded: GuardedGateway, *arguments: str, env: dict[str, str] | None = None) -> Awaitable[Result]:
    """A command in a thread of its own, since it runs an event loop of its own."""
    given = [*arguments, "--address", guarded.address]
    return asyncio.to_thread(CliRunner().invoke, main, given, env={"TERCET_API_KEY": None, **(env or {})})


@pytest.mark.parametrize(
    "arguments",
    [["generate", "hello", "--raw"], ["tokenize", "hello"], ["fleet"], ["dump-plans", "-"], ["chat"]],
    ids=lambda arguments: arguments[0],
)
async def test_commands_take_the_key_from_the_environment(guarded: GuardedGateway, arguments: list[str]) -> None:
    boss = guarded.keys["boss"].text
    done = await command(guarded, *arguments, env={"TERCET_API_KEY": boss})
    assert done.exit_code == 0, done.output
    refused = await command(guarded, *arguments)
    assert refused.exit_code == 1
    assert refused.stderr.startswith("tercet: UNAUTHENTICATED: this call needs a valid key")


async def test_a_key_may_stand_in_a_file(guarded: GuardedGateway, tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text(f"{guarded.keys['boss'].text}\n")
    assert (await command(guarded, "fleet", "--api-key", f"@{file}")).exit_code == 0
    assert (await command(guarded, "fleet", env={"TERCET_API_KEY": f"@{file}"})).exit_code == 0
    assert (await command(guarded, "fleet", "--api-key", guarded.keys["boss"].text)).exit_code == 0


async def test_a_key_that_cannot_be_names_its_option_and_is_not_shown(guarded: GuardedGateway, tmp_path: Path) -> None:
    absent = await command(guarded, "fleet", "--api-key", f"@{tmp_path}/absent")
    assert (absent.exit_code, "cannot read" in absent.stderr) == (2, True)
    file = tmp_path / "key"
    file.write_text("\n")
    empty = await command(guarded, "fleet", "--api-key", f"@{file}", env={"TERCET_API_KEY": guarded.keys["boss"].text})
    assert (empty.exit_code, f"{file} is empty" in empty.stderr) == (2, True)
    file.write_bytes("geheim ä".encode())
    for given in ("geheim und mehr", f"@{file}"):
        wrong = await command(guarded, "fleet", "--api-key", given)
        assert wrong.exit_code == 2
        assert "--api-key" in wrong.stderr
        assert "geheim" not in wrong.output


async def test_an_operators_command_says_what_it_needs(guarded: GuardedGateway) -> None:
    done = await command(guarded, "fleet", env={"TERCET_API_KEY": guarded.keys["alice"].text})
    assert done.stderr == "tercet: PERMISSION_DENIED: this call needs the key of an operator\n"
