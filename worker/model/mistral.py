"""Mistral: a Llama without biases whose first version attends to a sliding window. Its GGUF files say llama."""

from .family import Family, WindowRule

MISTRAL = Family(
    name="mistral",
    architecture="MistralForCausalLM",
    gguf=None,
    default_sliding_window=4096,
    window=WindowRule.IF_SET,
)
