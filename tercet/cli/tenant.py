"""``tercet tenant``: who may use a mesh, and how much of it. Works on the store; a running mesh sees it at once."""

from __future__ import annotations

import dataclasses
import functools
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import click
from rich.table import Table

from tercet.cli.console import Output
from tercet.cli.finite import SECONDS, FiniteNumber
from tercet.cli.root import EXIT_REQUEST, Failure
from tercet.cli.settings import SettingsCommand, with_config
from tercet.config import variable_of
from tercet.errors import StoreError, TenantError
from tercet.sections import MeshConfig
from tercet.tenants.api_key import ApiKey
from tercet.tenants.plan import MAX_WEIGHT, MIN_WEIGHT, MOST_URGENT, PlanError, TenantPlan
from tercet.tenants.store import Store, TenantEntry

Command = TypeVar("Command", bound=Callable[..., Any])

_STORE = "tenants.store"
# Of the gateway, not of these commands.
_OMITTED = ("tenants.stale_seconds",)


@contextmanager
def opened(config: MeshConfig, *, create: bool = False) -> Iterator[Store]:
    """The store of the settings. Raises StoreError, Failure for what cannot be done."""
    if not config.tenants.store.strip():
        raise StoreError(f"is not set: give --tenants-store FILE, or {variable_of(_STORE)}, or set it in the TOML file")
    store = Store(config.tenants.store, time.time)
    try:
        if create:
            store.create()
        yield store
    except PlanError as error:
        flag = _FLAGS.get(error.field, error.field)
        raise click.BadParameter(error.problem, param_hint=flag) from error
    except TenantError as error:
        raise Failure(str(error), EXIT_REQUEST) from error
    finally:
        store.close()


_FLAGS = {
    "classes": "--class",
    **{
        item.name: f"--{item.name.replace('_', '-')}"
        for item in dataclasses.fields(TenantPlan)
        if item.name != "classes"
    },
}


def plan_options(command: Command) -> Command:
    """Adds a flag for each field of a plan, None where it is not given; the command gets them as `plan`, a dict."""

    @functools.wraps(command)
    def wrapper(**values: Any) -> Any:
        plan = {name: values.pop(name) for name in _FLAGS}
        plan["classes"] = tuple(dict.fromkeys(plan["classes"])) or None
        return command(plan={name: value for name, value in plan.items() if value is not None}, **values)

    flags = [
        click.option(
            "--class", "classes", multiple=True, metavar="NAME",
            help="Traffic class it may use; repeatable. Default: all.",
        ),
        click.option(
            "--default-class", metavar="NAME",
            help="Class of its requests that name none. Default: the mesh's, if it may use that, else its first.",
        ),
        click.option(
            "--weight", type=FiniteNumber(), metavar="X",
            help=f"Its share where tenants compete, {MIN_WEIGHT:g} to {MAX_WEIGHT:g}. Default: 1.",
        ),
        click.option("--requests-per-minute", type=int, metavar="N", help="0: no limit (the default)."),
        click.option(
            "--tokens-per-minute", type=int, metavar="N",
            help="Prompt and output together. 0: no limit (the default).",
        ),
        click.option(
            "--max-concurrent", type=int, metavar="N", help="Requests at a time. 0: no limit (the default)."
        ),
        click.option(
            "--kv-share", type=FiniteNumber(), metavar="X",
            help="Part of a model's KV blocks that it may hold while others need some, up to 1. 0: no limit (default).",
        ),
        click.option(
            "--max-context", type=int, metavar="N",
            help="Longest prompt + output in tokens. 0: the model's limit (the default).",
        ),
        click.option(
            "--min-priority", type=int, metavar="N",
            help=f"The most urgent priority it may ask for; lower is more urgent. Default: {MOST_URGENT}.",
        ),
    ]  # fmt: skip
    for flag in reversed(flags):
        wrapper = flag(wrapper)
    return wrapper  # type: ignore[return-value]


@click.group()
def tenant() -> None:
    """Say who may use the mesh, and how much of it.

    Tenants and digests of their keys are kept in the store of --tenants-store. A gateway that runs with the same store
    asks every call for a key, and sees what these commands change within half a second.
    """


@tenant.command(cls=SettingsCommand)
@click.argument("name")
@plan_options
@click.option("--operator", is_flag=True, help="Its key may also see the fleet and cancel what others asked for.")
@with_config(["tenants"], omit=_OMITTED)
def add(config: MeshConfig, name: str, plan: dict[str, Any], operator: bool) -> None:
    """Add the tenant NAME and print its key, once.

    Nobody can show it again. The store is made if it is not there.
    """
    with opened(config, create=True) as store:
        show_key(store.add(name, TenantPlan(**plan), operator=operator), f"tenant {name} is added to {store.name}")
    warn_of_classes(config, plan)


@tenant.command("list", cls=SettingsCommand)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object for each tenant, with all its keys.")
@with_config(["tenants"], omit=_OMITTED)
def list_(config: MeshConfig, as_json: bool) -> None:
    """Show all tenants, what they may do, and the ids of their keys."""
    with opened(config) as store:
        entries = store.entries()
    now = time.time()
    if as_json:
        for entry in entries:
            click.echo(json.dumps(to_json(entry, now)))
    else:
        Output().print_whole(to_table(entries, now))


