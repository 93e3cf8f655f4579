"""Norms that a checkpoint stores as what they lack to one, as Gemma's do. Knows no file format."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from ..model.tensors import Shape
from .tensor_source import TensorSource


class NormsFromZero:
    """A TensorSource over another whose norms get the one that they lack. In bfloat16 the sum is rounded once, as any
    weight is."""

    def __init__(self, source: TensorSource) -> None:
        self._source = source

    @property
    def origin(self) -> str:
        """The other's."""
        return self._source.origin

    def shapes(self) -> Mapping[str, Shape]:
        """The other's."""
        return self._source.shapes()

    def stored_name(self, name: str) -> str:
        """The other's."""
        return self._source.stored_name(name)

    def read(self, name: str) -> Tensor:
        """The tensor, norms in float64. Raises ModelError."""
        tensor = self._source.read(name)
        return tensor.double() + 1.0 if name.endswith("norm.weight") else tensor
