"""The tensors of a checkpoint that read and write text, of a model that sees pictures as well. Knows no file format."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from ..model.tensors import Shape
from .tensor_source import TensorSource

# What names begin with in such a checkpoint, as it is published and as newer libraries write it, and here.
_PREFIXES = {
    "language_model.model.": "model.",
    "language_model.lm_head.": "lm_head.",
    "model.language_model.": "model.",
}
_OTHER_PARTS = ("vision_tower.", "multi_modal_projector.", "model.vision_tower.", "model.multi_modal_projector.")


class LanguageModel:
    """A TensorSource over another, without its other parts."""

    def __init__(self, source: TensorSource) -> None:
        self._source = source
        self._stored = {_own_name(name): name for name in source.shapes() if not name.startswith(_OTHER_PARTS)}

    @property
    def origin(self) -> str:
        """The other's."""
        return self._source.origin

    def shapes(self) -> Mapping[str, Shape]:
        """Those of the tensors that are left, and of what no part is known to have."""
        shapes = self._source.shapes()
        return {name: shapes[stored] for name, stored in self._stored.items()}

    def stored_name(self, name: str) -> str:
        """The name in the checkpoint."""
        return self._source.stored_name(self._stored.get(name, name))

    def read(self, name: str) -> Tensor:
        """The tensor. Raises ModelError."""
        return self._source.read(self._stored[name])


def has_other_parts(source: TensorSource) -> bool:
    """Whether the checkpoint is one of a model that does more than text."""
    return any(name.startswith(tuple(_PREFIXES)) for name in source.shapes())


def _own_name(stored: str) -> str:
    for prefix, own in _PREFIXES.items():
        if stored.startswith(prefix):
            return own + stored.removeprefix(prefix)
    return stored
