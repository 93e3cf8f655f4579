"""Reads rotary positions from a config.json, of transformers 4 and 5 style. Knows nothing else of a model."""

from __future__ import annotations

from tercet.model_fields import Fields
from tercet.model_length import SLIDING_ATTENTION, hf_original_length, hf_rope, hf_stated_length

from ..model.config import RopeConfig
from ..model.family import Family
from ..model.rope import longrope_attention_factor, yarn_attention_factor


def hf_rotary_dim(fields: Fields, family: Family, head_dim: int) -> int:
    """How many elements of a head turn with its position. Raises ModelError if the family turns no part of a head."""
    name = "partial_rotary_factor"
    _, rope = hf_rope(fields)
    holder = rope if rope.get(name) is not None else fields
    part = holder.number(name, 1.0)
    rotary_dim = int(head_dim * part)
    if part == 1.0 or (family.partial_rotary and part < 1.0 and rotary_dim >= 2 and rotary_dim % 2 == 0):
        return rotary_dim
    supported = "parts of a head of an even size" if family.partial_rotary else "1.0"
    raise holder.error(name, holder.get(name), supported)


def parse_hf_rope(fields: Fields, family: Family, rotary_dim: int) -> RopeConfig:
    """The rotary positions in a config.json: where layers with a window have their own, those of the others.

    Raises ModelError naming the field.
    """
    kind, rope = hf_rope(fields)
    if kind not in family.rope_types:
        raise rope.error("rope_type", kind, ", ".join(family.rope_types))
    theta = rope.number("rope_theta", fields.number("rope_theta", family.default_rope_theta))
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
    if kind == "longrope":
        factor = rope.number("factor", hf_stated_length(fields) / original)
        return RopeConfig(
            theta=theta,
            type="longrope",
            original_max_position=original,
            attention_factor=rope.number("attention_factor", longrope_attention_factor(factor, original)),
            divisors=_divisors(rope, "short_factor", rotary_dim),
            long_divisors=_divisors(rope, "long_factor", rotary_dim),
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


def hf_local_rope(fields: Fields, family: Family) -> RopeConfig | None:
    """The rotary positions of layers with a window, where the family has such. Raises ModelError."""
    if family.default_local_theta is None:
        return None
    theta = fields.number("rope_local_base_freq", family.default_local_theta)
    parameters = fields.get("rope_parameters")
    local = parameters.get(SLIDING_ATTENTION) if isinstance(parameters, dict) else None
    if not isinstance(local, dict):
        return RopeConfig(theta=theta)
    rope = Fields(local, f"{SLIDING_ATTENTION} in rope_parameters of {fields.origin}")
    if rope.get("rope_type") not in (None, "default"):
        raise rope.error("rope_type", rope.get("rope_type"), "default")
    return RopeConfig(theta=rope.number("rope_theta", theta))


def _divisors(rope: Fields, name: str, rotary_dim: int) -> tuple[float, ...]:
    values = rope.get(name)
    if not isinstance(values, list) or len(values) != rotary_dim // 2:
        raise rope.error(name, values, f"{rotary_dim // 2} numbers above zero")
    numbers = Fields({f"{name}[{index}]": value for index, value in enumerate(values)}, rope.origin)
    return tuple(numbers.number(f"{name}[{index}]") for index in range(len(values)))


def _yarn_attention_factor(rope: Fields, factor: float) -> float:
    if rope.get("attention_factor") is not None:
        return rope.number("attention_factor")
    if rope.get("mscale") and rope.get("mscale_all_dim"):
        above = yarn_attention_factor(factor, rope.number("mscale"))
        return above / yarn_attention_factor(factor, rope.number("mscale_all_dim"))
    return yarn_attention_factor(factor)
