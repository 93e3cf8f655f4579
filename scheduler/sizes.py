"""What can be served at all: the sizes of a request against its tenant's plan and the workers there are. Pure."""

from __future__ import annotations

from dataclasses import replace

from tercet import errors
from tercet.tenants.plan import most_at_once

from .credits import blocks_for
from .events import Submission
from .kv_shares import granted_tokens
from .pool import Pool
from .tenant import NamedPlan
from .worker import Worker


def check_sizes(submission: Submission, pool: Pool, plan: NamedPlan) -> None:
    """Whether the tenant's plan lets a request of that size be, and some live worker could run it alone.

    Raises InvalidFieldError, PromptTooLongError, KvNeverFitsError with the numbers in their metadata.
    """
    check_fields(submission)
    _check_context(submission, plan.max_context, "the plan's max_context", "max_context")
    _check_workers(submission, pool)
    if plan.kv_share:
        _check_share(submission, pool, plan.kv_share)


def check_fields(submission: Submission) -> None:
    """Whether it is a request at all. Raises InvalidFieldError."""
    if not submission.prompt_token_ids:
        raise errors.InvalidFieldError("the prompt has no tokens", field="prompt_token_ids")
    if submission.max_tokens < 1:
        raise errors.InvalidFieldError("max_tokens must be at least 1", field="stop.max_tokens")
    if submission.n < 1:
        raise errors.InvalidFieldError("n must be at least 1", field="sampling.n")
    if submission.begun:
        _check_begun(submission)


def _check_begun(submission: Submission) -> None:
    """A gateway that says otherwise has a bug."""
    live = [each for each in submission.begun if not each.ended]
    if len(submission.begun) != submission.n or not live:
        raise errors.InvalidFieldError("what has begun is not that of all outputs, or all have ended", field="begun")
    if any(len(each.token_ids) >= submission.max_tokens for each in live):
        raise errors.InvalidFieldError("an output that goes on has all its tokens", field="begun")


def check_vocabulary(submission: Submission, pool: Pool) -> None:
    """Whether the workers know all tokens of the prompt. It looks at each, so it comes when all else is well.

    Raises InvalidFieldError.
    """
    vocab_size = min(worker.info.vocab_size for worker in pool.live)
    if (largest := max(submission.prompt_token_ids)) >= vocab_size:
        raise errors.InvalidFieldError(
            f"token id {largest} is outside the vocabulary of {vocab_size}", field="prompt_token_ids"
        )


def _check_context(submission: Submission, limit: int, whose: str, name: str) -> None:
    """Whether prompt + max_tokens fit in a context of `limit` tokens; 0 is none."""
    prompt, max_tokens = len(submission.prompt_token_ids), submission.max_tokens
    if limit and prompt + max_tokens > limit:
        raise errors.PromptTooLongError(
            f"prompt of {prompt} + max_tokens {max_tokens} tokens exceed {whose} of {limit}",
            field="stop.max_tokens" if prompt < limit else "prompt_token_ids",
            metadata={**_numbers(submission), name: str(limit)},
        )


def _check_workers(submission: Submission, pool: Pool) -> None:
    prompt, n, live = len(submission.prompt_token_ids), submission.n, pool.live
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
    max_model_len = max(worker.info.max_model_len for worker in live)
    _check_context(submission, max_model_len, "the context", "max_model_len")
    largest_pool = max(live, key=lambda worker: worker.info.num_blocks * worker.info.block_size).info
    needed = blocks_for(length, largest_pool.block_size)
    numbers = _numbers(submission)
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


def fit_to_plan(submission: Submission, pool: Pool, plan: NamedPlan) -> Submission:
    """The request with as many max_tokens as the plan can ever allow, if its client left them open; at least one more
    than there are."""
    if not submission.max_tokens_open:
        return submission
    prompt, room = len(submission.prompt_token_ids), [submission.max_tokens]
    if plan.max_context:
        room.append(plan.max_context - prompt)
    if plan.tokens_per_minute:
        room.append((most_at_once(plan.tokens_per_minute) - prompt) // max(1, submission.n))
    if plan.kv_share:
        room.append(_granted_blocks(pool, plan.kv_share) * _largest(pool).info.block_size - prompt)
    so_far = max((len(each.token_ids) for each in submission.begun if not each.ended), default=0)
    granted = max(so_far + 1, min(room))
    return submission if granted == submission.max_tokens else replace(submission, max_tokens=granted)


def _largest(pool: Pool) -> Worker:
    return max(pool.live, key=lambda worker: worker.info.num_blocks * worker.info.block_size)


def _granted_blocks(pool: Pool, share: float) -> int:
    """What one tenant may hold, in blocks of the largest worker."""
    return granted_tokens(pool, share) // _largest(pool).info.block_size


def _check_share(submission: Submission, pool: Pool, share: float) -> None:
    """Whether the request fits in its tenant's part of the pool."""
    prompt, n = len(submission.prompt_token_ids), submission.n
    largest, granted = _largest(pool), _granted_blocks(pool, share)
    needed = _least_blocks(prompt, prompt + submission.max_tokens, n, largest)
    if needed > granted:
        raise errors.KvNeverFitsError(
            f"prompt of {prompt} + max_tokens {submission.max_tokens} tokens and n = {n} need {needed} KV blocks;"
            f" the plan's kv_share grants {granted}",
            field="stop.max_tokens",
            metadata={**_numbers(submission), "blocks_needed": str(needed), "blocks_granted": str(granted)},
        )


def _least_blocks(prompt: int, length: int, n: int, worker: Worker) -> int:
    """Blocks without which a request cannot come to its end on that worker, even alone: those of one output, and those
    of all at their first token."""
    block_size = worker.info.block_size
    return max(blocks_for(length, block_size), blocks_for(min(prompt + 1, length), block_size) + n - 1)


def _numbers(submission: Submission) -> dict[str, str]:
    return {"prompt_tokens": str(len(submission.prompt_token_ids)), "max_tokens": str(submission.max_tokens)}
