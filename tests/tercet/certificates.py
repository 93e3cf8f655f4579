"""A private CA for tests, and the settings that use what it has issued."""

from __future__ import annotations

import datetime
from pathlib import Path

from tercet.mesh_layout import SERVICES
from tercet.tls.authority import Authority
from tercet.tls.settings import TlsSettings


def make(folder: Path, *, days: int = 30, hosts: tuple[str, ...] = ("localhost", "127.0.0.1")) -> Authority:
    """A CA with certificates for all, in force from now on for so many days; negative: they have ended."""
    authority = Authority.create(folder, now())
    issue(authority, days=days, hosts=hosts)
    return authority


def issue(authority: Authority, *, days: int = 30, hosts: tuple[str, ...] = ("localhost", "127.0.0.1")) -> None:
    """New certificates for all."""
    began = now() if days > 0 else now() + datetime.timedelta(days=2 * days)
    authority.issue_edge(hosts, began, abs(days))
    for service in SERVICES:
        authority.issue_service(service, began, abs(days))


def settings(folder: Path) -> TlsSettings:
    """TLS everywhere."""
    return TlsSettings(
        certificate=f"{folder}/edge.pem",
        key=f"{folder}/edge-key.pem",
        mesh_ca=f"{folder}/ca.pem",
        mesh_certificate=f"{folder}/{{service}}.pem",
        mesh_key=f"{folder}/{{service}}-key.pem",
    )


def now() -> datetime.datetime:
    return datetime.datetime.now(datetime.timezone.utc)
