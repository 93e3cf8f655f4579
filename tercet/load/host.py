"""How busy this host is: its processors and its GPUs."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

from .record import GpuSample

_STAT = Path("/proc/stat")


class HostCpu:
    """The part of all processors that was busy between two looks."""

    def __init__(self) -> None:
        self._before = self._times()

    def take(self) -> float | None:
        """Since the last time; None where the system does not say."""
        before, self._before = self._before, self._times()
        if before is None or self._before is None:
            return None
        total, idle = self._before[0] - before[0], self._before[1] - before[1]
        return 1 - idle / total if total > 0 else None

    @staticmethod
    def _times() -> tuple[int, int] | None:
        """Ticks of all kinds, and those in which nothing was to be done or a disk was waited for."""
        try:
            ticks = [int(each) for each in _STAT.read_text().split("\n", 1)[0].split()[1:9]]
        except (OSError, ValueError):
            return None
        return (sum(ticks), ticks[3] + ticks[4]) if len(ticks) > 4 else None


class Gpus:
    """The GPUs of this host, by NVML where it is there; elsewhere there are none."""

    def __init__(self) -> None:
        self._nvml: Any = None
        self._handles: list[Any] = []
        try:
            import pynvml

            pynvml.nvmlInit()
            self._nvml = pynvml
            self._handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
        except Exception:
            # Not installed, no driver, no right: NVML has an error for each.
            self._handles = []

    def take(self) -> tuple[GpuSample, ...]:
        """Each as it is now."""
        return tuple(self._sample(index, handle) for index, handle in enumerate(self._handles))

    def describe(self) -> dict[str, Any]:
        """Driver and CUDA versions, and what each GPU is; None where NVML does not say."""
        nvml = self._nvml if self._handles else None
        version = None if nvml is None else self._ask("nvmlSystemGetCudaDriverVersion_v2")
        return {
            "driver": None if nvml is None else _text(self._ask("nvmlSystemGetDriverVersion")),
            "cuda": None if version is None else f"{version // 1000}.{version % 1000 // 10}",
            "gpus": [
                {
                    "name": _text(self._ask("nvmlDeviceGetName", handle)),
                    "memory_bytes": getattr(self._ask("nvmlDeviceGetMemoryInfo", handle), "total", None),
                    "max_clock_mhz": self._ask("nvmlDeviceGetMaxClockInfo", handle, 1),
                    "power_limit_w": _watts(self._ask("nvmlDeviceGetEnforcedPowerLimit", handle)),
                }
                for handle in self._handles
            ],
        }

    def _sample(self, index: int, handle: Any) -> GpuSample:
        use = getattr(self._ask("nvmlDeviceGetUtilizationRates", handle), "gpu", None)
        return GpuSample(
            index,
            None if use is None else use / 100,
            _watts(self._ask("nvmlDeviceGetPowerUsage", handle)),
            getattr(self._ask("nvmlDeviceGetMemoryInfo", handle), "used", None),
            # 1 is the clock of the multiprocessors.
            self._ask("nvmlDeviceGetClockInfo", handle, 1),
        )

    def _ask(self, name: str, *arguments: Any) -> Any:
        """None for what this GPU does not tell."""
        with contextlib.suppress(Exception):
            return getattr(self._nvml, name)(*arguments)
        return None


def _watts(milliwatts: int | None) -> float | None:
    return None if milliwatts is None else milliwatts / 1e3


def _text(value: Any) -> str | None:
    return value.decode() if isinstance(value, bytes) else value
