"""What this host says of itself, with GPUs and without."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from tercet.load.environment import environment_of
from tercet.load.host import Gpus, HostCpu
from tercet.load.record import ClientSample, GpuSample
from tercet.load.sampler import together
from tercet.load.target import Described


class Nvml:
    """Of one GPU that does not tell its power limit."""

    def nvmlInit(self) -> None: ...

    def nvmlDeviceGetCount(self) -> int:
        return 1

    def nvmlDeviceGetHandleByIndex(self, index: int) -> str:
        return f"gpu-{index}"

    def nvmlSystemGetDriverVersion(self) -> bytes:
        return b"550.1"

    def nvmlSystemGetCudaDriverVersion_v2(self) -> int:
        return 12040

    def nvmlDeviceGetName(self, handle: str) -> str:
        return "H200"

    def nvmlDeviceGetMemoryInfo(self, handle: str) -> Any:
        return SimpleNamespace(total=100, used=40)

    def nvmlDeviceGetMaxClockInfo(self, handle: str, kind: int) -> int:
        return 1980

    def nvmlDeviceGetClockInfo(self, handle: str, kind: int) -> int:
        return 1500

    def nvmlDeviceGetUtilizationRates(self, handle: str) -> Any:
        return SimpleNamespace(gpu=75)

    def nvmlDeviceGetPowerUsage(self, handle: str) -> int:
        return 350_000


def test_gpus_are_those_of_nvml(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", Nvml())
    gpus = Gpus()
    assert gpus.take() == (GpuSample(0, 0.75, 350.0, 40, 1500),)
    assert gpus.describe() == {
        "driver": "550.1",
        "cuda": "12.4",
        "gpus": [{"name": "H200", "memory_bytes": 100, "max_clock_mhz": 1980, "power_limit_w": None}],
    }


def test_without_nvml_there_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    gpus = Gpus()
    assert gpus.take() == ()
    assert gpus.describe() == {"driver": None, "cuda": None, "gpus": []}


def test_processors_are_as_busy_as_the_system_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    stat = tmp_path / "stat"
    monkeypatch.setattr("tercet.load.host._STAT", stat)
    stat.write_text("cpu 100 0 100 700 100 0 0 0 0 0\ncpu0 1 1 1 1\n")
    host = HostCpu()
    stat.write_text("cpu 150 0 110 730 110 0 0 0 0 0\n")
    # Of 100 ticks 40 had nothing to do, or waited for a disk.
    assert host.take() == pytest.approx(0.6)
    assert host.take() is None
    stat.write_text("")
    assert host.take() is None


def test_an_environment_says_what_is_known_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    found = environment_of(Described("m", None, None, None, takes_tokens=True), "x", Gpus(), is_local=False)
    assert found["same_host"] is False
    assert found["server"]["model_revision"] is found["server"]["start_parameters"] is None
    assert found["software"]["packages"]["grpcio"]
    assert "vllm" not in found["software"]["packages"]


def test_how_a_server_was_started_is_known_if_it_is_told() -> None:
    described = Described("m", None, None, None, takes_tokens=True)
    found = environment_of(described, "x", Gpus(), is_local=True, started_with="tercet up --num-workers 2")
    assert found["server"]["start_parameters"] == "tercet up --num-workers 2"


def test_several_processes_are_one_client() -> None:
    whole = together([ClientSample(1, 5, 4, 0.5, 0.2), ClientSample(2, 3, 1, 2.5, 0.1)])
    assert whole == ClientSample(3, 8, 5, 2.5, 0.2)
