"""Flags for settings: made from the fields of tercet.sections, so that no setting can lack its flag."""

from __future__ import annotations

import dataclasses
import functools
import os
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from tercet.class_settings import SECTION, class_fields
from tercet.config import load_config, setting_keys
from tercet.errors import ConfigError
from tercet.sections import MeshConfig

Command = TypeVar("Command", bound=Callable[..., Any])

# These say what kind of thing they set only together with their section: --log-level, not --level.
_ALWAYS_PREFIXED = {"costs", "ledger", "log", "metrics", "tenants", "tls", "traces"}

# Of the gateway that writes a ledger; no commands that read it need them.
LEDGER_OF_GATEWAY = (
    "ledger.journal_folder", "ledger.gpu_hour_price", "ledger.retention_days", "ledger.max_waiting_rows",
)  # fmt: skip


class SettingOption(click.Option):
    """The flag of one setting; `key` is its dotted name."""

    def __init__(self, param_decls: Sequence[str], *, key: str, **attributes: Any) -> None:
        super().__init__(param_decls, **attributes)
        self.key = key


class SettingsCommand(click.Command):
    """A command whose help lists settings by section."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes the command's own options first, then one list per section."""
        groups: dict[str, list[tuple[str, str]]] = {"Options": []}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is None or isinstance(parameter, click.Argument):
                continue
            key = parameter.key if isinstance(parameter, SettingOption) else ""
            groups.setdefault(f"Settings [{key.partition('.')[0]}]" if key else "Options", []).append(record)
        for heading, records in groups.items():
            if records:
                with formatter.section(heading):
                    formatter.write_dl(records)


def with_config(sections: Sequence[str], *, omit: Sequence[str] = ()) -> Callable[[Command], Command]:
    """Gives a command `--config` and a flag for every setting of `sections`, and passes it a MeshConfig as `config`.

    A name that stands in more than one of the sections is prefixed with its section. Settings in `omit` get no flag.
    Those of traffic classes, for whoever has the scheduler's, share one, `--class`.
    The command raises ConfigError, naming the key, if any value is wrong.
    """
    with_classes = "scheduler" in sections
    keys = {key: item for key, item in setting_keys().items() if key.partition(".")[0] in sections and key not in omit}

    def decorate(command: Command) -> Command:
        @functools.wraps(command)
        def wrapper(config_file: Path | None, **values: Any) -> Any:
            flags = {key: values.pop(_parameter(key)) for key in keys}
            flags = {key: _flat(value) for key, value in flags.items() if value not in (None, ())}
            if with_classes:
                flags.update(map(_class_setting, values.pop(_CLASS_PARAMETER)))
            return command(config=load_config(config_file, os.environ, flags), **values)

        parameters: list[click.Parameter] = [
            click.Option(
                ["--config", "config_file"],
                type=click.Path(path_type=Path),
                metavar="FILE",
                help="TOML file with settings; flags and TERCET_* variables override it.",
            ),
            *(_option(key, item, flag) for (key, item), flag in zip(keys.items(), flag_names(list(keys)), strict=True)),
        ]
        if with_classes:
            parameters.append(
                SettingOption(
                    ["--class", _CLASS_PARAMETER],
                    key=SECTION,
                    multiple=True,
                    metavar="NAME.KEY=VALUE",
                    help=f"Setting of a traffic class, as interactive.ttft_ms=500: {', '.join(class_fields())}.",
                )
            )
        # click collects parameters bottom up.
        existing: list[click.Parameter] = getattr(command, "__click_params__", [])
        wrapper.__click_params__ = [*reversed(parameters), *existing]  # type: ignore[attr-defined]
        return wrapper  # type: ignore[return-value]

    return decorate


def flag_names(keys: Sequence[str]) -> list[str]:
    """The flag of each dotted key, without dashes in front: the bare name where it is unique among `keys`."""
    counts = Counter(
        name for section, _, name in (key.partition(".") for key in keys) if section not in _ALWAYS_PREFIXED
    )
    out: list[str] = []
    for key in keys:
        section, _, name = key.partition(".")
        prefixed = counts[name] > 1 or section in _ALWAYS_PREFIXED
        out.append((f"{section}-{name}" if prefixed else name).replace("_", "-"))
    return out


def _option(key: str, item: dataclasses.Field[Any], flag: str) -> SettingOption:
    default = item.default
    text = f"{item.metadata['help']}  [{_shown(default)}]" if default not in ((), "") else item.metadata["help"]
    if isinstance(default, bool):
        return SettingOption([f"--{flag}/--no-{flag}", _parameter(key)], key=key, default=None, help=text)
    return SettingOption(
        [f"--{flag}", _parameter(key)],
        key=key,
        default=None,
        multiple=isinstance(default, tuple),
        metavar=_METAVARS.get(type(default), "TEXT"),
        help=text,
    )


def _class_setting(text: str) -> tuple[str, str]:
    """Dotted key and value of one `--class`. Raises ConfigError."""
    key, equals, value = text.partition("=")
    if not equals:
        raise ConfigError("--class", f"must be NAME.KEY=VALUE, is {text!r}")
    return f"{SECTION}.{key.strip()}", value.strip()


_CLASS_PARAMETER = "class_settings"
_METAVARS = {int: "N", float: "X", tuple: "A,B"}


def _parameter(key: str) -> str:
    return key.replace(".", "__")


def _shown(default: Any) -> str:
    if isinstance(default, bool):
        return "on" if default else "off"
    return ",".join(default) if isinstance(default, tuple) else str(default)


def _flat(value: Any) -> Any:
    """Repeated flags of a list as one list; every element may itself be comma-separated."""
    return ",".join(value) if isinstance(value, tuple) else value


__all__ = ["LEDGER_OF_GATEWAY", "MeshConfig", "SettingOption", "SettingsCommand", "flag_names", "with_config"]
