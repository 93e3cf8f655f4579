"""Gemma 2: norms before and behind each branch, GeGLU, capped scores and logits, a window in every other layer."""

from .family import BiasRule, Family, Softcaps, WindowRule

GEMMA2 = Family(
    name="gemma2",
    architecture="Gemma2ForCausalLM",
    gguf="gemma2",
    default_head_dim=256,
    default_sliding_window=4096,
    default_tied=True,
    qkv_bias=BiasRule.FLAG,
    output_bias=BiasRule.FLAG,
    window=WindowRule.PATTERN,
    activation="gelu_tanh",
    post_norms=True,
    norms_from_zero=True,
    scales_embedding=True,
    default_query_scalar=256.0,
    gguf_hidden_scalar_layers=46,
    softcaps=Softcaps(attention=50.0, logits=30.0),
    global_every=2,
)
