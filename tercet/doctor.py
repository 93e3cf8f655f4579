"""What a machine must have to serve, checked one by one. Looks from outside: imports neither torch nor a service."""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from tercet.config import ENV_PREFIX, to_environment
from tercet.errors import ConfigError, LedgerError, ModelError
from tercet.ledger.place import AUTO, REMEDY, ledger_place
from tercet.model_source import ModelFormat, ModelSource, resolve_model
from tercet.ports import check_port_free
from tercet.sections import LedgerSettings, MeshConfig

Verdict = Literal["ok", "warn", "fail"]

_MINIMUM_PYTHON = (3, 10)
_MINIMUM_TORCH = (2, 11)
_PROBE_TIMEOUT_S = 120.0


@dataclass(frozen=True, slots=True)
class Finding:
    """One result. `remedy` says what to do unless the verdict is ok."""

    subject: str
    verdict: Verdict
    fact: str
    remedy: str = ""


Probe = Callable[[str], str]


def examine(config: MeshConfig, probe: Probe | None = None) -> Iterator[Finding]:
    """Every finding, as soon as it is known. `probe` runs Python text in a fresh interpreter and returns its output."""
    probe = probe or run_python
    yield check_python(sys.version_info[:3])
    torch = check_torch(probe)
    yield torch
    yield check_compiler(os.environ)
    extension = check_extension(probe)
    yield extension
    cuda = check_cuda(probe, needed=config.worker.device.startswith("cuda"))
    yield cuda
    model = check_model(config.model.model)
    yield model
    if not failed((torch, extension, cuda, model)):
        # Else it would only say again what is missing.
        yield check_worker(probe, config)
    yield check_ledger(config.ledger, os.environ)
    for name in ("gateway", "scheduler", "worker"):
        settings = getattr(config, name)
        yield check_port(name, settings.host, settings.port)


def failed(findings: Iterable[Finding]) -> bool:
    """Whether anything needed is missing."""
    return any(finding.verdict == "fail" for finding in findings)


class ProbeError(Exception):
    """A probe's interpreter ended with an error; the text is its last line."""


def run_python(code: str) -> str:
    """Output of `code` in a fresh interpreter: a broken library ends that one, not this. Raises ProbeError."""
    try:
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, timeout=_PROBE_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise ProbeError(f"no answer within {_PROBE_TIMEOUT_S:g} s") from None
    if done.returncode < 0:
        raise ProbeError(f"crashed with signal {-done.returncode}")
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        raise ProbeError(lines[-1] if lines else f"exit code {done.returncode}")
    return done.stdout.strip()


def check_python(version: tuple[int, ...]) -> Finding:
    """`version` is (major, minor, micro)."""
    fact = ".".join(map(str, version)) + f" ({sys.executable})"
    if version[:2] < _MINIMUM_PYTHON:
        return Finding("python", "fail", fact, "install Python 3.10 or newer and run `make clean setup`")
    return Finding("python", "ok", fact)


def check_torch(probe: Probe) -> Finding:
    """Installed, new enough, importable."""
    install = "run `make setup`, or `pip install torch`"
    try:
        version = importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        return Finding("torch", "fail", "not installed", install)
    numbers = tuple(int(part) for part in version.split("+")[0].split(".")[:2] if part.isdigit())
    if numbers < _MINIMUM_TORCH:
        return Finding("torch", "fail", version, "torch 2.11 or newer is needed: " + install)
    try:
        threads = probe("import torch; print(torch.get_num_threads())")
    except ProbeError as error:
        return Finding("torch", "fail", f"{version} does not import: {error}", "reinstall it: " + install)
    return Finding("torch", "ok", f"{version}, {threads} threads")


def check_compiler(env: os._Environ[str] | dict[str, str]) -> Finding:
    """A C++ compiler. Needed to build the extension, not to run it."""
    names = [env["CXX"].split()[0]] if env.get("CXX", "").strip() else ["c++", "g++", "clang++"]
    for name in names:
        path = shutil.which(name, path=env.get("PATH"))
        if path is not None:
            done = subprocess.run(
                [path, "-dumpfullversion", "-dumpversion"], capture_output=True, text=True, check=False
            )
            return Finding("compiler", "ok", f"{path} {done.stdout.strip()}".strip())
    return Finding(
        "compiler", "warn", f"none of {', '.join(names)} found", "to rebuild the extension: apt install g++, or set CXX"
    )


def check_extension(probe: Probe) -> Finding:
    """worker._core, and which instructions it chose for this CPU."""
    try:
        isa = probe("from worker import _core; print(_core.isa())")
    except ProbeError as error:
        return Finding("extension", "fail", f"worker._core does not load: {error}", "run `make setup` to compile it")
    return Finding("extension", "ok", f"worker._core, {isa}")


