"""A sequence on a simulated worker."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..actions import NewSequence


@dataclass(slots=True, eq=False)
class SimulatedSequence:
    """`computed` of `tokens` are in `blocks`. Until it has its first token, `forks` wait for the end of its prefill."""

    new: NewSequence
    tokens: list[int]
    # (sequence_id, seed)
    forks: list[tuple[int, int]] = field(default_factory=list)
    blocks: list[int] = field(default_factory=list)
    computed: int = 0
    cached: int = 0
    # Whether the prefix cache has been asked.
    matched: bool = False
    # Its last block may be shared with others that were forked where it was.
    forked: bool = False
    # Name of its last published block, or of its salt.
    chain: bytes = b""

    @property
    def prefilled(self) -> bool:
        return self.computed >= len(self.new.token_ids)


@dataclass(frozen=True, slots=True)
class SwappedSequence:
    """A sequence in host memory: `num_blocks` blocks there, with `contents` if the pool keeps them."""

    sequence: SimulatedSequence
    num_blocks: int
    contents: tuple[tuple[int, ...], ...]
