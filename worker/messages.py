"""What the executor is told and what it answers: the worker's side of tercet.mesh.v1 as plain values."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from tercet.grammar.grammar import Grammar


class EndReason(enum.Enum):
    """Why a sequence ended by itself."""

    STOP = "stop"
    LENGTH = "length"
    FAILED = "failed"


class ReleaseCause(enum.Enum):
    """Why a sequence is released before its end."""

    CANCEL = "cancel"
    PREEMPT = "preempt"
    SWAP = "swap"


@dataclass(frozen=True, slots=True)
class Penalties:
    """What is done to logits before a token is chosen. `prompt_tokens` of a sequence's tokens are its prompt; before
    `min_tokens` behind them, no stop id is chosen, and none of `bad` comes behind them. As for the rest, see
    worker.ops.penalties.PenaltyRow."""

    prompt_tokens: int
    repetition: float = 1.0
    frequency: float = 0.0
    presence: float = 0.0
    bias: tuple[tuple[int, float], ...] = ()
    allowed_ids: tuple[int, ...] | None = None
    min_tokens: int = 0
    bad: tuple[tuple[int, ...], ...] = ()


@dataclass(frozen=True, slots=True)
class Structure:
    """What the text behind `prompt_tokens` of a sequence's tokens has to be. Where its grammar is complete `end_ids`
    may come, and nowhere else."""

    grammar: Grammar
    prompt_tokens: int
    end_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Sampling:
    """How to choose tokens; temperature 0 is greedy, top_k 0, top_p 1 and min_p 0 are off."""

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int = 0
    penalties: Penalties | None = None
    # Logprobs of each token, and of so many of the likeliest ones; None: no logprobs.
    num_logprobs: int | None = None
    # The same of the tokens it comes with, from the second on.
    num_prompt_logprobs: int | None = None
    structure: Structure | None = None


@dataclass(frozen=True, slots=True)
class Fork:
    """A sequence that begins where another one's prefill ends, and differs from it in its seed alone."""

    sequence_id: int
    seed: int


@dataclass(frozen=True, slots=True)
class NewSequence:
    """A sequence, whole. All of `token_ids` has to be in the KV cache before the next token is chosen.

    `problem`, if set, is why it cannot be run; it ends FAILED with the next step.
    """

    sequence_id: int
    token_ids: tuple[int, ...]
    max_length: int
    stop_token_ids: frozenset[int] = frozenset()
    sampling: Sampling = field(default_factory=Sampling)
    prefix_salt: bytes = b""
    problem: str | None = None
    forks: tuple[Fork, ...] = ()


@dataclass(frozen=True, slots=True)
class Chunk:
    """Compute at most `num_tokens` of a sequence's missing tokens."""

    sequence_id: int
    num_tokens: int


@dataclass(frozen=True, slots=True)
class Plan:
    """`num_steps` steps, prefill `chunks` in the first; `join` decode from when their prefill is complete.

    `revoke_through`: end every unfinished plan up to that number at the next step boundary; 0 means run after them.
    """

    plan_seq: int
    num_steps: int
    chunks: tuple[Chunk, ...] = ()
    join: tuple[int, ...] = ()
    revoke_through: int = 0

    @property
    def goes_on(self) -> bool:
        """Whether it changes nothing of what decodes: its steps are more of the same."""
        return not (self.chunks or self.join)


@dataclass(frozen=True, slots=True)
class Release:
    """Drop sequences before the next step and free their blocks."""

    sequence_ids: tuple[int, ...]
    cause: ReleaseCause


@dataclass(frozen=True, slots=True)
class Resume:
    """Bring sequences back from host memory before the next step."""

    sequence_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Rest:
    """Let sequences stop to decode before the next step, until a plan that comes later joins them."""

    sequence_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Attach:
    """A scheduler arrived: forget all sequences and plans, call `obeyed`, and send events to `emit` from now on."""

    emit: Callable[[Event], None]
    obeyed: Callable[[], None] = lambda: None


@dataclass(frozen=True, slots=True)
class Detach:
    """The scheduler behind `emit` left. Does nothing if another one has attached since."""

    emit: Callable[[Event], None]


@dataclass(frozen=True, slots=True)
class Shutdown:
    """End the executor's thread."""


@dataclass(frozen=True, slots=True)
class Masked:
    """Masks have come that no step waited for: look who can take part in steps now."""


Command = NewSequence | Plan | Release | Resume | Rest | Attach | Detach | Shutdown | Masked


@dataclass(frozen=True, slots=True)
class BlockCounts:
    """The pool: total = free + cached + used."""

    free: int
    cached: int
    used: int

    def without(self, num_blocks: int) -> BlockCounts:
        """As if so many of the used ones were free."""
        return BlockCounts(self.free + num_blocks, self.cached, self.used - num_blocks)


@dataclass(frozen=True, slots=True)
class PrefillProgress:
    """Of a sequence's token_ids, how many are in the KV cache, and how many of those came from the prefix cache."""

    sequence_id: int
    num_computed: int
    num_cached: int


@dataclass(frozen=True, slots=True)
class Failure:
    """A typed error of one sequence; `reason` is one of tercet.errors."""

    reason: str
    message: str
    metadata: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Ended:
    """A sequence ended; its blocks are free. `blocks_used` are those it held and no living sibling holds."""

    sequence_id: int
    reason: EndReason
    blocks_used: int
    blocks_freed: int
    stop_token_id: int = 0
    failure: Failure | None = None


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Of a token, and columns of the likeliest ones with theirs, the likeliest first."""

    logprob: float
    top_ids: tuple[int, ...]
    top_logprobs: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class PromptLogprobs:
    """Of tokens of a prompt, of which `first` come before: of themselves, and columns of the likeliest ones at each
    place, as many at one as at the others."""

    sequence_id: int
    first: int
    logprobs: tuple[float, ...]
    top_ids: tuple[int, ...]
    top_logprobs: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class StepResult:
    """What a step produced: columns of sequence ids and their tokens, prefill progress, ends, the pool, time in us."""

    plan_seq: int
    step: int
    sequence_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    prefills: tuple[PrefillProgress, ...]
    ended: tuple[Ended, ...]
    blocks: BlockCounts
    step_us: int
    # By sequence id, of those that want some.
    logprobs: tuple[tuple[int, TokenLogprobs], ...] = ()
    prompt_logprobs: tuple[PromptLogprobs, ...] = ()


@dataclass(frozen=True, slots=True)
class PlanDone:
    """A plan ended: it ran out of steps or of work, or was revoked."""

    plan_seq: int
    steps_run: int
    revoked: bool
    blocks: BlockCounts
    step_us: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Released:
    """The answer to Release for one id; `found` is False if the worker did not have it.

    `blocks_used` are as in Ended, or all it held if it was swapped out.
    """

    sequence_id: int
    cause: ReleaseCause
    found: bool
    blocks_used: int
    blocks_freed: int
    blocks: BlockCounts
    swapped: bool = False


@dataclass(frozen=True, slots=True)
class Resting:
    """The answer to Rest for one id; `found` is False if the worker did not have it."""

    sequence_id: int
    found: bool
    blocks: BlockCounts


@dataclass(frozen=True, slots=True)
class KvEvents:
    """Keys (uint64) of blocks that the prefix cache lost and then got; `reset`: these are all there are."""

    reset: bool
    removed: tuple[int, ...]
    stored: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Draining:
    """The worker is told to stop."""


Event = StepResult | PlanDone | Released | Resting | KvEvents | Draining
