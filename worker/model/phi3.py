"""Phi-3 and 4: a Llama whose checkpoints hold q, k and v in one tensor, gate and up in another; longrope where it is
long, and of small ones a part of each head that does not turn."""

from .family import Family, WindowRule

PHI3 = Family(
    name="phi3",
    architecture="Phi3ForCausalLM",
    gguf="phi3",
    # What old files of it call yarn is another thing.
    rope_types=("default", "longrope"),
    partial_rotary=True,
    window=WindowRule.IF_SET,
    fused_projections=True,
)
