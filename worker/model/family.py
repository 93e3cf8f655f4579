"""What sets one family of decoders apart from another, as data."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class BiasRule(enum.Enum):
    """Whether a projection has a bias: by family, or as the checkpoint's flag says."""

    NEVER = "never"
    ALWAYS = "always"
    FLAG = "flag"


class WindowRule(enum.Enum):
    """How a checkpoint says that layers attend to a sliding window."""

    NONE = "none"
    IF_SET = "if_set"  # `sliding_window`, if it is a number
    IF_USED = "if_used"  # `sliding_window`, if `use_sliding_window` and a layer is past `max_window_layers`


@dataclass(frozen=True, slots=True)
class Family:
    """One family. `name` is the model_type of config.json and, but for Mistral, the architecture of GGUF.

    `qkv_bias` and `output_bias` follow the flag ``attention_bias``, `mlp_bias` the flag ``mlp_bias``. The defaults are
    what a config.json means that leaves the key out. `gguf_interleaved`: GGUF files hold the rows of q and k in the
    order of interleaved rotary pairs.
    """

    name: str
    architecture: str
    default_head_dim: int | None = None
    default_sliding_window: int | None = None
    qkv_bias: BiasRule = BiasRule.NEVER
    output_bias: BiasRule = BiasRule.NEVER
    mlp_bias: BiasRule = BiasRule.NEVER
    qk_norm: bool = False
    window: WindowRule = WindowRule.NONE
    gguf_interleaved: bool = False
