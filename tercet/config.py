"""The settings of a mesh: one TOML file, environment and flags, validated once into frozen dataclasses.

Later wins: defaults, the TOML file, environment (``TERCET_WORKER_MAX_NUM_SEQS``), flags. Every problem is a
ConfigError that names the key; all are reported at once.
"""

from __future__ import annotations

import dataclasses
import difflib
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from tercet import class_settings as classes
from tercet import setting_check as checks
from tercet.class_settings import ClassSettings
from tercet.errors import ConfigError
from tercet.model_source import LoadFormat
from tercet.setting_field import build, noted, setting
from tercet.telemetry import LogFormat, LogLevel
from tercet.tls.settings import TlsSettings, tls_problems

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

Dtype = Literal["auto", "float32", "bfloat16", "float16"]
KvCacheDtype = Literal["auto", "fp8"]
Quantization = Literal["none", "fp8"]
ToolParserName = Literal["auto", "none", "hermes", "llama3_json", "mistral"]
AdmissionMode = Literal["off", "shadow", "enforce"]


class ConfigErrors(ConfigError):
    """Several settings are wrong. `problems` has each, `key` is the first one's; the text has a line for each."""

    def __init__(self, problems: Sequence[ConfigError]) -> None:
        super().__init__(problems[0].key, "")
        self.args = ("\n".join(map(str, problems)),)
        self.problems = tuple(problems)


@dataclass(frozen=True, slots=True)
class ModelSettings:
    """Which model the mesh serves. Read by gateway (tokenizer, template) and worker (weights)."""

    model: str = setting(
        "embedded", "a .gguf file, a Hugging Face directory, or 'embedded' (SmolLM2-135M-Instruct)", checks.not_empty
    )
    served_model_name: tuple[str, ...] = setting(
        (), "names clients may use; the first is canonical. Default: the file's"
    )
    max_model_len: int = setting(0, "longest prompt + output in tokens; 0: the model's own limit", checks.count(0))
    chat_template: str = setting("", "a Jinja file that replaces the model's chat template")
    tool_parser: ToolParserName = setting(
        "auto", "how the model writes calls of tools; auto: told from its chat template; none: tools are refused"
    )
    load_format: LoadFormat = setting(
        "auto", "auto: the model's files; dummy: random weights in the model's shape, for benchmarks"
    )


@dataclass(frozen=True, slots=True)
class GatewaySettings:
    """The edge: text, clients' streams."""

    host: str = setting("127.0.0.1", "address to listen on", checks.not_empty)
    port: int = setting(50051, "port to listen on; 0 picks a free one", checks.port)
    shared_port: int = setting(
        0, "port to listen on as well, together with other gateways of this host; 0: none", checks.port
    )
    http_port: int = setting(0, "port of OpenAI's HTTP API; 0: none", checks.port)
    web: bool = setting(True, "whether http_port has the console, a page to chat and to watch the mesh, too")
    scheduler: tuple[str, ...] = setting(
        ("127.0.0.1:50052",),
        "host:port of each scheduler; requests go to the one that has the workers",
        checks.schedulers,
    )
    max_prompt_bytes: int = setting(
        2 * 1024 * 1024, "largest prompt text in bytes, before tokenization", checks.count(1), in_bytes=True
    )
    max_stream_tokens: int = setting(
        1024, "unread tokens with which a request is paused until its client has read on", checks.count(1)
    )
    stream_stall_seconds: float = setting(
        60.0, "how long a client may read nothing of what there is before SLOW_CONSUMER", checks.seconds(0.001)
    )
    max_concurrent_requests: int = setting(4096, "requests in flight before QUEUE_FULL", checks.count(1))
    handover_seconds: float = setting(
        0.0,
        "beside other gateways: connections are renewed at least so often, and SIGTERM lets them move away before "
        "drain_seconds begin; 0: neither",
        checks.seconds(0),
    )
    drain_seconds: float = setting(10.0, "grace for running requests at shutdown", checks.seconds(0))


