"""What the core decides: messages to gateways and workers, and facts for the log, as plain values.

Turned into protos in service.py and link.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from tercet.errors import RequestError

from .cancel_trail import CancelTrail
from .events import EndReason, Sampling
from .standing import Standing


class ReleaseCause(IntEnum):
    """Why a sequence leaves a worker before its end; numbers as in the contract."""

    CANCEL = 1
    PREEMPT = 2
    SWAP = 3


# To a worker.


@dataclass(frozen=True, slots=True)
class NewSequence:
    """A sequence the worker does not have."""

    sequence_id: int
    token_ids: tuple[int, ...]
    max_length: int
    stop_token_ids: tuple[int, ...]
    sampling: Sampling
    prefix_salt: bytes
    # (sequence_id, seed) of those that begin where its prefill ends.
    forks: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Plan:
    """Steps to run. `chunks` are (sequence_id, tokens to compute in the first step)."""

    plan_seq: int
    num_steps: int
    chunks: tuple[tuple[int, int], ...]
    join: tuple[int, ...]
    revoke_through: int


@dataclass(frozen=True, slots=True)
class Release:
    """Sequences to drop before the next step."""

    sequence_ids: tuple[int, ...]
    cause: ReleaseCause


@dataclass(frozen=True, slots=True)
class Resume:
    """Sequences to bring back from host memory before the next step."""

    sequence_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Rest:
    """Sequences to let rest before the next step."""

    sequence_ids: tuple[int, ...]


WorkerCommand = NewSequence | Plan | Release | Resume | Rest


# To a gateway.


@dataclass(frozen=True, slots=True)
class PoolState:
    """The workers of one model and revision. Lengths are the largest of the live ones, 0 without any."""

    model: str
    model_revision: str
    workers_live: int
    max_model_len: int
    # What the KV cache has room for, within the context.
    max_sequence_len: int


@dataclass(frozen=True, slots=True)
class PoolUpdate:
    """What can be served now. `complete`: it is known of every worker that is dialled."""

    pools: tuple[PoolState, ...]
    complete: bool


@dataclass(frozen=True, slots=True)
class Accepted:
    """A request was admitted."""

    request_key: int
    sequence_ids: tuple[int, ...]
    queue_position: int
    # Seconds until the first token, by forecast.
    forecast_s: float | None = None
    # Its class and what that promises, in seconds: until the first token, and as the mean from one to the next.
    traffic_class: str = ""
    ttft_target_s: float | None = None
    gap_target_s: float | None = None


@dataclass(frozen=True, slots=True)
class Refused:
    """A request was refused."""

    request_key: int
    failure: RequestError


@dataclass(frozen=True, slots=True)
class Account:
    """What a sequence, or a whole request, held and got: tokens, blocks, microseconds from admission to its prefill and
    of the time of steps."""

    cached_tokens: int
    blocks_used: int
    blocks_freed: int
    queue_us: int
    # With those that came after a cancel.
    generated_tokens: int = 0
    gpu_us: int = 0
    # Of gpu_us, that on workers without a GPU.
    cpu_us: int = 0


@dataclass(frozen=True, slots=True)
class SequenceEnd:
    """The last word on a sequence."""

    sequence_id: int
    reason: EndReason
    stop_token_id: int
    failure: RequestError | None
    account: Account
    # Of a cancel, its own or its request's.
    trail: CancelTrail | None = None


@dataclass(frozen=True, slots=True)
class TokenBatch:
    """Tokens of one step for one gateway, then ends. `token_ids[i]` belongs to `sequence_ids[i]`."""

    sequence_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    ends: tuple[SequenceEnd, ...]
    # As in StepReported, in the order of the tokens.
    logprobs: tuple[tuple[int, bytes], ...] = ()
    prompt_logprobs: tuple[tuple[int, bytes], ...] = ()


@dataclass(frozen=True, slots=True)
class CancelDone:
    """A cancel has taken effect. `account` is None if the request had ended before or was unknown."""

    request_key: int
    account: Account | None = None
    trail: CancelTrail | None = None

    @property
    def found(self) -> bool:
        return self.account is not None


@dataclass(frozen=True, slots=True)
class Unknown:
    """Requests that a gateway takes for running, and that are not."""

    request_keys: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class CostsSoFar:
    """What sequences that have not ended have cost; their tokens and blocks are not counted."""

    accounts: tuple[tuple[int, Account], ...]


GatewayMessage = PoolUpdate | Accepted | Refused | TokenBatch | CancelDone | Unknown | Standing | CostsSoFar


# What the loop does with them.


@dataclass(frozen=True, slots=True)
class ToGateway:
    """Send a message on a gateway's stream; dropped if that stream is gone."""

    gateway: int
    message: GatewayMessage


@dataclass(frozen=True, slots=True)
class ToWorker:
    """Send a command on a worker's stream; dropped if that stream is gone."""

    link: int
    command: WorkerCommand


@dataclass(frozen=True, slots=True)
class DropWorker:
    """End a worker's stream: it does not keep the contract. The link dials again."""

    link: int
    why: str


# The event of a request that is refused, of which there may be many.
REQUEST_REFUSED = "request_refused"


@dataclass(frozen=True, slots=True)
class Log:
    """A fact for the log."""

    event: str
    fields: Mapping[str, Any]


Action = ToGateway | ToWorker | DropWorker | Log
