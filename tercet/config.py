"""The settings of a mesh: one TOML file, environment and flags, validated once into frozen dataclasses.

Later wins: defaults, the TOML file, environment (``TERCET_WORKER_MAX_NUM_SEQS``), flags. Every problem is a
ConfigError that names the key; all are reported at once.
"""

from __future__ import annotations

import dataclasses
import difflib
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tercet import class_settings as classes
from tercet.errors import ConfigError
from tercet.sections import (
    CostsSettings,
    GatewaySettings,
    LedgerSettings,
    LogSettings,
    MeshConfig,
    MetricsSettings,
    ModelSettings,
    SchedulerSettings,
    TenantsSettings,
    WorkerSettings,
)
from tercet.setting_field import build, noted
from tercet.setting_value import list_text
from tercet.tls.settings import TlsSettings, tls_problems
from tercet.tracing.settings import TracesSettings, traces_problems

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ENV_PREFIX = "TERCET"

# Who set the environment of a child of `tercet up`, and what the child is called there; which instructions the C++
# extension may use; which GPUs the CUDA one is built for; the key that commands send to a gateway, and by which CA they
# know it.
PARENT_PID_VARIABLE = f"{ENV_PREFIX}_PARENT_PID"
PROCESS_NAME_VARIABLE = f"{ENV_PREFIX}_PROCESS_NAME"
ISA_VARIABLE = f"{ENV_PREFIX}_ISA"
CUDA_ARCHS_VARIABLE = f"{ENV_PREFIX}_CUDA_ARCHS"
API_KEY_VARIABLE = f"{ENV_PREFIX}_API_KEY"
CA_VARIABLE = f"{ENV_PREFIX}_CA"
_NOT_SETTINGS = frozenset(
    {PARENT_PID_VARIABLE, PROCESS_NAME_VARIABLE, ISA_VARIABLE, CUDA_ARCHS_VARIABLE, API_KEY_VARIABLE, CA_VARIABLE}
)


class ConfigErrors(ConfigError):
    """Several settings are wrong. `problems` has each, `key` is the first one's; the text has a line for each."""

    def __init__(self, problems: Sequence[ConfigError]) -> None:
        super().__init__(problems[0].key, "")
        self.args = ("\n".join(map(str, problems)),)
        self.problems = tuple(problems)


_SECTIONS: dict[str, type[Any]] = {
    "model": ModelSettings,
    "gateway": GatewaySettings,
    "scheduler": SchedulerSettings,
    "worker": WorkerSettings,
    "tenants": TenantsSettings,
    "ledger": LedgerSettings,
    "costs": CostsSettings,
    "metrics": MetricsSettings,
    "tls": TlsSettings,
    "traces": TracesSettings,
    "log": LogSettings,
}


def load_config(
    path: Path | None = None, env: Mapping[str, str] | None = None, flags: Mapping[str, Any] | None = None
) -> MeshConfig:
    """Merges the sources and validates.

    `env` is a process environment; names that begin with TERCET_ must be settings. `flags` maps dotted keys, such as
    ``worker.max_num_seqs`` or ``classes.batch.weight``, to values; strings are converted as those of the environment.
    Raises ConfigError for one problem, ConfigErrors for several.
    """
    values: dict[str, Any] = {}
    problems: list[ConfigError] = []
    if path is not None:
        with noted(problems):
            _merge_file(values, path, problems)
    for variable, text in (env or {}).items():
        if variable.startswith(f"{ENV_PREFIX}_") and variable not in _NOT_SETTINGS:
            with noted(problems):
                values[_key_of_variable(variable)] = text
    for key, value in (flags or {}).items():
        with noted(problems):
            _check_key(key)
            values[key] = value
    built = {name: build(name, cls(), _below(name, values), problems) for name, cls in _SECTIONS.items()}
    config = MeshConfig(**built, classes=classes.build_classes(_classes_in(values), problems))
    if config.scheduler.default_class not in config.classes:
        known = ", ".join(config.classes)
        problem = f"there is no traffic class {config.scheduler.default_class!r}; the classes are {known}"
        problems.append(ConfigError("scheduler.default_class", problem))
    problems += tls_problems(config.tls)
    problems += traces_problems(config.traces)
    raise_all(problems)
    return config


