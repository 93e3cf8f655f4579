"""The settings of a mesh: one TOML file, environment and flags, validated once into frozen dataclasses.

Later wins: defaults, the TOML file, environment (``TERCET_WORKER_MAX_NUM_SEQS``), flags. Every problem is a
ConfigError that names the key.
"""

from __future__ import annotations

import dataclasses
import sys
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar

from tercet.errors import ConfigError
from tercet.telemetry import LogFormat, LogLevel

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ENV_PREFIX = "TERCET"

Dtype = Literal["auto", "float32", "bfloat16", "float16"]


def setting(default: Any, help: str, check: Callable[[Any], str | None] | None = None) -> Any:
    """A field of a section. `check` returns what is wrong with a value, or None."""
    return field(default=default, metadata={"help": help, "check": check})


# Counts that travel between services are 32-bit there.
_MAX_COUNT = 2**31 - 1


def _count(low: int, high: int = _MAX_COUNT) -> Callable[[Any], str | None]:
    return lambda value: None if low <= value <= high else f"must be from {low:,} to {high:,}, is {value:,}"


def _at_least(low: float) -> Callable[[Any], str | None]:
    return lambda value: None if value >= low else f"must be at least {low}, is {value}"


def _port(value: int) -> str | None:
    return None if 0 <= value <= 65535 else f"must be a port, 0 to 65535, is {value}"


def _address(value: str) -> str | None:
    host, _, port = value.rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) <= 65535:
        return f"must be host:port, is {value!r}"
    return None


def _addresses(values: tuple[str, ...]) -> str | None:
    if not values:
        return "must name at least one host:port"
    return next((problem for value in values if (problem := _address(value))), None)


def _block_size(value: int) -> str | None:
    if value == 0 or (8 <= value <= 256 and value & (value - 1) == 0):
        return None
    return f"must be 0 (automatic) or a power of two from 8 to 256, is {value}"


@dataclass(frozen=True, slots=True)
class ModelSettings:
    """Which model the mesh serves. Read by gateway (tokenizer, template) and worker (weights)."""

    model: str = setting("embedded", "a .gguf file, a Hugging Face directory, or 'embedded' (SmolLM2-135M-Instruct)")
    served_model_name: tuple[str, ...] = setting(
        (), "names clients may use; the first is canonical. Default: the file's"
    )
    max_model_len: int = setting(0, "longest prompt + output in tokens; 0: the model's own limit", _count(0))
    chat_template: str = setting("", "a Jinja file that replaces the model's chat template")


@dataclass(frozen=True, slots=True)
class GatewaySettings:
    """The edge: text, clients' streams."""

    host: str = setting("127.0.0.1", "address to listen on")
    port: int = setting(50051, "port to listen on; 0 picks a free one", _port)
    scheduler: str = setting("127.0.0.1:50052", "host:port of the scheduler", _address)
    max_prompt_bytes: int = setting(2 * 1024 * 1024, "largest prompt text in bytes, before tokenization", _count(1))
    max_stream_tokens: int = setting(
        4096, "tokens kept for a client that does not read before SLOW_CONSUMER", _count(1)
    )
    max_concurrent_requests: int = setting(4096, "requests in flight before QUEUE_FULL", _count(1))
    drain_seconds: float = setting(10.0, "grace for running requests at shutdown", _at_least(0))


