"""``tercet explain``: where the time of one request went, from the ledger and from what the scheduler planned."""

from __future__ import annotations

import io
import json
import os
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import click
from rich.markup import escape
from rich.table import Table

from tercet.cli.asking import checked_text, run_async
from tercet.cli.connection import client_options
from tercet.cli.console import Output
from tercet.cli.dump_plans import fetch
from tercet.cli.replay_plans import read
from tercet.cli.root import EXIT_REQUEST, Failure, to_text
from tercet.cli.services import service_module
from tercet.cli.settings import LEDGER_OF_GATEWAY, SettingsCommand, with_config
from tercet.client import AsyncClient
from tercet.errors import LedgerError, PlanFileError, RequestError
from tercet.explain.explanation import Explanation
from tercet.explain.explanation import explain as explain_request
from tercet.explain.headline import headline
from tercet.explain.picture import detail_table, stage_table, to_json
from tercet.explain.search import Found, find
from tercet.explain.story import Story
from tercet.ledger.place import ledger_place
from tercet.ledger.row import Outcome, Refusals, Row
from tercet.sections import LedgerSettings, MeshConfig

# Of a prefix that fits many requests, so many are listed.
_MOST_LISTED = 20


@dataclass(frozen=True, slots=True)
class _Sources:
    """What was found, and why ledger or plan log could not be looked at; empty: they could."""

    rows: Sequence[Row]
    refused: Sequence[Refusals]
    stories: Sequence[Story]
    no_ledger: str
    no_plans: str

    @property
    def missing(self) -> list[str]:
        """What could not be looked at."""
        return [each for each in (self.no_ledger, self.no_plans) if each]


