"""All supported families, by the names that checkpoints use."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from .family import Family
from .gemma2 import GEMMA2
from .gemma3 import GEMMA3
from .llama import LLAMA
from .mistral import MISTRAL
from .phi3 import PHI3
from .qwen2 import QWEN2
from .qwen3 import QWEN3

_FAMILIES = (LLAMA, MISTRAL, QWEN2, QWEN3, GEMMA2, GEMMA3, PHI3)

FAMILIES: Mapping[str, Family] = MappingProxyType({family.name: family for family in _FAMILIES})
BY_ARCHITECTURE: Mapping[str, Family] = MappingProxyType({family.architecture: family for family in _FAMILIES})
BY_GGUF_ARCHITECTURE: Mapping[str, Family] = MappingProxyType(
    {family.gguf: family for family in _FAMILIES if family.gguf is not None}
)
