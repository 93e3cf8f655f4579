"""Heads of which a part turns, in the order of those that turn as a whole. Knows no file format.

There element d turns with element d + D / 2. Where only the first R of D do, the two halves of these R come to the
beginnings of the two halves of D, and the others behind them, with angles of zero. Scores are sums over all elements of
q and k, which do not mind the order that both have.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from ..model.config import ModelConfig
from ..model.tensors import Shape
from .tensor_source import TensorSource


class PartialRotary:
    """A TensorSource over another, whose rows of q and k are put into that order."""

    def __init__(self, source: TensorSource, config: ModelConfig) -> None:
        self._source = source
        self._order = head_order(config.head_dim, config.rotary_dim)
        self._num_rows = {
            "q_proj": config.num_heads * config.head_dim,
            "k_proj": config.num_kv_heads * config.head_dim,
            "qkv_proj": (config.num_heads + config.num_kv_heads) * config.head_dim,
            "q_norm": config.head_dim,
            "k_norm": config.head_dim,
        }

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
        """The tensor, with the rows of q and k reordered. Raises ModelError."""
        tensor = self._source.read(name)
        *_, part, _kind = name.rsplit(".", 2)
        num_rows = self._num_rows.get(part)
        if num_rows is None:
            return tensor
        heads = tensor[:num_rows].view(-1, len(self._order), *tensor.shape[1:])
        return torch.cat((heads[:, self._order].flatten(0, 1), tensor[num_rows:]))


def head_order(head_dim: int, rotary_dim: int) -> Tensor:
    """[D]: which element of a head of D comes at each place, if the first `rotary_dim` turn."""
    elements = torch.arange(head_dim)
    low, high = elements[:rotary_dim].chunk(2)
    rest_low, rest_high = elements[rotary_dim:].chunk(2)
    return torch.cat((low, rest_low, high, rest_high))
