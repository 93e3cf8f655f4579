"""The part of a config.json that is about text, also of models that see pictures as well."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from tercet.model_fields import Fields

_WITH_PICTURES = "Gemma3ForConditionalGeneration"
# What its text_config means that leaves them out, as those of most sizes do with some.
_DEFAULTS: Mapping[str, Any] = MappingProxyType(
    {
        "architectures": ["Gemma3ForCausalLM"],
        "vocab_size": 262_208,
        "hidden_size": 2304,
        "intermediate_size": 9216,
        "num_hidden_layers": 26,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
    }
)


def text_fields(values: Mapping[str, Any], origin: str) -> Fields:
    """The fields of a model of text: all of `values`, or those of the part of it that is one. `origin` is the file's
    path. Raises ModelError if there is no such part where one has to be."""
    architectures = values.get("architectures")
    if not isinstance(architectures, list) or _WITH_PICTURES not in architectures:
        return Fields(values, origin)
    text = values.get("text_config")
    if not isinstance(text, dict):
        raise Fields(values, origin).error("text_config", text, "the configuration of the part that reads text")
    # Said of all parts together.
    whole = {name: values[name] for name in ("quantization_config",) if name in values}
    return Fields({**_DEFAULTS, **{name: value for name, value in text.items() if value is not None}, **whole}, origin)
