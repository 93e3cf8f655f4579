"""What sets one family of decoders apart from another, as data."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from ..ops.activation import Activation
from .config import ROPE_TYPES, RopeType


class BiasRule(enum.Enum):
    """Whether a projection has a bias: by family, or as the checkpoint's flag says."""

    NEVER = "never"
    ALWAYS = "always"
    FLAG = "flag"


class WindowRule(enum.Enum):
    """How a checkpoint says that layers attend to a sliding window."""

    NONE = "none"
    IF_SET = "if_set"  # `sliding_window`, if it is a number, in every layer
    IF_USED = "if_used"  # `sliding_window`, if `use_sliding_window`, in `layer_types` or past `max_window_layers`
    PATTERN = "pattern"  # `sliding_window` in `layer_types`, or in all but every `global_every`-th layer


@dataclass(frozen=True, slots=True)
class Softcaps:
    """Caps of attention scores and of logits that a checkpoint means which leaves them out; None: it has none."""

    attention: float | None
    logits: float | None


@dataclass(frozen=True, slots=True)
class Family:
    """One family. `name` is the model_type of config.json, `gguf` the architecture that GGUF files of it state, if it
    has one of its own.

    `qkv_bias` and `output_bias` follow the flag ``attention_bias``, `mlp_bias` the flag ``mlp_bias``. The defaults are
    what a config.json means that leaves the key out. `gguf_interleaved`: GGUF files hold the rows of q and k in the
    order of interleaved rotary pairs.
    """

    name: str
    architecture: str
    gguf: str | None
    default_head_dim: int | None = None
    default_sliding_window: int | None = None
    default_rope_theta: float = 10000.0
    rope_types: tuple[RopeType, ...] = ROPE_TYPES
    default_tied: bool = False
    qkv_bias: BiasRule = BiasRule.NEVER
    output_bias: BiasRule = BiasRule.NEVER
    mlp_bias: BiasRule = BiasRule.NEVER
    qk_norm: bool = False
    window: WindowRule = WindowRule.NONE
    gguf_interleaved: bool = False
    # Checkpoints may say that a part of each head turns with its position.
    partial_rotary: bool = False
    activation: Activation = "silu"
    fused_projections: bool = False
    post_norms: bool = False
    # Safetensors hold what norms lack to one. GGUF files hold the sum.
    norms_from_zero: bool = False
    # Embeddings are multiplied by the root of the hidden size.
    scales_embedding: bool = False
    # `query_pre_attn_scalar` takes the place of the head size; this is its default.
    default_query_scalar: float | None = None
    # Layers of the model with this many take hidden size / heads in the place of the head size. GGUF does not say so.
    gguf_hidden_scalar_layers: int | None = None
    # None: the family knows no caps.
    softcaps: Softcaps | None = None
    global_every: int = 1
    # Layers with a window have rotary positions of their own, of this base, without scaling.
    default_local_theta: float | None = None
