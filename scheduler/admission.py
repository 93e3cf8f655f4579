"""Says yes or no to a new request before any work is done for it. Pure; every no is a typed error."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from tercet import errors

from .credits import blocks_for
from .events import Submission
from .fleet import Fleet, Pool
from .traffic_class import CLASSES, DEFAULT_CLASS, TrafficClass

# A restarted worker is dialled at least once a second.
NO_WORKER_RETRY_SECONDS = 1.0
# No forecast yet: long enough not to hammer, short enough to find a gap.
QUEUE_RETRY_SECONDS = 1.0
# Names in a message that lists what is served.
MAX_MODELS_LISTED = 16
# Priorities go from minus to plus this.
MAX_PRIORITY = 100


# Sequences that may wait for each request that may: a request for n outputs is n sequences.
MAX_SEQUENCES_PER_REQUEST = 8


class AdmissionMode(Enum):
    """What becomes of a request whose forecast misses its target or its deadline."""

    # No forecast is made.
    OFF = "off"
    # It is accepted, and what would have become of it is noted.
    SHADOW = "shadow"
    ENFORCE = "enforce"


@dataclass(frozen=True, slots=True)
class QueueBounds:
    """Of each pool, and for new requests only: what was accepted once always finds its place again."""

    max_requests: int
    max_tokens: int

    @property
    def max_sequences(self) -> int:
        """Each costs memory, and time in every round that looks at all of them, however short its prompt is."""
        return MAX_SEQUENCES_PER_REQUEST * self.max_requests


def find_pool(submission: Submission, fleet: Fleet) -> Pool:
    """The pool that serves the request. Raises NoWorkerError, ModelNotFoundError, RevisionMismatchError."""
    of_model = [pool for pool in fleet.pools.values() if pool.model == submission.model]
    if not of_model and fleet.complete:
        served = ", ".join(fleet.models()[:MAX_MODELS_LISTED])
        raise errors.ModelNotFoundError(
            f"no worker serves model {submission.model!r}; served: {served}",
            metadata={"model": submission.model, "served": served},
        )
    live = [pool for pool in of_model if pool.live]
    if not live:
        raise errors.NoWorkerError(
            f"no live worker serves model {submission.model!r}",
            metadata={"model": submission.model},
            retry_after_s=NO_WORKER_RETRY_SECONDS,
        )
    for pool in live:
        if pool.model_revision == submission.model_revision:
            return pool
    raise errors.RevisionMismatchError(
        f"the gateway has revision {submission.model_revision!r} of model {submission.model!r},"
        f" the workers have {live[0].model_revision!r}",
        metadata={
            "model": submission.model,
            "gateway_revision": submission.model_revision,
            "worker_revision": live[0].model_revision,
        },
    )


def find_class(submission: Submission) -> TrafficClass:
    """The traffic class of the request. Raises InvalidFieldError for that or the priority."""
    if not -MAX_PRIORITY <= submission.priority <= MAX_PRIORITY:
        raise errors.InvalidFieldError(
            f"priority {submission.priority} is outside {-MAX_PRIORITY} to {MAX_PRIORITY}", field="priority"
        )
    if not submission.traffic_class:
        return DEFAULT_CLASS
    found = CLASSES.get(submission.traffic_class)
    if found is None:
        raise errors.InvalidFieldError(
            f"there is no traffic class {submission.traffic_class!r}; the classes are {', '.join(CLASSES)}",
            field="traffic_class",
        )
    return found


def check_sizes(submission: Submission, pool: Pool) -> None:
    """Whether some live worker could run the request alone.

    Raises InvalidFieldError, PromptTooLongError, KvNeverFitsError with the numbers in their metadata.
    """
    prompt, n = len(submission.prompt_token_ids), submission.n
    if prompt == 0:
        raise errors.InvalidFieldError("the prompt has no tokens", field="prompt_token_ids")
    if submission.max_tokens < 1:
        raise errors.InvalidFieldError("max_tokens must be at least 1", field="stop.max_tokens")
    if n < 1:
        raise errors.InvalidFieldError("n must be at least 1", field="sampling.n")
    live = pool.live
    vocab_size = min(worker.info.vocab_size for worker in live)
    if (largest := max(submission.prompt_token_ids)) >= vocab_size:
        raise errors.InvalidFieldError(
            f"token id {largest} is outside the vocabulary of {vocab_size}", field="prompt_token_ids"
        )
    length = prompt + submission.max_tokens
    if any(worker.can_ever_start(prompt, length, n) for worker in live):
        return
    limits = max((worker.limits for worker in live), key=lambda limits: limits.max_running)
    if n > limits.max_running:
        setting = "max_num_seqs" if limits.max_num_seqs == limits.max_running else "max_num_batched_tokens"
        raise errors.InvalidFieldError(
            f"n = {n} sequences must run at once; the largest worker runs {limits.max_running} (worker.{setting})",
            field="sampling.n",
        )
    live = [worker for worker in live if worker.limits.max_running >= n]
    numbers = {"prompt_tokens": str(prompt), "max_tokens": str(submission.max_tokens)}
    max_model_len = max(worker.info.max_model_len for worker in live)
    if length > max_model_len:
        raise errors.PromptTooLongError(
            f"prompt of {prompt} + max_tokens {submission.max_tokens} tokens exceed the context of {max_model_len}",
            field="stop.max_tokens" if prompt < max_model_len else "prompt_token_ids",
            metadata={**numbers, "max_model_len": str(max_model_len)},
        )
    largest_pool = max(live, key=lambda worker: worker.info.num_blocks * worker.info.block_size).info
    needed = blocks_for(length, largest_pool.block_size)
    what, field = f"prompt of {prompt} + max_tokens {submission.max_tokens} tokens", "stop.max_tokens"
    if not any(worker.can_ever_hold(prompt + 1) for worker in live):
        field = "prompt_token_ids"
    if any(worker.can_ever_hold(length) for worker in live):
        # One alone would fit.
        needed = blocks_for(prompt + 1, largest_pool.block_size) + n - 1
        what, field = f"prompt of {prompt} tokens and n = {n} sequences that go on from it", "sampling.n"
        numbers["n"] = str(n)
    raise errors.KvNeverFitsError(
        f"{what} need {needed} KV blocks; the largest worker has {largest_pool.num_blocks}",
        field=field,
        metadata={
            **numbers,
            "blocks_needed": str(needed),
            "blocks_total": str(largest_pool.num_blocks),
            "block_size": str(largest_pool.block_size),
        },
    )


def check_queue(submission: Submission, pool: Pool, bounds: QueueBounds) -> None:
    """Whether the pool has room for it. Raises QueueFullError. An empty queue takes a request of any size."""
    waiting = pool.waiting
    requests, sequences, tokens = waiting.num_requests, waiting.num_sequences, waiting.num_tokens
    fits = (
        requests < bounds.max_requests
        and sequences + submission.n <= bounds.max_sequences
        and tokens + len(submission.prompt_token_ids) <= bounds.max_tokens
    )
    if fits or not requests:
        return
    raise errors.QueueFullError(
        f"{requests} requests for {sequences} outputs with {tokens} tokens are waiting;"
        f" the bounds are {bounds.max_requests}, {bounds.max_sequences} and {bounds.max_tokens}",
        metadata={
            "requests_waiting": str(requests),
            "outputs_waiting": str(sequences),
            "tokens_waiting": str(tokens),
        },
        retry_after_s=QUEUE_RETRY_SECONDS,
    )
