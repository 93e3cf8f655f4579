"""Reads config.json of a Hugging Face directory, of transformers 4 and 5 style. Knows no tensors."""

from __future__ import annotations

import json
from pathlib import Path

from tercet.errors import ModelError
from tercet.model_fields import MAX_LAYERS, Fields
from tercet.model_length import hf_length, hf_original_length, hf_rope, hf_stated_length

from ..model.config import ROPE_TYPES, ModelConfig, RopeConfig
from ..model.families import BY_ARCHITECTURE, FAMILIES
from ..model.family import BiasRule, Family, WindowRule
from ..model.rope import yarn_attention_factor

CONFIG_FILE = "config.json"


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
    return parse_hf_config(Fields(values, str(path)))


def parse_hf_config(fields: Fields) -> ModelConfig:
    """The configuration in the fields of a config.json. Raises ModelError naming the field."""
    family = _family(fields)
    if fields.get("quantization_config") is not None:
        raise fields.error("quantization_config", fields.get("quantization_config"), "unquantized weights only")
    if fields.get("hidden_act") not in (None, "silu", "swish"):
        raise fields.error("hidden_act", fields.get("hidden_act"), "silu")
    num_heads = fields.count("num_attention_heads")
    hidden_size = fields.count("hidden_size")
    num_layers = fields.count("num_hidden_layers", maximum=MAX_LAYERS)
    head_dim = fields.count("head_dim", family.default_head_dim or hidden_size // num_heads)
    max_position = hf_length(fields)
    attention_bias = fields.flag("attention_bias")
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
        rope=_rope(fields),
        tie_word_embeddings=fields.flag("tie_word_embeddings"),
        qkv_bias=_has_bias(family.qkv_bias, attention_bias),
        output_bias=_has_bias(family.output_bias, attention_bias),
        mlp_bias=_has_bias(family.mlp_bias, fields.flag("mlp_bias")),
        qk_norm=family.qk_norm,
        sliding_window=_sliding_window(fields, family, num_layers),
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


def _sliding_window(fields: Fields, family: Family, num_layers: int) -> int | None:
    """The window in tokens if any layer has one."""
    if family.window is WindowRule.NONE:
        return None
    layer_types = fields.get("layer_types")
    if family.window is WindowRule.IF_USED:
        if not fields.flag("use_sliding_window"):
            return None
        if layer_types is None and fields.count("max_window_layers", 28, minimum=0) >= num_layers:
            return None
        if isinstance(layer_types, list) and "sliding_attention" not in layer_types:
            return None
    # For a Mistral, null says that there is no window; only an absent field means the default.
    if "sliding_window" in fields and fields.get("sliding_window") is None:
        return None
    return fields.count("sliding_window", family.default_sliding_window)


def _rope(fields: Fields) -> RopeConfig:
    kind, rope = hf_rope(fields)
    if kind not in ROPE_TYPES:
        raise rope.error("rope_type", kind, ", ".join(ROPE_TYPES))
    for holder in (fields, rope):
        if holder.number("partial_rotary_factor", 1.0) != 1.0:
            raise holder.error("partial_rotary_factor", holder.get("partial_rotary_factor"), "1.0")
    theta = rope.number("rope_theta", fields.number("rope_theta", 10000.0))
    if kind == "default":
        return RopeConfig(theta=theta)
    if kind == "linear":
        return RopeConfig(theta=theta, type="linear", factor=rope.number("factor"))
    original = hf_original_length(fields)
    if kind == "llama3":
        low, high = rope.number("low_freq_factor"), rope.number("high_freq_factor")
        if low >= high:
            raise rope.error("high_freq_factor", high, f"numbers above low_freq_factor, which is {low}")
        return RopeConfig(
            theta=theta,
            type="llama3",
            factor=rope.number("factor"),
            original_max_position=original,
            low_freq_factor=low,
            high_freq_factor=high,
        )
    factor = rope.number("factor", hf_stated_length(fields) / original)
    return RopeConfig(
        theta=theta,
        type="yarn",
        factor=factor,
        original_max_position=original,
        beta_fast=rope.number("beta_fast", 32.0),
        beta_slow=rope.number("beta_slow", 1.0),
        truncate=rope.flag("truncate", True),
        attention_factor=_yarn_attention_factor(rope, factor),
    )


def _yarn_attention_factor(rope: Fields, factor: float) -> float:
    if rope.get("attention_factor") is not None:
        return rope.number("attention_factor")
    if rope.get("mscale") and rope.get("mscale_all_dim"):
        above = yarn_attention_factor(factor, rope.number("mscale"))
        return above / yarn_attention_factor(factor, rope.number("mscale_all_dim"))
    return yarn_attention_factor(factor)
