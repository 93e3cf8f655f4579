"""The settings of each section, with defaults, checks and what `tercet` says of them. Data alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from tercet import class_settings as classes
from tercet import setting_check as checks
from tercet.class_settings import ClassSettings
from tercet.model_source import LoadFormat
from tercet.setting_field import setting
from tercet.telemetry import LogFormat, LogLevel
from tercet.tls.settings import TlsSettings
from tercet.tracing.settings import TracesSettings

Dtype = Literal["auto", "float32", "bfloat16", "float16"]
KvCacheDtype = Literal["auto", "fp8"]
Quantization = Literal["none", "fp8"]
ToolParserName = Literal["auto", "none", "hermes", "llama3_json", "mistral"]
AdmissionMode = Literal["off", "shadow", "enforce"]


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
        0.0, "what an hour of a GPU costs, in a currency of your own", checks.between(0, checks.MAX_PRICE)
    )
    retention_days: float = setting(400.0, "how long rows are kept; 0: for ever", checks.between(0, 36_500))
    max_waiting_rows: int = setting(
        65_536, "requests running or waiting to be written before LEDGER_LOST", checks.count(1)
    )


@dataclass(frozen=True, slots=True)
class CostsSettings:
    """What workers cost, in a currency of your own. Read by gateways, which write it into the ledger."""

    gpu_hour_price: float = setting(
        0.0, "what an hour of a worker with a GPU costs; 0: ledger.gpu_hour_price", checks.between(0, checks.MAX_PRICE)
    )
    cpu_hour_price: float = setting(
        0.0, "what an hour of a worker without a GPU costs; 0: as one with a GPU", checks.between(0, checks.MAX_PRICE)
    )
    overhead: float = setting(
        1.0, "factor of all prices, for what else has to be paid: other hosts, power, people", checks.between(0.01, 100)
    )
    model_hour_prices: tuple[str, ...] = setting(
        (), "MODEL=PRICE: an hour of its workers costs that instead, by the model's served name", checks.prices
    )


@dataclass(frozen=True, slots=True)
class MetricsSettings:
    """What services tell Prometheus."""

    host: str = setting("127.0.0.1", "address to listen on", checks.not_empty)
    port: int = setting(
        0, "port of Prometheus' metrics; tercet up gives its services those from there on; 0: none", checks.port
    )
    tenants: tuple[str, ...] = setting((), "tenants that are always told apart")
    max_tenants: int = setting(
        32, "so many others are told apart, the first that come; all the rest are one, 'other'", checks.count(0)
    )


@dataclass(frozen=True, slots=True)
class LogSettings:
    """What a process tells of itself, and where."""

    level: LogLevel = setting("info", "debug, info, warning or error")
    format: LogFormat = setting("console", "console or json")
    file: str = setting(
        "", "the file to write to; tercet up puts each process's name in front of its suffix; empty: standard error"
    )
    max_bytes: int = setting(
        0, "the file is renamed to file.1, and another one begun, before it is larger; 0: never", checks.whole(0),
        in_bytes=True,
    )  # fmt: skip
    backups: int = setting(5, "renamed files that are kept, the newest as file.1", checks.count(1, 1000))


@dataclass(frozen=True, slots=True)
class MeshConfig:
    """All settings."""

    model: ModelSettings = field(default_factory=ModelSettings)
    gateway: GatewaySettings = field(default_factory=GatewaySettings)
    scheduler: SchedulerSettings = field(default_factory=SchedulerSettings)
    worker: WorkerSettings = field(default_factory=WorkerSettings)
    tenants: TenantsSettings = field(default_factory=TenantsSettings)
    ledger: LedgerSettings = field(default_factory=LedgerSettings)
    costs: CostsSettings = field(default_factory=CostsSettings)
    metrics: MetricsSettings = field(default_factory=MetricsSettings)
    tls: TlsSettings = field(default_factory=TlsSettings)
    traces: TracesSettings = field(default_factory=TracesSettings)
    log: LogSettings = field(default_factory=LogSettings)
    # By name.
    classes: Mapping[str, ClassSettings] = field(default_factory=lambda: dict(classes.DEFAULT_CLASSES))