@click.command(cls=SettingsCommand)
@click.argument("request_id", callback=checked_text)
@click.option(
    "--plans", "files", multiple=True, type=click.Path(path_type=Path, allow_dash=True), metavar="FILE",
    help="Read what the scheduler planned from this file of `tercet dump-plans`, not from the running mesh. Give "
    "several for a request that several schedulers had.",
)  # fmt: skip
@click.option("--tenant", metavar="NAME", callback=checked_text, help="Of this tenant: ids are a tenant's own.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@client_options
@with_config(["ledger"], omit=LEDGER_OF_GATEWAY)
def explain(
    config: MeshConfig,
    client: AsyncClient,
    request_id: str,
    files: tuple[Path, ...],
    tenant: str | None,
    as_json: bool,
) -> None:
    """Show where the time of one request went: REQUEST_ID, or how it begins.

    What the ledger has of it, by default that of this user's meshes on this host, and what the scheduler planned lately
    (scheduler.plan_log_rounds), from the running mesh or from files. One of the two is enough; what is missing is said.
    """
    if not request_id:
        raise click.BadParameter("is empty", param_hint="REQUEST_ID")
    # Over HTTP an answer's id has the kind of answer in front of the request's.
    for name in dict.fromkeys((request_id, re.sub("^(chat)?cmpl-", "", request_id) or request_id)):
        sources = _look(config.ledger, client, name, files, tenant)
        found = find(name, sources.rows, sources.stories, tenant)
        if found:
            break
    if len(found) > 1:
        _list(found)
        raise Failure(
            f"{len(found):,} requests begin with {request_id!r}; say more of the id, or --tenant", EXIT_REQUEST
        )
    if not found:
        raise Failure(_nothing(request_id, sources), EXIT_REQUEST)
    (one,) = found
    explanation = explain_request(one.request_id, one.row, one.stories, time.time(), _missing(one, sources))
    if as_json:
        click.echo(json.dumps(to_json(explanation)))
    else:
        _show(explanation)


def _look(
    ledger: LedgerSettings, client: AsyncClient, prefix: str, files: Sequence[Path], tenant: str | None
) -> _Sources:
    no_ledger = no_plans = ""
    rows: Sequence[Row] = ()
    refused: Sequence[Refusals] = ()
    try:
        rows, refused = _of_ledger(ledger, prefix, tenant)
    except LedgerError as error:
        no_ledger = f"what the gateway saw: {error}"
    stories: list[Story] = []
    for path in files:
        stories += _tell(read(path), prefix, str(path))
    if not files:
        try:
            stories += _tell(_dumped(client), prefix, "the plan log")
        except RequestError as error:
            no_plans = (
                f"what the scheduler did: {to_text(error)}; --address names another gateway, --plans a file of "
                "tercet dump-plans"
            )
    return _Sources(rows, refused, stories, no_ledger, no_plans)


def _of_ledger(settings: LedgerSettings, prefix: str, tenant: str | None) -> tuple[Sequence[Row], Sequence[Refusals]]:
    # Here, because SQLAlchemy takes long to import.
    from tercet.ledger.ledger import Ledger
    from tercet.ledger.lookup import find_refusals, find_rows

    where = ledger_place(settings, os.environ)
    if where is None:
        raise LedgerError("is none; --ledger-database names one")
    ledger = Ledger(where, time.time)
    try:
        return find_rows(ledger, prefix, tenant), find_refusals(ledger, prefix, tenant)
    finally:
        ledger.close()


def _dumped(client: AsyncClient) -> Any:
    """The plan log of the running mesh. Raises errors.RequestError."""
    data = io.BytesIO()
    run_async(fetch(client, data))
    data.seek(0)
    return service_module("scheduler", "plan_log.plan_file").read_plan_file(data)


def _tell(plans: Any, prefix: str, name: str) -> list[Story]:
    try:
        stories: list[Story] = service_module("scheduler", "plan_log.storyteller").tell(plans, prefix)
    except PlanFileError as error:
        raise Failure(f"{name}: {error}", EXIT_REQUEST) from error
    return stories


def _missing(found: Found, sources: _Sources) -> list[str]:
    """What is not known of it, and why."""
    missing = sources.missing
    if not found.stories and not sources.no_plans:
        missing.append(
            "why it waited, and what ran beside it: no plan log has it any more; scheduler.plan_log_rounds says how "
            "much is kept, and tercet dump-plans keeps it in a file"
        )
    elif found.stories and not found.stories[0].whole:
        began_at = datetime.fromtimestamp(found.stories[0].log_began_at, timezone.utc)
        missing.append(f"what the scheduler did before {began_at:%H:%M:%S} UTC: the plan log begins there")
    if found.row is None and not sources.no_ledger and not any(story.refused for story in found.stories):
        missing.append("what the gateway saw, from its arrival to its client: the ledger has no row of it")
    if found.row is not None and found.row.outcome is Outcome.OPEN:
        missing.append("what the gateway saw: that is written when the request ends")
    if found.earlier:
        missing.append(f"{found.earlier:,} earlier requests had the same id; the newest is shown")
    return missing


def _nothing(request_id: str, sources: _Sources) -> str:
    """Why there is nothing, a line for each reason."""
    lines = [
        f"{each.request_id} was refused: {each.key.reason}, {datetime.fromtimestamp(each.key.second, timezone.utc)}; "
        f"{each.count:,} of that second were alike, which is all that is kept of refusals"
        for each in sources.refused[:_MOST_LISTED]
    ]
    if not lines:
        lines.append(
            f"no request is known whose id begins with {request_id!r}; of requests that were refused the ledger keeps "
            "the id of the first of each second and reason"
        )
    return "\n".join((*lines, *(f"not looked at: {each}" for each in sources.missing)))


def _list(found: Sequence[Found]) -> None:
    table = Table("request", "tenant", "arrived", "outcome", box=None, pad_edge=False)
    for each in found[:_MOST_LISTED]:
        moment = datetime.fromtimestamp(each.arrived_at, timezone.utc).strftime("%Y-%m-%d %H:%M:%S UTC")
        if each.row is not None:
            outcome = each.row.outcome.value
        else:
            outcome = each.stories[-1].outcome.lower() or Outcome.OPEN.value
        table.add_row(escape(each.request_id), escape(each.tenant or "-"), moment, outcome)
    if len(found) > _MOST_LISTED:
        table.add_row(f"and {len(found) - _MOST_LISTED:,} others", "", "", "")
    Output().print_whole(table)


def _show(explanation: Explanation) -> None:
    out = Output()
    out.print(escape(headline(explanation)), style="bold", soft_wrap=True)
    out.print()
    if explanation.stages:
        out.print(stage_table(explanation, out.width))
        out.print()
    out.print(detail_table(explanation))
    for each in explanation.missing:
        out.print(f"not known: {escape(each)}", style="dim", soft_wrap=True)
