"""``tercet tls``: a private CA and the certificates of a mesh, for those who have no other."""

from __future__ import annotations

import datetime
import socket
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from tercet.errors import StartupError
from tercet.mesh_layout import SERVICES

if TYPE_CHECKING:
    from tercet.tls.authority import Authority

Command = TypeVar("Command", bound=Callable[..., Any])

_HERE = ("localhost", "127.0.0.1", "::1")


def _options(command: Command) -> Command:
    for option in (
        click.option(
            "--days", type=click.IntRange(1, 3650), default=365, show_default=True, metavar="N",
            help="How long the certificates are in force.",
        ),
        click.option("--host", "hosts", multiple=True, metavar="NAME", help="Where clients dial gateways; repeatable."),
    ):  # fmt: skip
        command = option(command)
    return command


@click.group()
def tls() -> None:
    """Make the certificates of a mesh, with a private CA.

    All that these commands write stays in one folder: ca.pem for clients, edge.pem for gateways, and a file each for
    gateway, scheduler and worker by which they know each other, with a key beside each. Keep ca-key.pem elsewhere.
    """


@tls.command()
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False))
@_options
def init(folder: Path, hosts: tuple[str, ...], days: int) -> None:
    """Make a CA and all certificates in FOLDER, and print the settings that use them."""
    now = datetime.datetime.now(datetime.timezone.utc)
    hosts = hosts or (*_HERE, socket.gethostname())
    _authority().check_hosts(hosts)
    _issue(_authority().create(folder, now), hosts, now, days)
    click.echo(_settings(folder.resolve()))
    click.echo(f'clients: tercet generate --tls-ca {folder / "ca.pem"} "Hello"', err=True)


@tls.command()
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False))
@_options
def renew(folder: Path, hosts: tuple[str, ...], days: int) -> None:
    """Make new certificates in FOLDER with the CA there. Running services take them as they are.

    Without --host for the same hosts as before.
    """
    authority = _authority()(folder)
    _issue(authority, hosts or authority.edge_hosts(), datetime.datetime.now(datetime.timezone.utc), days)
    click.echo(f"{folder}: certificates for {days} days")


def _authority() -> type[Authority]:
    """Raises StartupError without the package that makes certificates."""
    try:
        from tercet.tls.authority import Authority
    except ImportError as error:
        raise StartupError("to make certificates takes the package cryptography: pip install 'tercet[tls]'") from error
    return Authority


def _issue(authority: Authority, hosts: Sequence[str], now: datetime.datetime, days: int) -> None:
    authority.issue_edge(hosts, now, days)
    for service in SERVICES:
        authority.issue_service(service, now, days)


def _settings(folder: Path) -> str:
    return "\n".join(
        [
            "[tls]",
            f'certificate = "{folder}/edge.pem"',
            f'key = "{folder}/edge-key.pem"',
            f'mesh_ca = "{folder}/ca.pem"',
            f'mesh_certificate = "{folder}/{{service}}.pem"',
            f'mesh_key = "{folder}/{{service}}-key.pem"',
        ]
    )
