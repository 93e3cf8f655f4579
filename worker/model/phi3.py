"""Phi-3: a Llama whose checkpoints hold q, k and v in one tensor, gate and up in another; longrope where it is long."""

from .family import Family, WindowRule

PHI3 = Family(
    name="phi3",
    architecture="Phi3ForCausalLM",
    gguf="phi3",
    # What old files of it call yarn is another thing.
    rope_types=("default", "longrope"),
    window=WindowRule.IF_SET,
    fused_projections=True,
)
