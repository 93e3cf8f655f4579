"""How many tokens a model was made for. Gateway and worker both ask here, so that neither serves more or less."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from tercet.model_fields import Fields

# What a config.json of that model_type means that leaves max_position_embeddings out.
_DEFAULTS: Mapping[str, int] = MappingProxyType(
    {
        "llama": 2048,
        "mistral": 131072,
        "qwen2": 32768,
        "qwen3": 32768,
        "gemma2": 8192,
        "gemma3": 131072,
        "gemma3_text": 131072,
        "phi3": 4096,
    }
)
_ARCHITECTURE_SUFFIX = "ForCausalLM"
# What transformers calls the two kinds of layers.
FULL_ATTENTION, SLIDING_ATTENTION = "full_attention", "sliding_attention"


def hf_length(fields: Fields) -> int:
    """The length in tokens of the model with that config.json. Raises ModelError naming the field."""
    stated = hf_stated_length(fields)
    kind, rope = hf_rope(fields)
    if kind != "yarn":
        return stated
    original = hf_original_length(fields)
    return _yarn_length(stated, rope.number("factor", stated / original), original)


def hf_stated_length(fields: Fields) -> int:
    """What a config.json calls its limit, before YaRN stretches it, in tokens. Raises ModelError."""
    return fields.count("max_position_embeddings", _default(fields))


def hf_original_length(fields: Fields) -> int:
    """The length in tokens that positions had before they were stretched, in a config.json. Raises ModelError."""
    name, (_, rope) = "original_max_position_embeddings", hf_rope(fields)
    return fields.count(name, rope.count(name, hf_stated_length(fields)))


def hf_rope(fields: Fields) -> tuple[Any, Fields]:
    """The type of rotary embedding and its fields: `rope_parameters` (transformers 5) or `rope_scaling` (4).

    Where layers with a window have an embedding of their own, that of the others. Raises ModelError if it is neither
    one object for all layers nor one for each of these two kinds.
    """
    name = "rope_parameters" if fields.get("rope_parameters") is not None else "rope_scaling"
    values: Any = fields.get(name)
    if values is None:
        values = {}
    if isinstance(values, dict) and set(values) == {FULL_ATTENTION, SLIDING_ATTENTION}:
        values, name = values[FULL_ATTENTION], f"{FULL_ATTENTION} in {name}"
    if not isinstance(values, dict) or any(isinstance(value, dict) for value in values.values()):
        raise fields.error(
            name, values, "one object for all layers, with rope_type, rope_theta and the type's factors, or one each "
            f"for {FULL_ATTENTION} and {SLIDING_ATTENTION}",
        )  # fmt: skip
    rope = Fields(values, f"{name} of {fields.origin}")
    kind = rope.get("rope_type") or rope.get("type") or "default"
    # Names that Phi-3 had for it before it had one.
    return ("longrope" if kind == "su" else kind), rope


def gguf_length(fields: Fields) -> int:
    """The length in tokens of a GGUF model, from the keys of its architecture without their prefix.

    Raises ModelError naming the key.
    """
    stated = fields.count("context_length")
    if fields.get("rope.scaling.type") != "yarn":
        return stated
    original = fields.count("rope.scaling.original_context_length", stated)
    return _yarn_length(stated, fields.number("rope.scaling.factor", 1.0), original)


def _yarn_length(stated: int, factor: float, original: int) -> int:
    # Qwen's model cards add YaRN to a config whose own limit stays that of before.
    return max(stated, int(factor * original))


def _default(fields: Fields) -> int | None:
    architectures = fields.get("architectures")
    names = architectures if isinstance(architectures, list) else [fields.get("model_type")]
    kinds = [name.removesuffix(_ARCHITECTURE_SUFFIX).lower() for name in names if isinstance(name, str)]
    return next((_DEFAULTS[kind] for kind in kinds if kind in _DEFAULTS), None)
