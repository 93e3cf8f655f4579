"""The shape of a model: every number that weights, cache and forward pass depend on. Knows no file and no tensor."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Literal

from tercet.errors import ConfigError, ModelError

from ..ops.activation import Activation
from ..ops.dtypes import MAX_HEAD_DIM

RopeType = Literal["default", "linear", "llama3", "yarn", "longrope"]
ROPE_TYPES: tuple[RopeType, ...] = ("default", "linear", "llama3", "yarn", "longrope")

_HEAD_DIM_MULTIPLE = 8


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """Rotary positions. Fields that a `type` does not use keep their defaults.

    `attention_factor` multiplies cos and sin. `divisors`, one per frequency (half the rotary dim), divide the
    frequencies last; GGUF files carry the llama3 scaling this way. With longrope they are those of a served length up
    to `original_max_position`, and `long_divisors` those of a longer one.
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
    long_divisors: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """A decoder of one of the supported families.

    `max_position` is the model's own limit in tokens, `max_model_len` the served one, never above it.
    In a layer of `sliding_layers`, one flag per layer or none at all, a token sees itself and the `sliding_window` - 1
    tokens before it, at positions of `local_rope` if that is set.
    Of each head the first `partial_rotary_dim` elements turn with the position, all if that is None.
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
    partial_rotary_dim: int | None = None
    tie_word_embeddings: bool = False
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    sliding_window: int | None = None
    sliding_layers: tuple[bool, ...] = ()
    local_rope: RopeConfig | None = None
    activation: Activation = "silu"
    # Norms behind attention and MLP, before what they give is added to the residual.
    post_norms: bool = False
    # q, k and v are one tensor of the checkpoint, gate and up another.
    fused_projections: bool = False
    embedding_scale: float = 1.0
    # What scores are divided by the root of, in place of D.
    query_scalar: float | None = None
    # x becomes cap * tanh(x / cap): scores before softmax, logits before sampling.
    attention_softcap: float | None = None
    logit_softcap: float | None = None

    def __post_init__(self) -> None:
        """Raises ModelError for shapes that no layer can have or that the kernels do not support."""
        assert len(self.sliding_layers) in (0, self.num_layers)
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
        for divisors in (self.rope.divisors, self.rope.long_divisors):
            if divisors and len(divisors) != self.rotary_dim // 2:
                raise ModelError(
                    f"model: {len(divisors)} rope frequency factors do not fit a head of which {self.rotary_dim} "
                    f"elements turn, which needs {self.rotary_dim // 2}"
                )

    @property
    def rotary_dim(self) -> int:
        """Elements of a head that turn with its position."""
        return self.partial_rotary_dim or self.head_dim

    @property
    def attention_scale(self) -> float:
        """The factor of the scores before softmax."""
        return 1.0 / math.sqrt(self.query_scalar or self.head_dim)

    @property
    def windows(self) -> tuple[int | None, ...]:
        """For each layer how many tokens its queries see, their own included; None where that cuts nothing off."""
        if self.sliding_window is None or self.sliding_window >= self.max_model_len or not self.sliding_layers:
            return (None,) * self.num_layers
        return tuple(self.sliding_window if slides else None for slides in self.sliding_layers)


def served(config: ModelConfig, max_model_len: int) -> ModelConfig:
    """`config` with the served length of the setting ``model.max_model_len``; 0 takes the model's own limit.

    Raises ConfigError if the model cannot reach the length.
    """
    length = max_model_len or config.max_position
    if length > config.max_position:
        raise ConfigError(
            "model.max_model_len",
            f"is {length}, but the model was made for at most {config.max_position} tokens; "
            f"lower it to {config.max_position}, or to 0 for the model's own limit",
        )
    return dataclasses.replace(config, max_model_len=length)
