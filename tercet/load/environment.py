"""What a run's figures depend on beside the workload: server, software, machine. What nobody says is None."""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any

import tercet

from .host import Gpus
from .target import Described

_PACKAGES = (
    "aiohttp", "grpcio", "numpy", "protobuf", "starlette", "tokenizers", "torch", "uvicorn", "uvloop", "vllm",
    "xgrammar",
)  # fmt: skip
_ROOT = Path(tercet.__file__).resolve().parent.parent


def environment_of(
    described: Described, name: str, gpus: Gpus, *, is_local: bool, started_with: str = ""
) -> dict[str, Any]:
    """As JSON has it. What is said of the host holds for the server only if `same_host`; how it was `started_with` no
    server says, whoever measures it may."""
    return {
        "server": {
            "name": name,
            "model": described.model,
            # A fingerprint of the model's files.
            "model_revision": described.revision,
            "max_model_len": described.max_model_len,
            "start_parameters": started_with or None,
            **described.more,
        },
        "same_host": is_local,
        "host": {
            "system": platform.platform(),
            "cpu": _cpu(),
            "cpus": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
            **gpus.describe(),
        },
        "software": {
            "tercet": tercet.__version__,
            "git_revision": _git_revision(),
            "python": platform.python_version(),
            "packages": {name: version for name in _PACKAGES if (version := _version(name)) is not None},
            "build_ids": _build_ids(),
        },
    }


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _git_revision() -> str | None:
    """Of the source tree, with a + if it was changed since."""
    if not (_ROOT / ".git").exists():
        return None
    try:
        said = [
            subprocess.run(["git", *words], cwd=_ROOT, capture_output=True, text=True, timeout=10, check=True).stdout
            for words in (["rev-parse", "HEAD"], ["status", "--porcelain", "--untracked-files=no"])
        ]
    except (OSError, subprocess.SubprocessError):
        return None
    return said[0].strip() + ("+" if said[1].strip() else "")


def _build_ids() -> dict[str, str]:
    """Of the extensions beside this package, by their names: the beginning of the SHA-256 of each file."""
    files = sorted((_ROOT / "worker").glob("_*.so"))
    return {file.name.partition(".")[0]: hashlib.sha256(file.read_bytes()).hexdigest()[:16] for file in files}


def _cpu() -> str | None:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or None
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, None)
