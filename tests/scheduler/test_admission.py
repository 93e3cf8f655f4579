"""Every refusal by itself, with its numbers."""

from __future__ import annotations

from typing import Any

import pytest
from sequences import sequence_of

from scheduler.actions import PoolState
from scheduler.admission import MAX_SEQUENCES_PER_REQUEST, QueueBounds, check_queue, check_sizes, find_class, find_pool
from scheduler.events import Submission
from scheduler.fleet import Fleet, Pool, Worker
from scheduler.sequence import Request
from scheduler.simulator.small import submission, worker_info
from scheduler.simulator.text import VOCAB
from tercet import errors


def fleet_of(*infos: Any, addresses: int | None = None) -> Fleet:
    fleet = Fleet(tuple(f"host:{index}" for index in range(len(infos) if addresses is None else addresses)))
    for index, info in enumerate(infos):
        fleet.add(Worker(index, f"host:{index}", info))
    return fleet


def wait(pool: Pool, key: int, length: int) -> None:
    request = Request(1, submission(key, [1] * length), 0.0, None)
    pool.waiting.add(sequence_of(request, key, [1] * length, length + 8))


def test_the_pool_of_model_and_revision() -> None:
    fleet = fleet_of(worker_info(), worker_info(model_revision="r2"))
    assert find_pool(submission(1, model_revision="r2"), fleet).model_revision == "r2"


def test_an_unknown_model_lists_what_is_served() -> None:
    with pytest.raises(errors.ModelNotFoundError) as caught:
        find_pool(submission(1, model="other"), fleet_of(worker_info()))
    assert caught.value.metadata == {"model": "other", "served": "tiny"}


def test_a_model_that_an_absent_worker_may_serve_is_no_worker() -> None:
    with pytest.raises(errors.NoWorkerError) as caught:
        find_pool(submission(1, model="other"), fleet_of(worker_info(), addresses=2))
    assert caught.value.retry_after_s


def test_a_model_whose_workers_are_gone_is_no_worker() -> None:
    fleet = fleet_of(worker_info())
    fleet.remove(fleet.workers[0])
    with pytest.raises(errors.NoWorkerError) as caught:
        find_pool(submission(1), fleet)
    assert caught.value.retry_after_s


def test_another_revision() -> None:
    with pytest.raises(errors.RevisionMismatchError) as caught:
        find_pool(submission(1, model_revision="r0"), fleet_of(worker_info()))
    assert caught.value.metadata["worker_revision"] == "r1"


