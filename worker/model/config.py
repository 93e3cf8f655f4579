"""The shape of a model: every number that weights, cache and forward pass depend on. Knows no file and no tensor."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Literal

from tercet.errors import ConfigError, ModelError

from ..ops.dtypes import MAX_HEAD_DIM

RopeType = Literal["default", "linear", "llama3", "yarn"]
ROPE_TYPES: tuple[RopeType, ...] = ("default", "linear", "llama3", "yarn")

_HEAD_DIM_MULTIPLE = 8


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """Rotary positions. Fields that a `type` does not use keep their defaults.

    `attention_factor` multiplies cos and sin. `divisors`, one per frequency (D / 2), divide the frequencies last; GGUF
    files carry the llama3 scaling this way.
    """

    theta: float = 10000.0
    type: RopeType = "default"
    factor: float = 1.0
    original_max_position: int = 0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    attention_factor: float = 1.0
    divisors: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """A decoder of one of the supported families.

    `max_position` is the model's own limit in tokens, `max_model_len` the served one, never above it.
    `sliding_window`, in tokens, is set where some layer really has one; `served` keeps `max_model_len` within it, so
    that the window never cuts anything off.
    """

    family: str
    vocab_size: int  # V
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int  # H
    num_kv_heads: int  # G
    head_dim: int  # D
    rms_norm_eps: float
    max_position: int
    max_model_len: int
    rope: RopeConfig = RopeConfig()
    tie_word_embeddings: bool = False
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    sliding_window: int | None = None

    def __post_init__(self) -> None:
        """Raises ModelError for shapes that no layer can have or that the kernels do not support."""
        if self.num_heads % self.num_kv_heads:
            raise ModelError(
                f"model: {self.num_heads} query heads cannot be shared evenly by {self.num_kv_heads} KV heads; the "
                "number of query heads must be a multiple of the number of KV heads"
            )
        if self.head_dim % _HEAD_DIM_MULTIPLE or self.head_dim > MAX_HEAD_DIM:
            raise ModelError(
                f"model: a head size of {self.head_dim} is not supported; supported are multiples of "
                f"{_HEAD_DIM_MULTIPLE} up to {MAX_HEAD_DIM}"
            )
        if self.rope.divisors and len(self.rope.divisors) != self.head_dim // 2:
            raise ModelError(
                f"model: {len(self.rope.divisors)} rope frequency factors do not fit a head size of {self.head_dim}, "
                f"which needs {self.head_dim // 2}"
            )

    @property
    def attention_scale(self) -> float:
        """The factor of the scores before softmax."""
        return 1.0 / math.sqrt(self.head_dim)


def served(config: ModelConfig, max_model_len: int) -> ModelConfig:
    """`config` with the served length of the setting ``model.max_model_len``; 0 takes the model's own limit.

    Raises ConfigError if the model cannot reach the length, ModelError if a sliding window would come into force in it.
    """
    length = max_model_len or config.max_position
    if length > config.max_position:
        raise ConfigError(
            "model.max_model_len",
            f"is {length}, but the model was made for at most {config.max_position} tokens; "
            f"lower it to {config.max_position}, or to 0 for the model's own limit",
        )
    if config.sliding_window is not None and config.sliding_window < length:
        raise ModelError(
            f"sliding_window: the model attends to the last {config.sliding_window} tokens only, and sliding windows "
            f"shorter than the served length ({length}) are not supported; set model.max_model_len to at most "
            f"{config.sliding_window}"
        )
    return dataclasses.replace(config, max_model_len=length)
