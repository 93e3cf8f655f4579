"""Random weights in the shape of a model, for benchmarks and tests that need no checkpoint."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from ..model.config import ModelConfig
from ..model.tensors import Shape, tensor_shapes

_DEVIATION = 0.02


class RandomTensors:
    """A TensorSource that makes its tensors up: norms around one, all else small around zero, the same for a seed."""

    origin = "random numbers"

    def __init__(self, config: ModelConfig, seed: int, dtype: torch.dtype, device: torch.device) -> None:
        """`dtype` and `device` are where the numbers are drawn; those of the model spare a conversion."""
        self._shapes = tensor_shapes(config)
        self._dtype = dtype
        self._device = device
        self._generator = torch.Generator(device).manual_seed(seed)

    def shapes(self) -> Mapping[str, Shape]:
        """All tensors of the model."""
        return self._shapes

    def stored_name(self, name: str) -> str:
        """Nothing is stored."""
        return name

    def read(self, name: str) -> Tensor:
        """The next numbers of the generator: reproducible for one order of reads."""
        tensor = torch.empty(self._shapes[name], dtype=self._dtype, device=self._device)
        mean = 1.0 if name.endswith("norm.weight") else 0.0
        return tensor.normal_(mean, _DEVIATION, generator=self._generator)
