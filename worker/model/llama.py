"""Llama 1 to 3, and what follows its shape (SmolLM2, TinyLlama, Yi ...)."""

from .family import BiasRule, Family

LLAMA = Family(
    name="llama",
    architecture="LlamaForCausalLM",
    gguf="llama",
    qkv_bias=BiasRule.FLAG,
    output_bias=BiasRule.FLAG,
    mlp_bias=BiasRule.FLAG,
    gguf_interleaved=True,
)