@pytest.mark.parametrize(
    ("submitted", "error", "field"),
    [
        (submission(1, ()), errors.InvalidFieldError, "prompt_token_ids"),
        (submission(1, (1,), 0), errors.InvalidFieldError, "stop.max_tokens"),
        (submission(1, (1, VOCAB)), errors.InvalidFieldError, "prompt_token_ids"),
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
    pool = find_pool(submitted, fleet_of(worker_info(num_blocks=25)))
    with pytest.raises(error) as caught:
        check_sizes(submitted, pool)
    assert type(caught.value) is error
    assert caught.value.metadata["field"] == field


def test_never_fits_tells_the_numbers() -> None:
    submitted = submission(1, (1,) * 60, 41)
    with pytest.raises(errors.KvNeverFitsError) as caught:
        check_sizes(submitted, find_pool(submitted, fleet_of(worker_info(num_blocks=25))))
    assert caught.value.metadata["blocks_needed"] == "26"
    assert caught.value.metadata["blocks_total"] == "25"


def test_what_exactly_fits_is_taken_and_the_largest_worker_decides() -> None:
    submitted = submission(1, (1,) * 60, 40)
    check_sizes(submitted, find_pool(submitted, fleet_of(worker_info(num_blocks=4), worker_info(num_blocks=25))))


def test_a_group_that_can_just_start_is_taken() -> None:
    check_sizes(submission(1, (1,) * 80, 4, n=5), find_pool(submission(1), fleet_of(worker_info(num_blocks=25))))


def test_n_that_never_fits_tells_the_numbers() -> None:
    submitted = submission(1, (1,) * 80, 4, n=6)
    with pytest.raises(errors.KvNeverFitsError, match="n = 6") as caught:
        check_sizes(submitted, find_pool(submitted, fleet_of(worker_info(num_blocks=25), worker_info(max_num_seqs=4))))
    assert caught.value.metadata["n"] == "6"
    assert caught.value.metadata["blocks_needed"] == "26"


def test_n_is_bounded_by_the_worker_that_runs_most() -> None:
    submitted = submission(1, n=12)
    check_sizes(submitted, find_pool(submitted, fleet_of(worker_info(), worker_info(max_num_seqs=12))))
    with pytest.raises(errors.InvalidFieldError, match=r"runs 8 \(worker.max_num_seqs\)"):
        check_sizes(submitted, find_pool(submitted, fleet_of(worker_info(max_num_seqs=8, max_num_batched_tokens=64))))
    with pytest.raises(errors.InvalidFieldError, match=r"runs 8 \(worker.max_num_batched_tokens\)"):
        check_sizes(submitted, find_pool(submitted, fleet_of(worker_info(max_num_seqs=64, max_num_batched_tokens=8))))


def test_a_draining_worker_counts_for_nothing() -> None:
    fleet = fleet_of(worker_info(num_blocks=4), worker_info())
    submitted = submission(1, (1,) * 30, 4)
    (pool,) = fleet.pools.values()
    check_sizes(submitted, pool)
    fleet.workers[1].draining = True
    with pytest.raises(errors.KvNeverFitsError):
        check_sizes(submitted, pool)
    fleet.workers[0].draining = True
    with pytest.raises(errors.NoWorkerError):
        find_pool(submitted, fleet)
    assert pool.state == PoolState("tiny", "r1", workers_live=0, max_model_len=0, max_sequence_len=0)


def test_gateways_are_told_the_largest_context() -> None:
    fleet = fleet_of(worker_info(max_model_len=64, num_blocks=64), worker_info(max_model_len=100, num_blocks=64))
    (pool,) = fleet.pools.values()
    length = pool.state.max_model_len
    assert length == 100
    check_sizes(submission(1, (1,) * 60, length - 60), pool)
    with pytest.raises(errors.PromptTooLongError):
        check_sizes(submission(1, (1,) * 60, length - 59), pool)


def test_gateways_are_told_for_how_long_a_sequence_there_is_room() -> None:
    # The one has the larger context, the other the larger cache.
    fleet = fleet_of(worker_info(max_model_len=100, num_blocks=10), worker_info(max_model_len=60, num_blocks=64))
    (pool,) = fleet.pools.values()
    assert (pool.state.max_model_len, pool.state.max_sequence_len) == (100, 60)
    check_sizes(submission(1, (1,) * 20, 40), pool)
    with pytest.raises(errors.KvNeverFitsError):
        check_sizes(submission(1, (1,) * 20, 41), pool)


def test_classes() -> None:
    assert find_class(submission(1)).name == "interactive"
    assert find_class(submission(1, traffic_class="batch", priority=-100)).rank == 2
    with pytest.raises(errors.InvalidFieldError, match=r"'bulk'.*interactive, rag, batch") as caught:
        find_class(submission(1, traffic_class="bulk"))
    assert caught.value.metadata["field"] == "traffic_class"


@pytest.mark.parametrize("priority", [-101, 101, 2**31 - 1])
def test_priority_is_bounded(priority: int) -> None:
    with pytest.raises(errors.InvalidFieldError) as caught:
        find_class(submission(1, priority=priority))
    assert caught.value.metadata["field"] == "priority"


def test_a_full_pool_refuses_no_other_model() -> None:
    fleet = fleet_of(worker_info(), worker_info(model="other"))
    wait(fleet.pools["tiny", "r1"], 1, 6)
    check_queue(submission(2, model="other"), fleet.pools["other", "r1"], QueueBounds(1, 10))
    with pytest.raises(errors.QueueFullError):
        check_queue(submission(2), fleet.pools["tiny", "r1"], QueueBounds(1, 10))


def test_queue_bounds() -> None:
    fleet = fleet_of(worker_info())
    (pool,) = fleet.pools.values()
    check_queue(submission(1, (1,) * 50), pool, QueueBounds(1, 10))
    wait(pool, 1, 6)
    check_queue(submission(2, (1,) * 4), pool, QueueBounds(2, 10))
    most = 2 * MAX_SEQUENCES_PER_REQUEST
    check_queue(submission(2, (1,) * 4, n=most - 1), pool, QueueBounds(2, 10))
    for bounds, length, n in ((QueueBounds(2, 10), 5, 1), (QueueBounds(1, 1000), 1, 1), (QueueBounds(2, 10), 4, most)):
        with pytest.raises(errors.QueueFullError) as caught:
            check_queue(submission(2, (1,) * length, n=n), pool, bounds)
        assert caught.value.retry_after_s
        assert caught.value.metadata == {"requests_waiting": "1", "outputs_waiting": "1", "tokens_waiting": "6"}


def test_an_empty_queue_takes_more_outputs_than_may_wait() -> None:
    (pool,) = fleet_of(worker_info()).pools.values()
    check_queue(submission(1, n=MAX_SEQUENCES_PER_REQUEST + 1), pool, QueueBounds(1, 10))
