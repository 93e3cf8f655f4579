"""Qwen2 and Qwen2.5: biases on q, k and v, always."""

from .family import BiasRule, Family, WindowRule

QWEN2 = Family(
    name="qwen2",
    architecture="Qwen2ForCausalLM",
    gguf="qwen2",
    default_sliding_window=4096,
    qkv_bias=BiasRule.ALWAYS,
    window=WindowRule.IF_USED,
)
