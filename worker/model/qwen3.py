"""Qwen3: RMSNorm on every query and key head before rope, and a head size of its own."""

from .family import BiasRule, Family, WindowRule

QWEN3 = Family(
    name="qwen3",
    architecture="Qwen3ForCausalLM",
    gguf="qwen3",
    default_head_dim=128,
    default_sliding_window=4096,
    qkv_bias=BiasRule.FLAG,
    output_bias=BiasRule.FLAG,
    qk_norm=True,
    window=WindowRule.IF_USED,
)