@dataclass(frozen=True, slots=True)
class SchedulerSettings:
    """Order and time."""

    host: str = setting("127.0.0.1", "address to listen on", checks.not_empty)
    port: int = setting(50052, "port to listen on; 0 picks a free one", checks.port)
    workers: tuple[str, ...] = setting(
        ("127.0.0.1:50053",),
        "host:port of each worker; dns://name:port stands for every address of a name",
        checks.addresses,
    )
    peers: tuple[str, ...] = setting(
        (),
        "host:port of the other schedulers of the mesh, of which one leads; this one may be among them",
        checks.peers,
    )
    num_scheduler_steps: int = setting(
        0, "decode steps per plan; 0: chosen by how steady the load is. Fix it for experiments", checks.count(0)
    )
    max_queued_requests: int = setting(
        1024,
        "requests waiting in one pool before QUEUE_FULL, without those of higher ranks; eight times as many outputs",
        checks.count(1),
    )
    max_queued_tokens: int = setting(
        4_000_000,
        "prompt tokens waiting in one pool before QUEUE_FULL, without those of higher ranks; outputs share theirs",
        checks.whole(1),
    )
    default_class: str = setting("interactive", "traffic class of requests that name none", checks.not_empty)
    admission_mode: AdmissionMode = setting(
        "enforce", "what a forecast that misses a target or a deadline does: nothing, a line in the log, or a refusal"
    )
    max_prefill_tokens: int = setting(
        0,
        "most prefill tokens in a step while sequences decode; 0: as many as max_mixed_step_ms allows",
        checks.count(0),
    )
    max_mixed_step_ms: float = setting(
        50.0,
        "longest a step may take for prefill while sequences decode, by measured step times",
        checks.between(1, 86_400_000),
    )
    resolve_seconds: float = setting(5.0, "how often a dns:// name in workers is resolved again", checks.seconds(0.1))
    plan_log_rounds: int = setting(
        20_000, "rounds of planning the flight recorder keeps for tercet dump-plans; 0: off", checks.count(0)
    )
    hung_seconds: float = setting(
        10.0,
        "silence after which a worker with work is taken to hang, at least ten times the forecast of its step",
        checks.seconds(1),
    )
    worker_grace_seconds: float = setting(
        30.0, "how long accepted requests wait for a worker that can run them before WORKER_LOST", checks.seconds(0)
    )
    drain_seconds: float = setting(10.0, "grace for running requests at shutdown", checks.seconds(0))


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """One device."""

    host: str = setting("127.0.0.1", "address to listen on", checks.not_empty)
    port: int = setting(50053, "port to listen on; 0 picks a free one", checks.port)
    device: str = setting("cpu", "cpu, cuda or cuda:N")
    dtype: Dtype = setting("auto", "type of weights and activations; auto: bfloat16")
    quantization: Quantization = setting(
        "none", "fp8: the layers' products in float8_e4m3fn, half the bytes of their weights (Hopper GPUs)"
    )
    block_size: int = setting(0, "tokens per KV block; 0: 16 on CPU, 64 on CUDA", checks.block_size)
    kv_cache_dtype: KvCacheDtype = setting(
        "auto", "type of the KV cache; auto: that of the activations, fp8: float8_e4m3fn, half the bytes (Hopper GPUs)"
    )
    memory_fraction: float = setting(
        1.0,
        "part of the host's free memory that a worker on a CPU may use; tercet up divides it among its workers",
        checks.fraction,
    )
    gpu_memory_utilization: float = setting(
        0.9,
        "part of a GPU's memory that the worker may use in all; tercet up divides it among workers on one GPU",
        checks.fraction,
    )
    kv_cache_memory: int = setting(
        0,
        "bytes of KV cache; 0: 1 GiB on CPU, on CUDA what gpu_memory_utilization leaves",
        checks.whole(0),
        in_bytes=True,
    )
    max_num_seqs: int = setting(
        64, "most sequences in a step, and so the most outputs (n) of a request", checks.count(1)
    )
    max_num_batched_tokens: int = setting(512, "most tokens in a step", checks.count(1))
    enable_prefix_caching: bool = setting(True, "keep the KV blocks of ended sequences for later prompts")
    swap_space: int = setting(
        0, "bytes of host memory for the KV blocks of preempted sequences; 0: they are recomputed", checks.whole(0),
        in_bytes=True,
    )  # fmt: skip
    drain_seconds: float = setting(10.0, "grace for running sequences at shutdown", checks.seconds(0))
    hung_seconds: float = setting(
        300.0, "how long one step may take before the worker says that it is not live; after a tenth it is not ready",
        checks.seconds(1),
    )  # fmt: skip
    num_threads: int = setting(0, "CPU threads; 0: all cores", checks.count(0, 1024))
    grammar_seconds: float = setting(
        10.0, "how long the grammar of a request may take to be compiled", checks.between(0.1, 600)
    )
    grammar_memory: int = setting(
        1 << 30, "bytes of host memory that following grammars may take; nothing is taken before the first one",
        checks.whole(64 << 20), in_bytes=True,
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class TenantsSettings:
    """Who may call a gateway. Read by gateway and `tercet tenant`."""

    store: str = setting(
        "", "the SQLite file, or SQLAlchemy URL, of tenants and their keys; empty: no keys are asked for"
    )
    stale_seconds: float = setting(
        300.0, "how long the tenants last read hold while the store cannot be read; then calls are refused",
        checks.seconds(1),
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class LedgerSettings:
    """What requests have used. Written by gateways, read by `tercet usage`."""

    database: str = setting(
        "auto",
        "the SQLite file, or PostgreSQL URL, of the ledger; auto: tercet/ledger.db in XDG_STATE_HOME or "
        "~/.local/state; none: none is kept",
    )
    journal_folder: str = setting(
        "",
        "where gateways keep rows until the database has them; empty: beside the SQLite file, for a URL where auto is",
    )
    gpu_hour_price: float = setting(
        0.0, "what an hour of a GPU costs, in a currency of your own", checks.between(0, 1_000_000)
    )
    retention_days: float = setting(400.0, "how long rows are kept; 0: for ever", checks.between(0, 36_500))
    max_waiting_rows: int = setting(
        65_536, "requests running or waiting to be written before LEDGER_LOST", checks.count(1)
    )


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
    tenants: TenantsSettings = field(default_factory=TenantsSettings)
    ledger: LedgerSettings = field(default_factory=LedgerSettings)
    tls: TlsSettings = field(default_factory=TlsSettings)
    log: LogSettings = field(default_factory=LogSettings)
    # By name.
    classes: Mapping[str, ClassSettings] = field(default_factory=lambda: dict(classes.DEFAULT_CLASSES))


_SECTIONS: dict[str, type[Any]] = {
    "model": ModelSettings,
    "gateway": GatewaySettings,
    "scheduler": SchedulerSettings,
    "worker": WorkerSettings,
    "tenants": TenantsSettings,
    "ledger": LedgerSettings,
    "tls": TlsSettings,
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
        variable_of(key): ",".join(value) if isinstance(value, tuple) else str(value) for key, value in values.items()
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
