"""Gemma 3, text: Gemma 2 with normed heads for caps, and five layers with a window for each that sees all."""

from .family import BiasRule, Family, Softcaps, WindowRule

GEMMA3 = Family(
    name="gemma3_text",
    architecture="Gemma3ForCausalLM",
    gguf="gemma3",
    default_head_dim=256,
    default_sliding_window=4096,
    default_rope_theta=1e6,
    default_tied=True,
    qkv_bias=BiasRule.FLAG,
    output_bias=BiasRule.FLAG,
    qk_norm=True,
    window=WindowRule.PATTERN,
    activation="gelu_tanh",
    post_norms=True,
    norms_from_zero=True,
    scales_embedding=True,
    default_query_scalar=256.0,
    gguf_hidden_scalar_layers=62,
    softcaps=Softcaps(attention=None, logits=None),
    global_every=6,
    default_local_theta=10000.0,
)