@tenant.command("set", cls=SettingsCommand)
@click.argument("name")
@plan_options
@click.option("--all-classes", is_flag=True, help="It may use every traffic class.")
@with_config(["tenants"], omit=_OMITTED)
def set_(config: MeshConfig, name: str, plan: dict[str, Any], all_classes: bool) -> None:
    """Change what the tenant NAME may do.

    What is not named stays as it is. It holds for requests from now on.
    """
    if all_classes:
        if "classes" in plan:
            raise click.UsageError("--class and --all-classes exclude each other")
        plan["classes"] = ()
    if not plan:
        raise click.UsageError("nothing to change: name a limit")
    with opened(config) as store:
        changed = store.change(name, **plan)
    click.echo(f"tenant {name}: {', '.join(to_words(changed)) or 'no limits'}")
    warn_of_classes(config, plan)


@tenant.command(cls=SettingsCommand)
@click.argument("name")
@click.option(
    "--grace", type=SECONDS, default=0.0, metavar="SECONDS",
    help="How long the keys there are go on to open. Default: 0; what they have started goes on in any case.",
)  # fmt: skip
@click.option("--operator/--no-operator", default=None, help="Whether it is an operator's. Default: as the key before.")
@with_config(["tenants"], omit=_OMITTED)
def rotate(config: MeshConfig, name: str, grace: float, operator: bool | None) -> None:
    """Give the tenant NAME a new key and print it, once."""
    with opened(config) as store:
        key = store.rotate(name, grace_s=grace, operator=operator)
    show_key(key, f"tenant {name}: the keys before end {f'in {grace:g} s' if grace else 'now'}")


@tenant.command(cls=SettingsCommand)
@click.argument("name")
@click.option("--key", "key_id", metavar="ID", help="This one alone, by its id, which is no secret.")
@with_config(["tenants"], omit=_OMITTED)
def revoke(config: MeshConfig, name: str, key_id: str | None) -> None:
    """End the keys of the tenant NAME for good.

    What they have started is cancelled. The tenant stays; `tercet tenant rotate` gives it a new key.
    """
    with opened(config) as store:
        ended = store.revoke(name, key_id)
    click.echo(f"tenant {name}: revoked {', '.join(ended)}" if ended else f"tenant {name}: nothing was left to revoke")


@tenant.command(cls=SettingsCommand)
@click.argument("name")
@with_config(["tenants"], omit=_OMITTED)
def remove(config: MeshConfig, name: str) -> None:
    """Take the tenant NAME out, its keys with it.

    What it has started is cancelled. One that is added later under the same name finds nothing of what this one had in
    the prefix cache.
    """
    with opened(config) as store:
        store.remove(name)
    click.echo(f"tenant {name} is removed")


def show_key(key: ApiKey, what: str) -> None:
    """The key alone on standard output, for scripts; the words beside it."""
    click.echo(f"{what}; its key, which nobody can show again:", err=True)
    click.echo(key.text)


def warn_of_classes(config: MeshConfig, plan: Mapping[str, Any]) -> None:
    """Says which classes of a plan are none of the settings at hand; those of the mesh may be others."""
    named = dict.fromkeys([*plan.get("classes", ()), *filter(None, [plan.get("default_class")])])
    unknown = [each for each in named if each not in config.classes]
    if unknown:
        click.echo(
            f"warning: {', '.join(unknown)}: no traffic class of the settings here, which are"
            f" {', '.join(config.classes)}; the mesh's may be others (give its --config)",
            err=True,
        )


def to_words(plan: TenantPlan) -> list[str]:
    """The limits of a plan that are any, such as ``weight 2``."""
    changed = [item.name for item in dataclasses.fields(plan) if getattr(plan, item.name) != item.default]
    return [f"{name.replace('_', ' ')} {_shown(getattr(plan, name))}" for name in changed]


def _shown(value: str | float | tuple[str, ...]) -> str:
    if isinstance(value, tuple):
        return ", ".join(value)
    return value if isinstance(value, str) else f"{value:,}"


def to_table(entries: Sequence[TenantEntry], now: float) -> Table:
    """A row for each tenant."""
    table = Table("tenant", "keys", "may", box=None, pad_edge=False)
    for entry in entries:
        active = [f"{key.id}{' (operator)' if key.role == 'operator' else ''}" for key in entry.keys if key.active(now)]
        table.add_row(entry.name, "\n".join(active) or "none", "\n".join(to_words(entry.plan)) or "everything")
    return table


def to_json(entry: TenantEntry, now: float) -> dict[str, Any]:
    """A tenant as JSON has it; times are seconds since the epoch."""
    keys = [{**dataclasses.asdict(key), "active": key.active(now)} for key in entry.keys]
    return {"name": entry.name, "created_at": entry.created_at, **dataclasses.asdict(entry.plan), "keys": keys}
