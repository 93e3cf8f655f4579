"""All supported families, by the names that checkpoints use."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from .family import Family
from .llama import LLAMA
from .mistral import MISTRAL
from .qwen2 import QWEN2
from .qwen3 import QWEN3

_FAMILIES = (LLAMA, MISTRAL, QWEN2, QWEN3)

FAMILIES: Mapping[str, Family] = MappingProxyType({family.name: family for family in _FAMILIES})
BY_ARCHITECTURE: Mapping[str, Family] = MappingProxyType({family.architecture: family for family in _FAMILIES})
# GGUF has no architecture of its own for Mistral.
BY_GGUF_ARCHITECTURE: Mapping[str, Family] = MappingProxyType({family.name: family for family in (LLAMA, QWEN2, QWEN3)})