def raise_all(problems: Sequence[ConfigError]) -> None:
    """Raises the only one of `problems`, or ConfigErrors with several; returns if there is none."""
    if problems:
        raise problems[0] if len(problems) == 1 else ConfigErrors(problems)


def setting_keys() -> dict[str, dataclasses.Field[Any]]:
    """Every dotted key with its field, in order, but for those of traffic classes."""
    return {f"{section}.{item.name}": item for section, cls in _SECTIONS.items() for item in dataclasses.fields(cls)}


def to_environment(config: MeshConfig) -> dict[str, str]:
    """The environment that makes `load_config` rebuild `config`; hands settings to child processes."""
    values = classes.class_values(config.classes)
    for key in setting_keys():
        section, _, name = key.partition(".")
        values[key] = getattr(getattr(config, section), name)
    return {
        variable_of(key): list_text(value) if isinstance(value, tuple) else str(value) for key, value in values.items()
    }


def variable_of(key: str) -> str:
    """The environment variable of a dotted key."""
    return f"{ENV_PREFIX}_{key.replace('.', '_')}".upper()


def is_setting(variable: str) -> bool:
    """Whether an environment variable sets something of `MeshConfig`."""
    try:
        _key_of_variable(variable)
    except ConfigError:
        return False
    return True


def _below(section: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """What is said of a section, by name."""
    prefix = f"{section}."
    return {key.removeprefix(prefix): value for key, value in values.items() if key.startswith(prefix)}


def _classes_in(values: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """What is said of each traffic class, by name."""
    out: dict[str, dict[str, Any]] = {}
    for key, value in _below(classes.SECTION, values).items():
        name, _, item = key.partition(".")
        out.setdefault(name, {})[item] = value
    return out


def _merge_file(values: dict[str, Any], path: Path, problems: list[ConfigError]) -> None:
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError("config", f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:
        # Also of a number that has too many digits to be read.
        raise ConfigError("config", f"{path} is not valid TOML: {error}") from error
    tables = {key: value for key, value in data.items() if key != classes.SECTION}
    named = data.get(classes.SECTION, {})
    if isinstance(named, dict):
        tables.update({f"{classes.SECTION}.{name}": body for name, body in named.items()})
    else:
        tables[classes.SECTION] = named
    for section, body in tables.items():
        if section not in _SECTIONS and section.partition(".")[0] != classes.SECTION:
            problems.append(ConfigError(section, f"unknown section in {path}; known: {_known_sections()}"))
        elif not isinstance(body, dict):
            problems.append(ConfigError(section, f"must be a table in {path}"))
        else:
            for name, value in body.items():
                with noted(problems):
                    _check_key(f"{section}.{name}")
                    values[f"{section}.{name}"] = value


def _known_sections() -> str:
    return ", ".join([*_SECTIONS, f"{classes.SECTION}.NAME"])


def _key_of_variable(variable: str) -> str:
    """The dotted key that an environment variable sets. Raises ConfigError naming the variable."""
    section, _, name = variable.removeprefix(f"{ENV_PREFIX}_").lower().partition("_")
    known = [*setting_keys()]
    try:
        if section == classes.SECTION:
            if (found := classes.class_variable(name)) is not None:
                return ".".join((section, *found))
            known = [f"{section}.{name}.{item}" for name in classes.DEFAULT_CLASSES for item in classes.class_fields()]
            raise ConfigError(variable, f"unknown setting; [{section}.NAME] has: {', '.join(classes.class_fields())}")
        _check_field(section, name, variable)
    except ConfigError as error:
        near = difflib.get_close_matches(variable.upper(), map(variable_of, known), n=1, cutoff=0.8)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise ConfigError(variable, str(error).removeprefix(f"{variable}: ") + hint) from None
    return f"{section}.{name}"


def _check_key(key: str) -> None:
    """Raises ConfigError for what is no dotted key of a setting."""
    section, _, name = key.partition(".")
    if section == classes.SECTION:
        classes.class_key(key)
    else:
        _check_field(section, name, key)


def _check_field(section: str, name: str, key: str) -> None:
    if section not in _SECTIONS:
        raise ConfigError(key, f"unknown section; known: {_known_sections()}")
    known = [item.name for item in dataclasses.fields(_SECTIONS[section])]
    if name not in known:
        raise ConfigError(key, f"unknown setting; [{section}] has: {', '.join(known)}")
