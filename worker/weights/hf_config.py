"""Reads config.json of a Hugging Face directory, of transformers 4 and 5 style. Knows no tensors."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path

from tercet.errors import ModelError
from tercet.model_fields import MAX_LAYERS, Fields
from tercet.model_length import FULL_ATTENTION, SLIDING_ATTENTION, hf_length
from tercet.text_config import text_fields

from ..model.config import ModelConfig
from ..model.families import BY_ARCHITECTURE, FAMILIES
from ..model.family import BiasRule, Family, Softcaps, WindowRule
from ..ops.activation import Activation
from .hf_rope import hf_local_rope, hf_rotary_dim, parse_hf_rope

CONFIG_FILE = "config.json"

# Where a file names its activation, and what it may say. Gemma has a hidden_act beside its own field: it is not read.
_ACTIVATIONS: Mapping[Activation, tuple[str, tuple[str, ...]]] = {
    "silu": ("hidden_act", ("silu", "swish")),
    "gelu_tanh": ("hidden_activation", ("gelu_pytorch_tanh", "gelu_new", "gelu_fast")),
}


def read_hf_config(directory: Path) -> ModelConfig:
    """The configuration in `directory`; serves the model's full length. Raises ModelError naming the field."""
    path = directory / CONFIG_FILE
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ModelError(f"model: cannot read {path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise ModelError(f"model: {path} is not valid JSON: {error}") from error
    if not isinstance(values, dict):
        raise ModelError(f"model: {path} must hold a JSON object, holds a {type(values).__name__}")
    return parse_hf_config(text_fields(values, str(path)))


def parse_hf_config(fields: Fields) -> ModelConfig:
    """The configuration in the fields of a config.json. Raises ModelError naming the field."""
    family = _family(fields)
    if fields.get("quantization_config") is not None:
        raise fields.error("quantization_config", fields.get("quantization_config"), "unquantized weights only")
    if fields.flag("use_bidirectional_attention"):
        raise fields.error("use_bidirectional_attention", True, "causal attention")
    _check_activation(fields, family)
    num_heads = fields.count("num_attention_heads")
    hidden_size = fields.count("hidden_size")
    num_layers = fields.count("num_hidden_layers", maximum=MAX_LAYERS)
    head_dim = fields.count("head_dim", family.default_head_dim or hidden_size // num_heads)
    rotary_dim = hf_rotary_dim(fields, family, head_dim)
    max_position = hf_length(fields)
    attention_bias = fields.flag("attention_bias")
    query_scalar = family.default_query_scalar
    if query_scalar is not None:
        query_scalar = fields.number("query_pre_attn_scalar", query_scalar)
    window, sliding_layers = _windows(fields, family, num_layers)
    softcaps = _softcaps(fields, family)
    return ModelConfig(
        family=family.name,
        vocab_size=fields.count("vocab_size"),
        hidden_size=hidden_size,
        intermediate_size=fields.count("intermediate_size"),
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=fields.count("num_key_value_heads", num_heads),
        head_dim=head_dim,
        rms_norm_eps=fields.number("rms_norm_eps", 1e-6),
        max_position=max_position,
        max_model_len=max_position,
        rope=parse_hf_rope(fields, family, rotary_dim),
        partial_rotary_dim=None if rotary_dim == head_dim else rotary_dim,
        tie_word_embeddings=fields.flag("tie_word_embeddings", family.default_tied),
        qkv_bias=_has_bias(family.qkv_bias, attention_bias),
        output_bias=_has_bias(family.output_bias, attention_bias),
        mlp_bias=_has_bias(family.mlp_bias, fields.flag("mlp_bias")),
        qk_norm=family.qk_norm,
        sliding_window=window,
        sliding_layers=sliding_layers,
        local_rope=hf_local_rope(fields, family),
        activation=family.activation,
        post_norms=family.post_norms,
        fused_projections=family.fused_projections,
        embedding_scale=math.sqrt(hidden_size) if family.scales_embedding else 1.0,
        query_scalar=query_scalar,
        attention_softcap=softcaps.attention,
        logit_softcap=softcaps.logits,
    )


def _family(fields: Fields) -> Family:
    architectures = fields.get("architectures")
    if architectures is None:
        name = fields.get("model_type")
        if not isinstance(name, str) or name not in FAMILIES:
            raise fields.error("model_type", name, ", ".join(FAMILIES))
        return FAMILIES[name]
    if isinstance(architectures, list):
        for name in architectures:
            if isinstance(name, str) and name in BY_ARCHITECTURE:
                return BY_ARCHITECTURE[name]
    raise fields.error("architectures", architectures, ", ".join(BY_ARCHITECTURE))


def _has_bias(rule: BiasRule, flag: bool) -> bool:
    return rule is BiasRule.ALWAYS or (rule is BiasRule.FLAG and flag)


def _check_activation(fields: Fields, family: Family) -> None:
    key, names = _ACTIVATIONS[family.activation]
    if fields.get(key) not in (None, *names):
        raise fields.error(key, fields.get(key), names[0])


def _softcaps(fields: Fields, family: Family) -> Softcaps:
    if family.softcaps is None:
        return Softcaps(attention=None, logits=None)
    return Softcaps(
        attention=_softcap(fields, "attn_logit_softcapping", family.softcaps.attention),
        logits=_softcap(fields, "final_logit_softcapping", family.softcaps.logits),
    )


def _softcap(fields: Fields, name: str, default: float | None) -> float | None:
    """null says that there is no cap; only an absent field means the default."""
    if fields.get(name) is None:
        return None if name in fields else default
    return fields.number(name)


def _windows(fields: Fields, family: Family, num_layers: int) -> tuple[int | None, tuple[bool, ...]]:
    """The window in tokens, and which layers have it; none and no flags if no layer has one."""
    layers = _sliding_layers(fields, family, num_layers)
    # null says that there is no window; only an absent field means the default.
    if not any(layers) or ("sliding_window" in fields and fields.get("sliding_window") is None):
        return None, ()
    if family.default_sliding_window is None and "sliding_window" not in fields:
        return None, ()
    return fields.count("sliding_window", family.default_sliding_window), layers


def _sliding_layers(fields: Fields, family: Family, num_layers: int) -> tuple[bool, ...]:
    if family.window is WindowRule.NONE:
        return ()
    if family.window is WindowRule.IF_SET:
        return (True,) * num_layers
    if family.window is WindowRule.IF_USED and not fields.flag("use_sliding_window"):
        return ()
    layer_types = fields.get("layer_types")
    if layer_types is not None:
        kinds = (FULL_ATTENTION, SLIDING_ATTENTION)
        is_known = isinstance(layer_types, list) and all(kind in kinds for kind in layer_types)
        if not is_known or len(layer_types) != num_layers:
            raise fields.error("layer_types", layer_types, f"{num_layers} times one of {', '.join(kinds)}")
        return tuple(kind == SLIDING_ATTENTION for kind in layer_types)
    if family.window is WindowRule.IF_USED:
        first = fields.count("max_window_layers", 28, minimum=0)
        return tuple(layer >= first for layer in range(num_layers))
    global_every = fields.count("sliding_window_pattern", family.global_every)
    return tuple((layer + 1) % global_every != 0 for layer in range(num_layers))
