"""Which devices a worker takes: a CUDA extension that does not load is no matter of a worker on a CPU."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

import pytest
import torch
from structlog.testing import capture_logs

from tercet.errors import ConfigError, StartupError
from tercet.model_source import resolve_model
from tercet.sections import MeshConfig, WorkerSettings
from worker import layout
from worker.ops.dtypes import KERNELS_PROBLEM

ROOT = Path(__file__).resolve().parents[2]
# Loads all operations and computes one; argv[1] is a folder that comes before that of the package.
WITH_A_FOLDER_BEFORE = """
import sys
import torch, worker
worker.__path__.insert(0, sys.argv[1])
from worker import engine, layout
from worker.ops import activation, attention, block_copy, dtypes, heads, norm, rope, sampler, step_attention
assert norm.rms_norm(torch.ones(1, 8), torch.ones(8), 1e-5).shape == (1, 8)
assert not dtypes.on_kernels(torch.ones(1))
print(dtypes.KERNELS_BUILT, dtypes.KERNELS_PROBLEM)
"""


def run(folder: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-c", WITH_A_FOLDER_BEFORE, str(folder)],
        env=dict(os.environ), capture_output=True, text=True, cwd=ROOT, check=True,
    )  # fmt: skip
    return done.stdout.strip()


def test_what_was_built_here_loads() -> None:
    assert KERNELS_PROBLEM == ""


def test_operations_on_a_cpu_do_without_an_extension_that_does_not_load(tmp_path: Path) -> None:
    broken = tmp_path / f"_kernels{sysconfig.get_config_var('EXT_SUFFIX')}"
    broken.write_bytes(b"no library")
    said = run(tmp_path)
    assert said.startswith("False ")
    assert str(broken) in said


def test_a_cache_of_fp8_is_refused_where_nothing_serves_it(monkeypatch: pytest.MonkeyPatch) -> None:
    source = resolve_model("embedded")

    def plan(device: str, **settings: Any) -> layout.Layout:
        worker = WorkerSettings(device=device, kv_cache_dtype="fp8", kv_cache_memory=2**24, **settings)
        return layout.plan_layout(MeshConfig(worker=worker), source)

    with pytest.raises(ConfigError, match=r"worker.kv_cache_dtype: fp8 is for CUDA"):
        plan("cpu")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (2**34, 2**34))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(layout, "serves_fp8", lambda device, head_dim, block_size: False)
    with pytest.raises(ConfigError, match=r"takes a Hopper GPU.* heads of 64 and blocks of 64"):
        plan("cuda")
    monkeypatch.setattr(layout, "serves_fp8", lambda device, head_dim, block_size: True)
    with pytest.raises(ConfigError, match="float32"):
        plan("cuda", dtype="float32")
    planned = plan("cuda")
    assert (planned.dtype, planned.kv_dtype) == (torch.bfloat16, torch.float8_e4m3fn)
    assert planned.budget.kv_block_bytes == 64 * 11_520  # of SmolLM2-135M, a byte for each number


def test_products_in_fp8_are_refused_where_nothing_computes_them(monkeypatch: pytest.MonkeyPatch) -> None:
    source = resolve_model("embedded")

    def plan(device: str, **settings: Any) -> layout.Layout:
        worker = WorkerSettings(device=device, kv_cache_memory=2**24, **settings)
        return layout.plan_layout(MeshConfig(worker=worker), source)

    with pytest.raises(ConfigError, match=r"worker.quantization: fp8 is for CUDA"):
        plan("cpu", quantization="fp8")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (2**34, 2**34))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(layout, "fp8_problem", lambda device: "it is too old")
    with pytest.raises(ConfigError, match=r"worker.quantization: cuda:0 does not multiply in fp8.* it is too old"):
        plan("cuda", quantization="fp8")
    monkeypatch.setattr(layout, "fp8_problem", lambda device: None)
    with pytest.raises(ConfigError, match=r"worker.quantization: .* bfloat16, is float16"):
        plan("cuda", quantization="fp8", dtype="float16")
    planned, plain = plan("cuda", quantization="fp8"), plan("cuda")
    assert (planned.quantization, plain.quantization) == ("fp8", "none")
    of_a_layer = 576 * (960 + 576 + 3 * 1536)  # of SmolLM2-135M, whose outputs are 960, 576, 3,072 and 576
    saved = 30 * (of_a_layer - 4 * (960 + 576 + 3072 + 576))
    assert plain.budget.usage.weights - planned.budget.usage.weights == saved


def test_a_worker_on_a_cpu_warns_once_and_one_on_a_gpu_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = "undefined symbol: launch"
    monkeypatch.setattr(layout, "KERNELS_PROBLEM", problem)
    source = resolve_model("embedded")
    with capture_logs() as events:
        planned = layout.plan_layout(MeshConfig(worker=WorkerSettings(device="cpu", kv_cache_memory=2**24)), source)
    assert planned.device.type == "cpu"
    assert [(event["event"], event["problem"]) for event in events if event["log_level"] == "warning"] == [
        ("cuda_extension_broken", problem)
    ]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    with pytest.raises(StartupError, match=r"is cuda:0, .* does not load: undefined symbol: launch; build it again"):
        layout.plan_layout(MeshConfig(worker=WorkerSettings(device="cuda")), source)


def test_a_gpu_without_kernels_is_warned_of_and_one_that_is_too_old_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layout, "KERNELS_BUILT", False)
    monkeypatch.setattr(layout, "KERNELS_PROBLEM", "")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (70 << 30, 80 << 30))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Old X")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    config, source = MeshConfig(worker=WorkerSettings(device="cuda")), resolve_model("embedded")
    with capture_logs() as events:
        layout.plan_layout(config, source)
    assert [event["event"] for event in events if event["log_level"] == "warning"] == ["cuda_extension_missing"]
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    with pytest.raises(StartupError, match=r"a Old X of compute capability 7\.5; 8\.0 or newer is needed"):
        layout.plan_layout(config, source)
