"""What can happen to the scheduler: the inputs of the core, as plain values.

Made from protos in service.py and link.py; the core sees nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from tercet.errors import RequestError

from .tenant import NamedPlan


class CancelReason(IntEnum):
    """Why work is cancelled; numbers as in the contract."""

    UNSPECIFIED = 0
    CLIENT = 1
    DEADLINE = 2
    STOP_STRING = 3
    OPERATOR = 4
    SLOW_CONSUMER = 5
    LINK_LOST = 6
    SHUTDOWN = 7
    FAULT = 8
    ORPHAN = 9


class EndReason(IntEnum):
    """Why a sequence ended; numbers as in the contract."""

    UNSPECIFIED = 0
    STOP = 1
    LENGTH = 2
    CANCELLED = 3
    FAILED = 4


@dataclass(frozen=True, slots=True)
class Sampling:
    """How a worker chooses tokens; the scheduler only carries it."""

    temperature: float
    top_p: float
    top_k: int
    min_p: float
    seed: int
    # A tercet.mesh.v1.Penalties as it came, empty for none.
    penalties: bytes = b""
    # None: no logprobs.
    num_logprobs: int | None = None
    # Of the prompt: then a prefix cache is of no use. None: no logprobs.
    num_prompt_logprobs: int | None = None
    # A tercet.mesh.v1.Grammar as it came, empty for none.
    grammar: bytes = b""
    # Tokens to generate before a stop id may be chosen, as the penalties have it; and whether there is a grammar. Plan
    # logs hide penalties and grammars, and what is decided by them has to be decided again.
    min_tokens: int = 0
    has_grammar: bool = False


@dataclass(frozen=True, slots=True)
class Begun:
    """How far an output had come at another scheduler. What it had cost is 0 where nobody knows."""

    token_ids: tuple[int, ...]
    # Nothing more of it is wanted.
    ended: bool = False
    cached_tokens: int = 0
    queue_s: float = 0.0
    gpu_us: float = 0.0
    cpu_us: float = 0.0


@dataclass(frozen=True, slots=True)
class Submission:
    """A new request as a gateway sent it. `deadline_s` is the time left at arrival, None for ever."""

    request_key: int
    request_id: str
    model: str
    model_revision: str
    prompt_token_ids: tuple[int, ...]
    max_tokens: int
    stop_token_ids: tuple[int, ...]
    sampling: Sampling
    deadline_s: float | None
    prefix_salt: bytes
    # Sequences to generate; number i draws with seed sampling.seed + i.
    n: int = 1
    # Whether max_tokens is but what a worker has room for, since the client left it open.
    max_tokens_open: bool = False
    # Empty: the default class.
    traffic_class: str = ""
    # Lower is served earlier and preempted later.
    priority: int = 0
    # Empty: nobody keeps tenants.
    tenant: str = ""
    # By output, of a request that another scheduler had accepted; empty: it is new.
    begun: tuple[Begun, ...] = ()


@dataclass(frozen=True, slots=True)
class BlockCounts:
    """A worker's pool: total = free + cached + used."""

    free: int
    cached: int
    used: int


@dataclass(frozen=True, slots=True)
class WorkerInfo:
    """What a worker said of itself."""

    worker_id: str
    epoch: int
    model: str
    model_revision: str
    device: str
    dtype: str
    block_size: int
    num_blocks: int
    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    vocab_size: int
    # Blocks that host memory can take from preempted sequences, and nanoseconds to move one there or back.
    num_swap_blocks: int = 0
    swap_block_ns: int = 0


@dataclass(frozen=True, slots=True)
class PrefillProgress:
    """`num_computed` tokens are in the KV cache, `num_cached` of them from the prefix cache."""

    sequence_id: int
    num_computed: int
    num_cached: int


@dataclass(frozen=True, slots=True)
class Ended:
    """A sequence ended by itself on its worker."""

    sequence_id: int
    reason: EndReason
    stop_token_id: int
    failure: RequestError | None
    blocks_used: int
    blocks_freed: int


# `gateway` and `link` number streams, not peers: a peer that comes back has a new number, so nothing can be mistaken
# for news of its earlier life.