def check_cuda(probe: Probe, *, needed: bool) -> Finding:
    """Whether torch reaches a GPU and worker._kernels was built for it, and whether nvcc is there. Only a worker with
    device cuda needs any of them."""
    try:
        said = probe(
            "import torch; n = torch.cuda.device_count() if torch.cuda.is_available() else 0; "
            "print(n, torch.cuda.get_device_name(0) if n else '')"
        )
    except ProbeError:
        said = "0"
    count, _, device = said.partition(" ")
    nvcc = shutil.which("nvcc", path=os.pathsep.join(_nvcc_folders(os.environ)))
    compiler = f"nvcc at {nvcc}" if nvcc else "no nvcc"
    if count.isdigit() and int(count) > 0:
        try:
            probe("import torch; from worker import _kernels")
        except ProbeError as error:
            fact = f"{count} x {device}, {compiler}; worker._kernels does not load: {error}"
            remedy = "build it where nvcc is: python cpp/build_kernels.py; without it PyTorch computes, much slower"
            return Finding("cuda", "fail" if needed else "warn", fact, remedy)
        return Finding("cuda", "ok", f"{count} x {device}, {compiler}, worker._kernels")
    if needed:
        remedy = "install an NVIDIA driver and a CUDA build of torch, or set worker.device to cpu"
        return Finding("cuda", "fail", f"torch sees no GPU, {compiler}", remedy)
    return Finding("cuda", "ok", f"no GPU, {compiler}; the worker runs on the CPU")


def _nvcc_folders(env: os._Environ[str] | dict[str, str]) -> list[str]:
    """Where the build looks, in its order."""
    home = env.get("CUDA_HOME")
    return [*([os.path.join(home, "bin")] if home else []), env.get("PATH", os.defpath), "/usr/local/cuda/bin"]


def check_model(model: str) -> Finding:
    """The files of the configured model."""
    try:
        source = resolve_model(model)
        size = _model_bytes(source)
    except ModelError as error:
        return Finding("model", "fail", model, str(error).removeprefix("model: "))
    except OSError as error:
        return Finding("model", "fail", model, f"cannot be read: {error}")
    return Finding("model", "ok", f"{source.path} ({size / 1e6:.0f} MB)")


# What a worker does before it loads anything, and the headers of its weights.
_WORKER_PROBE = """
import sys
from tercet.config import load_config
from tercet.errors import StartupError
from tercet.model_source import ModelFormat, resolve_model
from worker.server import budget_lines
from worker.weights.safetensors_files import SafetensorsFiles
config = load_config(None, {environment!r})
try:
    source = resolve_model(config.model.model, config.model.load_format)
    (cache,) = (line for line in budget_lines(config) if line.startswith("KV cache"))
    if source.format is ModelFormat.HUGGING_FACE and source.load_format == "auto":
        SafetensorsFiles(source.path)
except StartupError as error:
    sys.exit(str(error))
print(*cache.split())
"""


def check_worker(probe: Probe, config: MeshConfig) -> Finding:
    """Whether a worker of these settings could begin to load its model: what its settings ask of the device, the memory
    it would divide, and that the weights are all there."""
    sections = tuple(f"{ENV_PREFIX}_{name}_".upper() for name in ("model", "worker"))
    environment = {name: value for name, value in to_environment(config).items() if name.startswith(sections)}
    try:
        return Finding("worker", "ok", probe(_WORKER_PROBE.format(environment=environment)))
    except ProbeError as error:
        return Finding("worker", "fail", "would not start", str(error))


def check_ledger(settings: LedgerSettings, env: Mapping[str, str]) -> Finding:
    """Whether a gateway of this user could write it. Makes nothing."""
    # Here, because SQLAlchemy takes long to import.
    from tercet.ledger.ledger import Ledger

    try:
        where = ledger_place(settings, env)
        if where is None:
            return Finding("ledger", "ok", "none is kept (ledger.database)")
        ledger = Ledger(where, time.time)
        name, file = ledger.name, ledger.file
        if file is not None and not file.exists():
            folder = next(each for each in file.parents if each.exists())
            if settings.database != AUTO and folder != file.parent:
                return Finding("ledger", "fail", f"{name}: there is no folder {file.parent}", "make it")
            if not os.access(folder, os.W_OK | os.X_OK):
                return Finding("ledger", "fail", f"{folder} cannot be written", REMEDY)
            return Finding("ledger", "ok", f"{name}, made by a gateway that starts")
        version = ledger.version()
        looked_through = ledger.check(_PROBE_TIMEOUT_S)
        ledger.close()
    except LedgerError as error:
        return Finding("ledger", "fail", str(error).removeprefix("ledger.database: "), REMEDY)
    fact = f"{name}, schema {version}"
    if file is not None:
        fact += f", {file.stat().st_size / 1e6:.1f} MB, {'whole' if looked_through else 'not looked through'}"
    return Finding("ledger", "ok", fact)


def check_port(name: str, host: str, port: int) -> Finding:
    """A port that a service wants. Taken is no fault if the mesh is what runs there."""
    subject = f"{name} port"
    try:
        check_port_free(f"{name}.port", host, port, flag=f"--{name}-port")
    except ConfigError as error:
        return Finding(subject, "warn", f"{host}:{port} is taken", f"fine if a mesh runs; else {error}")
    return Finding(subject, "ok", f"{host}:{port} is free" if port else "a free one is picked at start")


def _model_bytes(source: ModelSource) -> int:
    files = [source.path] if source.format is ModelFormat.GGUF else source.path.glob("*.safetensors")
    return sum(file.stat().st_size for file in files)
