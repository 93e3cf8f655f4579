"""Tables of rotary positions for every supported scaling. Knows no weights."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from .config import RopeConfig


def cos_sin_table(
    rope: RopeConfig, head_dim: int, length: int, device: torch.device, rotary_dim: int | None = None
) -> Tensor:
    """[P, D] float32 with P = `length` positions: cos of the D / 2 angles, then their sin. Behind the first
    `rotary_dim` / 2 of them (None: D / 2), cos is 1 and sin 0: those pairs stay as they are."""
    rotary_dim = rotary_dim or head_dim
    frequencies = inverse_frequencies(rope, rotary_dim, length)
    positions = torch.arange(length, dtype=torch.float32)
    angles = torch.outer(positions, frequencies)  # [P, rotary_dim/2]
    still = torch.ones(length, (head_dim - rotary_dim) // 2)
    cos, sin = angles.cos() * rope.attention_factor, angles.sin() * rope.attention_factor
    return torch.cat((cos, still, sin, 0.0 * still), dim=-1).to(device)


def inverse_frequencies(rope: RopeConfig, rotary_dim: int, length: int) -> Tensor:
    """[rotary_dim / 2] float32, radians per position, highest first, of a model that serves `length` tokens.

    In float32 from the start: models were trained with the rounding of it, and at a position of 100,000 a last-bit
    difference of a frequency is a visible angle.
    """
    exponents = torch.arange(0, rotary_dim, 2, dtype=torch.float32) / rotary_dim
    if rope.type == "longrope":
        # By the served length, not by that of each text: keys that are cached must not turn later.
        divisors = rope.long_divisors if length > rope.original_max_position else rope.divisors
        return 1.0 / (torch.tensor(divisors, dtype=torch.float32) * rope.theta**exponents)
    scaled = _SCALINGS[rope.type](rope, 1.0 / rope.theta**exponents)
    if rope.divisors:
        scaled = scaled / torch.tensor(rope.divisors, dtype=torch.float32)
    return scaled


def yarn_attention_factor(factor: float, scale: float = 1.0) -> float:
    """What YaRN multiplies cos and sin by when positions are stretched by `factor`."""
    return 0.1 * scale * math.log(factor) + 1.0 if factor > 1.0 else 1.0


def longrope_attention_factor(factor: float, original: int) -> float:
    """What longrope multiplies cos and sin by when `original` positions become `factor` times as many."""
    return math.sqrt(1.0 + math.log(factor) / math.log(original)) if factor > 1.0 and original > 1 else 1.0


def _default(_rope: RopeConfig, frequencies: Tensor) -> Tensor:
    return frequencies


def _linear(rope: RopeConfig, frequencies: Tensor) -> Tensor:
    return frequencies / rope.factor


def _llama3(rope: RopeConfig, frequencies: Tensor) -> Tensor:
    """Long waves are stretched, short ones kept, those between blended by how often they turn in the old context."""
    turns = rope.original_max_position * frequencies / (2 * math.pi)
    kept = ((turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)).clamp(0.0, 1.0)
    return torch.lerp(frequencies / rope.factor, frequencies, kept)


def _yarn(rope: RopeConfig, frequencies: Tensor) -> Tensor:
    """As llama3, but blended over the index of the frequency, between those that turn `beta_fast` and `beta_slow`."""
    count = len(frequencies)

    def index_of(turns: float) -> float:
        ratio = rope.original_max_position / (turns * 2 * math.pi)
        return count * math.log(ratio) / math.log(rope.theta)

    low, high = index_of(rope.beta_fast), index_of(rope.beta_slow)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    # The upper bound is that of the reference, twice what the index can be.
    low, high = max(low, 0), min(high, 2 * count - 1)
    if low == high:
        high += 0.001
    stretched = ((torch.arange(count, dtype=torch.float32) - low) / (high - low)).clamp(0.0, 1.0)
    return frequencies * (1 - stretched) + frequencies / rope.factor * stretched


_SCALINGS: Mapping[str, Callable[[RopeConfig, Tensor], Tensor]] = {
    "default": _default,
    "linear": _linear,
    "llama3": _llama3,
    "yarn": _yarn,
}