@dataclass(frozen=True, slots=True)
class SchedulerSettings:
    """Order and time."""

    host: str = setting("127.0.0.1", "address to listen on")
    port: int = setting(50052, "port to listen on; 0 picks a free one", _port)
    workers: tuple[str, ...] = setting(("127.0.0.1:50053",), "host:port of each worker", _addresses)
    num_scheduler_steps: int = setting(8, "most decode steps per plan", _count(1))
    max_queued_requests: int = setting(1024, "requests waiting before QUEUE_FULL", _count(1))
    max_queued_tokens: int = setting(4_000_000, "prompt tokens waiting before QUEUE_FULL", _at_least(1))
    max_prefill_tokens: int = setting(
        0,
        "most prefill tokens in a step while sequences decode; 0: only the worker's max_num_batched_tokens",
        _count(0),
    )
    worker_grace_seconds: float = setting(
        30.0, "how long requests of a lost worker wait for it, or another, before WORKER_LOST", _at_least(0)
    )
    drain_seconds: float = setting(10.0, "grace for running requests at shutdown", _at_least(0))


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """One device."""

    host: str = setting("127.0.0.1", "address to listen on")
    port: int = setting(50053, "port to listen on; 0 picks a free one", _port)
    device: str = setting("cpu", "cpu, cuda or cuda:N")
    dtype: Dtype = setting("auto", "type of weights and activations; auto: bfloat16")
    block_size: int = setting(0, "tokens per KV block; 0: 16 on CPU, 64 on CUDA", _block_size)
    kv_cache_memory: int = setting(1 << 30, "bytes of KV cache", _at_least(1))
    max_num_seqs: int = setting(64, "most sequences in a step", _count(1))
    max_num_batched_tokens: int = setting(512, "most tokens in a step", _count(1))
    enable_prefix_caching: bool = setting(True, "keep the KV blocks of ended sequences for later prompts")
    num_threads: int = setting(0, "CPU threads; 0: all cores", _count(0, 1024))


@dataclass(frozen=True, slots=True)
class LogSettings:
    """What goes to standard error."""

    level: LogLevel = setting("info", "debug, info, warning or error")
    format: LogFormat = setting("console", "console or json")


@dataclass(frozen=True, slots=True)
class MeshConfig:
    """All settings."""

    model: ModelSettings = field(default_factory=ModelSettings)
    gateway: GatewaySettings = field(default_factory=GatewaySettings)
    scheduler: SchedulerSettings = field(default_factory=SchedulerSettings)
    worker: WorkerSettings = field(default_factory=WorkerSettings)
    log: LogSettings = field(default_factory=LogSettings)


_SECTIONS: dict[str, type[Any]] = {
    "model": ModelSettings,
    "gateway": GatewaySettings,
    "scheduler": SchedulerSettings,
    "worker": WorkerSettings,
    "log": LogSettings,
}

Section = TypeVar("Section")


def load_config(
    path: Path | None = None, env: Mapping[str, str] | None = None, flags: Mapping[str, Any] | None = None
) -> MeshConfig:
    """Merges the sources and validates.

    `env` is a process environment; only TERCET_<SECTION>_<KEY> names are read. `flags` maps dotted keys, such as
    ``worker.max_num_seqs``, to values; strings are converted as those of the environment. Raises ConfigError.
    """
    values: dict[str, dict[str, Any]] = {name: {} for name in _SECTIONS}
    if path is not None:
        _merge_file(values, path)
    _merge_env(values, env or {})
    for key, value in (flags or {}).items():
        section, _, name = key.partition(".")
        _field_of(section, name, key)
        values[section][name] = value
    built = {name: _build(name, cls, values[name]) for name, cls in _SECTIONS.items()}
    return MeshConfig(**built)


def setting_keys() -> dict[str, dataclasses.Field[Any]]:
    """Every dotted key with its field, in order."""
    return {f"{section}.{item.name}": item for section, cls in _SECTIONS.items() for item in dataclasses.fields(cls)}


def to_environment(config: MeshConfig) -> dict[str, str]:
    """The environment that makes `load_config` rebuild `config`; hands settings to child processes."""
    out: dict[str, str] = {}
    for key in setting_keys():
        section, _, name = key.partition(".")
        value = getattr(getattr(config, section), name)
        text = ",".join(value) if isinstance(value, tuple) else str(value)
        out[f"{ENV_PREFIX}_{section}_{name}".upper()] = text
    return out


