"""What is too large for the workers there are, or for a tenant's plan, with its numbers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from fleets import fleet_of
from hypothesis import given
from hypothesis import strategies as st

from scheduler.actions import PoolState
from scheduler.admission import demand_of, find_pool
from scheduler.events import Submission, WorkerInfo
from scheduler.simulator.small import submission, worker_info
from scheduler.simulator.text import VOCAB
from scheduler.sizes import check_sizes, check_vocabulary, fit_to_plan
from scheduler.tenant import ANYONE, NamedPlan
from scheduler.usage import fresh_usage
from tercet import errors


def check(asked: Submission, *infos: WorkerInfo) -> None:
    """Against one worker of each kind, without a plan."""
    check_sizes(asked, find_pool(asked, fleet_of(*infos)), ANYONE)


@pytest.mark.parametrize(
    ("submitted", "error", "field"),
    [
        (submission(1, ()), errors.InvalidFieldError, "prompt_token_ids"),
        (submission(1, (1,), 0), errors.InvalidFieldError, "stop.max_tokens"),
        (submission(1, (1,) * 128, 1), errors.PromptTooLongError, "prompt_token_ids"),
        (submission(1, (1,) * 100, 29), errors.PromptTooLongError, "stop.max_tokens"),
        (submission(1, (1,) * 60, 41), errors.KvNeverFitsError, "stop.max_tokens"),
        (submission(1, (1,) * 99, 2), errors.KvNeverFitsError, "stop.max_tokens"),
        # Not one token more has room.
        (submission(1, (1,) * 100, 1), errors.KvNeverFitsError, "prompt_token_ids"),
        (submission(1, n=0), errors.InvalidFieldError, "sampling.n"),
        (submission(1, n=9), errors.InvalidFieldError, "sampling.n"),
        # 21 blocks for the prompt and its first token, one for each of the five forks.
        (submission(1, (1,) * 80, 4, n=6), errors.KvNeverFitsError, "sampling.n"),
    ],
)
def test_sizes(submitted: Submission, error: type[errors.RequestError], field: str) -> None:
    # 25 blocks of 4: 100 tokens, in a context of 128.
    with pytest.raises(error) as caught:
        check(submitted, worker_info(num_blocks=25))
    assert type(caught.value) is error
    assert caught.value.metadata["field"] == field


def test_a_token_that_the_workers_do_not_know() -> None:
    pool = find_pool(submission(1), fleet_of(worker_info(), worker_info(vocab_size=VOCAB - 1)))
    check_vocabulary(submission(1, (1, VOCAB - 2)), pool)
    with pytest.raises(errors.InvalidFieldError, match=f"token id {VOCAB - 1} is outside") as caught:
        check_vocabulary(submission(1, (1, VOCAB - 1)), pool)
    assert caught.value.metadata["field"] == "prompt_token_ids"


def test_never_fits_tells_the_numbers() -> None:
    submitted = submission(1, (1,) * 60, 41)
    with pytest.raises(errors.KvNeverFitsError) as caught:
        check(submitted, worker_info(num_blocks=25))
    assert caught.value.metadata["blocks_needed"] == "26"
    assert caught.value.metadata["blocks_total"] == "25"


def test_what_exactly_fits_is_taken_and_the_largest_worker_decides() -> None:
    submitted = submission(1, (1,) * 60, 40)
    check(submitted, worker_info(num_blocks=4), worker_info(num_blocks=25))


def test_a_group_that_can_just_start_is_taken() -> None:
    check(submission(1, (1,) * 80, 4, n=5), worker_info(num_blocks=25))


def test_n_that_never_fits_tells_the_numbers() -> None:
    submitted = submission(1, (1,) * 80, 4, n=6)
    with pytest.raises(errors.KvNeverFitsError, match="n = 6") as caught:
        check(submitted, worker_info(num_blocks=25), worker_info(max_num_seqs=4))
    assert caught.value.metadata["n"] == "6"
    assert caught.value.metadata["blocks_needed"] == "26"


def test_n_is_bounded_by_the_worker_that_runs_most() -> None:
    submitted = submission(1, n=12)
    check(submitted, worker_info(), worker_info(max_num_seqs=12))
    with pytest.raises(errors.InvalidFieldError, match=r"runs 8 \(worker.max_num_seqs\)"):
        check(submitted, worker_info(max_num_seqs=8, max_num_batched_tokens=64))
    with pytest.raises(errors.InvalidFieldError, match=r"runs 8 \(worker.max_num_batched_tokens\)"):
        check(submitted, worker_info(max_num_seqs=64, max_num_batched_tokens=8))


def test_a_draining_worker_counts_for_nothing() -> None:
    fleet = fleet_of(worker_info(num_blocks=4), worker_info())
    submitted = submission(1, (1,) * 30, 4)
    (pool,) = fleet.pools.values()
    check_sizes(submitted, pool, ANYONE)
    fleet.workers[1].draining = True
    with pytest.raises(errors.KvNeverFitsError):
        check_sizes(submitted, pool, ANYONE)
    fleet.workers[0].draining = True
    with pytest.raises(errors.NoWorkerError):
        find_pool(submitted, fleet)
    assert pool.state == PoolState("tiny", "r1", workers_live=0, max_model_len=0, max_sequence_len=0)


def test_gateways_are_told_the_largest_context() -> None:
    fleet = fleet_of(worker_info(max_model_len=64, num_blocks=64), worker_info(max_model_len=100, num_blocks=64))
    (pool,) = fleet.pools.values()
    length = pool.state.max_model_len
    assert length == 100
    check_sizes(submission(1, (1,) * 60, length - 60), pool, ANYONE)
    with pytest.raises(errors.PromptTooLongError):
        check_sizes(submission(1, (1,) * 60, length - 59), pool, ANYONE)


def test_gateways_are_told_for_how_long_a_sequence_there_is_room() -> None:
    # The one has the larger context, the other the larger cache.
    fleet = fleet_of(worker_info(max_model_len=100, num_blocks=10), worker_info(max_model_len=60, num_blocks=64))
    (pool,) = fleet.pools.values()
    assert (pool.state.max_model_len, pool.state.max_sequence_len) == (100, 60)
    check_sizes(submission(1, (1,) * 20, 40), pool, ANYONE)
    with pytest.raises(errors.KvNeverFitsError):
        check_sizes(submission(1, (1,) * 20, 41), pool, ANYONE)


def test_a_plan_may_want_shorter_contexts() -> None:
    pool = find_pool(submission(1), fleet_of(worker_info()))
    plan = NamedPlan("a", max_context=20)
    check_sizes(submission(1, (1,) * 12, 8), pool, plan)
    for prompt, field in ((12, "stop.max_tokens"), (20, "prompt_token_ids")):
        with pytest.raises(errors.PromptTooLongError, match="plan's max_context of 20") as caught:
            check_sizes(submission(1, (1,) * prompt, 9), pool, plan)
        assert caught.value.metadata["max_context"] == "20"
        assert caught.value.metadata["field"] == field


def test_a_plan_may_want_less_of_the_pool() -> None:
    # Two workers of 20 blocks of 4 tokens; a quarter are 10 blocks.
    pool = find_pool(submission(1), fleet_of(worker_info(num_blocks=20), worker_info(num_blocks=20)))
    plan = NamedPlan("a", kv_share=0.25)
    check_sizes(submission(1, (1,) * 20, 20), pool, plan)
    check_sizes(submission(1, (1,) * 20, 4, n=5), pool, plan)
    for asked in (submission(1, (1,) * 20, 21), submission(1, (1,) * 20, 4, n=6)):
        check_sizes(asked, pool, ANYONE)
        with pytest.raises(errors.KvNeverFitsError, match="kv_share grants 10") as caught:
            check_sizes(asked, pool, plan)
        assert caught.value.metadata["blocks_needed"] == "11"
        assert caught.value.retry_after_s is None


def test_what_a_client_left_open_is_what_its_plan_allows() -> None:
    # Two workers of 20 blocks of 4 tokens, with a context of 128.
    pool = find_pool(submission(1), fleet_of(worker_info(num_blocks=20), worker_info(num_blocks=20)))

    def granted(open_ended: bool = True, n: int = 1, **limits: Any) -> int:
        asked = submission(1, (1,) * 20, 60, n=n, max_tokens_open=open_ended)
        return fit_to_plan(asked, pool, NamedPlan("a", **limits)).max_tokens

    assert granted() == 60
    assert granted(max_context=50) == 30
    assert granted(open_ended=False, max_context=50) == 60
    assert granted(kv_share=0.3) == 12 * 4 - 20
    # With its debt, 60 tokens.
    assert granted(tokens_per_minute=48) == 40
    assert granted(tokens_per_minute=48, n=2) == 20
    assert granted(tokens_per_minute=48, n=2, max_context=60, kv_share=0.4) == 20
    # What does not fit is refused for what it is.
    assert granted(max_context=10) == 1


@given(
    prompt=st.integers(1, 40),
    n=st.integers(1, 4),
    context=st.integers(0, 130),
    share=st.floats(0, 0.99),
    tokens=st.integers(0, 300),
)
def test_what_is_granted_fits(prompt: int, n: int, context: int, share: float, tokens: int) -> None:
    """Whatever the plan, an open request is refused only where one of a single token would be."""
    pool = find_pool(submission(1), fleet_of(worker_info(num_blocks=24), worker_info(num_blocks=16)))
    plan = NamedPlan("a", max_context=context, kv_share=share, tokens_per_minute=tokens)
    room = 96 - prompt
    granted = fit_to_plan(submission(1, (1,) * prompt, room, n=n, max_tokens_open=True), pool, plan)

    def problem(asked: Submission) -> type[Exception] | None:
        try:
            check_sizes(asked, pool, plan)
            fresh_usage(plan, 0.0).check(demand_of(asked), "rag", 0.0)
        except errors.RequestError as error:
            return type(error)
        return None

    assert problem(granted) == problem(replace(granted, max_tokens=1))
