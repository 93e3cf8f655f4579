"""Where a model's tensors come from: the interface of all formats, and the check that they fit the model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from torch import Tensor

from tercet.errors import ModelError

from ..model.tensors import HEAD, Shape

_LISTED = 5


class TensorSource(Protocol):
    """The tensors of one checkpoint, under the names of `worker.model.tensors`."""

    @property
    def origin(self) -> str:
        """What an error calls the checkpoint: the path of its file or directory."""

    def shapes(self) -> Mapping[str, Shape]:
        """The shape of every tensor in the checkpoint; one that no model knows keeps its stored name."""

    def stored_name(self, name: str) -> str:
        """What the checkpoint itself calls the tensor `name`, there or not."""

    def read(self, name: str) -> Tensor:
        """The tensor, in a floating dtype, on CPU, valid until the next read. Raises ModelError."""


def check_tensors(source: TensorSource, needed: Mapping[str, Shape]) -> None:
    """Raises ModelError, naming the tensors, if some are missing, have another shape, or have no place in the model."""
    found = source.shapes()
    missing = [source.stored_name(name) for name in needed if name not in found]
    if missing:
        raise ModelError(
            f"model: {source.origin} lacks {_listed(missing)}; {len(needed)} tensors are needed, {len(found)} are there"
        )
    wrong = [
        f"{source.stored_name(name)} (needed {list(shape)}, is {list(found[name])})"
        for name, shape in needed.items()
        if found[name] != shape
    ]
    if wrong:
        raise ModelError(f"model: in {source.origin} the shapes of {_listed(wrong)} do not fit its configuration")
    extra = [source.stored_name(name) for name in found if name not in needed and not _is_harmless(name)]
    if extra:
        raise ModelError(
            f"model: {source.origin} has {_listed(extra)}, which its architecture does not use; the output would be "
            "wrong without them"
        )


def _is_harmless(name: str) -> bool:
    """Old checkpoints store the rotary frequencies, and some a head although it is tied to the embedding."""
    return name.endswith("rotary_emb.inv_freq") or name == HEAD


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return ", ".join(names[:_LISTED]) + more