def _merge_file(values: dict[str, dict[str, Any]], path: Path) -> None:
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError("config", f"cannot read {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError("config", f"{path} is not valid TOML: {error}") from error
    for section, body in data.items():
        if section not in _SECTIONS:
            raise ConfigError(section, f"unknown section in {path}; known: {', '.join(_SECTIONS)}")
        if not isinstance(body, dict):
            raise ConfigError(section, f"must be a table in {path}")
        for name, value in body.items():
            _field_of(section, name, f"{section}.{name}")
            values[section][name] = value


def _merge_env(values: dict[str, dict[str, Any]], env: Mapping[str, str]) -> None:
    for variable, value in env.items():
        prefix, _, rest = variable.partition("_")
        section, _, name = rest.lower().partition("_")
        if prefix == ENV_PREFIX and section in _SECTIONS:
            _field_of(section, name, variable)
            values[section][name] = value


def _field_of(section: str, name: str, key: str) -> dataclasses.Field[Any]:
    if section not in _SECTIONS:
        raise ConfigError(key, f"unknown section; known: {', '.join(_SECTIONS)}")
    known = {item.name: item for item in dataclasses.fields(_SECTIONS[section])}
    if name not in known:
        raise ConfigError(key, f"unknown setting; [{section}] has: {', '.join(known)}")
    return known[name]


def _build(section: str, cls: type[Section], values: Mapping[str, Any]) -> Section:
    hints = typing.get_type_hints(cls)
    converted: dict[str, Any] = {}
    for item in dataclasses.fields(cls):  # type: ignore[arg-type]
        if item.name not in values:
            continue
        key = f"{section}.{item.name}"
        value = _convert(key, hints[item.name], values[item.name])
        check = item.metadata.get("check")
        if check is not None and (problem := check(value)) is not None:
            raise ConfigError(key, problem)
        converted[item.name] = value
    return cls(**converted)


def _convert(key: str, hint: Any, value: Any) -> Any:
    """`value` as the type `hint`; strings of environment and flags are parsed, TOML values must have the type."""
    origin = typing.get_origin(hint)
    if origin is Literal:
        choices = typing.get_args(hint)
        if value not in choices:
            raise ConfigError(key, f"must be one of {', '.join(choices)}, is {value!r}")
        return value
    if origin is tuple:
        if isinstance(value, str):
            value = [part.strip() for part in value.split(",") if part.strip()]
        if not isinstance(value, (list, tuple)) or not all(isinstance(part, str) for part in value):
            raise ConfigError(key, f"must be a list of strings, is {value!r}")
        return tuple(value)
    if hint is str and isinstance(value, str):
        return value
    if hint is bool:
        if isinstance(value, bool):
            return value
        if isinstance(value, str) and value.lower() in _BOOLEANS:
            return _BOOLEANS[value.lower()]
        raise ConfigError(key, f"must be true or false, is {value!r}")
    if hint in (int, float) and not isinstance(value, bool):
        if isinstance(value, (int, hint)):
            return hint(value)
        if isinstance(value, str):
            try:
                return hint(_scaled(value)) if hint is int else hint(value)
            except ValueError:
                pass
    raise ConfigError(key, f"must be {_TYPE_NAMES[hint]}, is {value!r}")


_BOOLEANS: Mapping[str, bool] = types.MappingProxyType(
    {"true": True, "1": True, "yes": True, "on": True, "false": False, "0": False, "no": False, "off": False}
)
_TYPE_NAMES = {int: "a whole number (suffixes KiB, MiB, GiB allowed)", float: "a number", str: "a string"}
_SCALES = {"kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30}


def _scaled(text: str) -> int:
    """``512MiB`` and ``512`` as whole numbers. Raises ValueError."""
    lowered = text.strip().lower()
    for suffix, scale in _SCALES.items():
        if lowered.endswith(suffix):
            return int(float(lowered[: -len(suffix)]) * scale)
    return int(lowered)