@dataclass(frozen=True, slots=True)
class GatewayAttached:
    """A gateway's stream is up."""

    gateway: int
    gateway_id: str


@dataclass(frozen=True, slots=True)
class GatewayLost:
    """A gateway's stream ended."""

    gateway: int


@dataclass(frozen=True, slots=True)
class TenantsChanged:
    """A gateway says what all tenants may do."""

    gateway: int
    revision: int
    plans: tuple[NamedPlan, ...]


@dataclass(frozen=True, slots=True)
class Submitted:
    """A gateway asks for a generation."""

    gateway: int
    submission: Submission


@dataclass(frozen=True, slots=True)
class CancelReceived:
    """A gateway asks to stop one."""

    gateway: int
    request_key: int
    reason: CancelReason


@dataclass(frozen=True, slots=True)
class SequenceStopped:
    """A gateway has all it wants of one sequence."""

    gateway: int
    sequence_id: int
    reason: CancelReason


@dataclass(frozen=True, slots=True)
class PauseReceived:
    """The reader of a request is behind."""

    gateway: int
    request_key: int


@dataclass(frozen=True, slots=True)
class UnpauseReceived:
    """The reader of a request has caught up."""

    gateway: int
    request_key: int


@dataclass(frozen=True, slots=True)
class AddressesChanged:
    """Where workers are looked for from now on: each address, or a name that has none yet, once."""

    addresses: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class WorkerAttached:
    """A worker said hello."""

    link: int
    address: str
    info: WorkerInfo


@dataclass(frozen=True, slots=True)
class WorkerLost:
    """A worker's stream ended."""

    link: int


@dataclass(frozen=True, slots=True)
class WorkerDraining:
    """A worker is told to stop: nothing new for it, and what can run elsewhere should."""

    link: int


@dataclass(frozen=True, slots=True)
class KvChanged:
    """A worker's prefix cache lost `removed` and then got `stored`; `reset`: forget what it had before. Keys of blocks
    as prefix_index.py makes them."""

    link: int
    reset: bool
    removed: tuple[int, ...]
    stored: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class StepReported:
    """A step ran. `token_ids[i]` belongs to `sequence_ids[i]`."""

    link: int
    plan_seq: int
    step: int
    sequence_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    prefills: tuple[PrefillProgress, ...]
    ended: tuple[Ended, ...]
    blocks: BlockCounts
    step_us: int = 0
    # By sequence, of those that ask: a tercet.mesh.v1.TokenLogprobs as it came, and PromptLogprobs.
    logprobs: tuple[tuple[int, bytes], ...] = ()
    prompt_logprobs: tuple[tuple[int, bytes], ...] = ()


@dataclass(frozen=True, slots=True)
class PlanEnded:
    """A plan ran out of steps or work, or was revoked."""

    link: int
    plan_seq: int
    steps_run: int
    revoked: bool
    blocks: BlockCounts
    step_us: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class SequenceReleased:
    """Answer to a release. `found` is False if the sequence had ended before; `swapped`: host memory has its blocks."""

    link: int
    sequence_id: int
    found: bool
    blocks_used: int
    blocks_freed: int
    blocks: BlockCounts
    swapped: bool = False


@dataclass(frozen=True, slots=True)
class SequenceRests:
    """Answer to a Rest: nothing of the sequence is on its way. `found` is False if it had ended before."""

    link: int
    sequence_id: int
    found: bool
    blocks: BlockCounts


@dataclass(frozen=True, slots=True)
class TimePassed:
    """A moment named by Core.wake_at has come."""


@dataclass(frozen=True, slots=True)
class DrainStarted:
    """Take no new requests."""


@dataclass(frozen=True, slots=True)
class DrainExpired:
    """End all that is left."""


Event = (
    GatewayAttached
    | GatewayLost
    | TenantsChanged
    | Submitted
    | CancelReceived
    | SequenceStopped
    | PauseReceived
    | UnpauseReceived
    | AddressesChanged
    | WorkerAttached
    | WorkerLost
    | WorkerDraining
    | KvChanged
    | StepReported
    | PlanEnded
    | SequenceReleased
    | SequenceRests
    | TimePassed
    | DrainStarted
    | DrainExpired
)
