"""``tercet doctor``: what this machine has, what it lacks, what to do."""

from __future__ import annotations

import sys

import click
from rich.text import Text

from tercet.cli.console import Output
from tercet.cli.root import EXIT_REQUEST
from tercet.cli.settings import LEDGER_OF_GATEWAY, SettingsCommand, with_config
from tercet.doctor import Finding, examine, failed
from tercet.sections import MeshConfig

_STYLES = {"ok": "green", "warn": "yellow", "fail": "bold red"}


def to_text(finding: Finding) -> Text:
    """One line, and a second one with the remedy."""
    text = Text(f"{finding.verdict:<5}", style=_STYLES[finding.verdict])
    text.append(f"{finding.subject:<15}{finding.fact}", style="default")
    if finding.remedy:
        text.append(f"\n{'':<20}→ {finding.remedy}", style="default")
    return text


@click.command(cls=SettingsCommand)
@with_config(["model", "gateway", "scheduler", "worker", "ledger"], omit=LEDGER_OF_GATEWAY)
def doctor(config: MeshConfig) -> None:
    """Check Python, torch, compiler, extension, CUDA, model, worker, ledger and ports, and say what to do about each
    problem.

    The exit code is 1 if something that is needed is missing.
    """
    console = Output()
    findings: list[Finding] = []
    for finding in examine(config):
        console.print(to_text(finding), soft_wrap=True)
        findings.append(finding)
    sys.exit(EXIT_REQUEST if failed(findings) else 0)
