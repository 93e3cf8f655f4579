"""How commands reach a gateway: where it is, by which certificate it is known, and who they are."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from tercet.cli.asking import address_option, api_key_option
from tercet.client import AsyncClient, ClientTls
from tercet.client.connection import Connection
from tercet.config import CA_VARIABLE
from tercet.public_bind import is_public

Command = TypeVar("Command", bound=Callable[..., Any])

_FILE = click.Path(path_type=Path)
_FLAGS = (
    address_option,
    api_key_option,
    click.option("--tls", is_flag=True, help="Talk TLS with a gateway whose certificate is of a public CA."),
    click.option(
        "--tls-ca",
        type=_FILE,
        envvar=CA_VARIABLE,
        metavar="FILE",
        help=f"Talk TLS; the gateway's certificate is of this CA. Default: {CA_VARIABLE}.",
    ),
    click.option("--tls-name", default="", metavar="NAME", help="The certificate's name, if not the address's host."),
    click.option("--tls-certificate", type=_FILE, metavar="FILE", help="Your certificate, where a proxy asks for one."),
    click.option("--tls-key", type=_FILE, metavar="FILE", help="Its private key."),
)


def connection_options(command: Command) -> Command:
    """Adds these flags; the command gets a `connection`. Raises errors.StartupError for files that cannot be read."""

    @functools.wraps(command)
    def wrapper(address: str, api_key: str, **values: Any) -> Any:
        wanted, ca, name = values.pop("tls"), values.pop("tls_ca"), values.pop("tls_name")
        certificate, key = values.pop("tls_certificate"), values.pop("tls_key")
        tls = None
        if wanted or ca or name or certificate or key:
            tls = ClientTls.from_files(ca, certificate, key, name)
        elif api_key and is_public(address.rpartition(":")[0].strip("[]")):
            click.echo(f"warning: your key can be read on its way to {address}; --tls-ca or --tls hides it", err=True)
        return command(connection=Connection(address, api_key, tls, None, None), **values)

    for flag in reversed(_FLAGS):
        wrapper = flag(wrapper)
    return wrapper  # type: ignore[return-value]


def client_options(command: Command) -> Command:
    """The same, but the command gets a `client`, not yet connected."""

    @functools.wraps(command)
    def wrapper(connection: Connection, **values: Any) -> Any:
        client = AsyncClient(connection.address, api_key=connection.api_key, tls=connection.tls)
        return command(client=client, **values)

    return connection_options(wrapper)  # type: ignore[return-value]
