"""What crosses the scheduler's two edges: plain values to protos and back."""

from __future__ import annotations

from dataclasses import replace

import pytest

from scheduler.actions import NewSequence, Release, ReleaseCause, Resume
from scheduler.events import BlockCounts, KvChanged, SequenceReleased, StepReported, WorkerDraining
from scheduler.fleet_messages import fleet_to_proto
from scheduler.fleet_view import FleetView, WorkerView
from scheduler.gateway_messages import submission_from_proto
from scheduler.link import ContractError, command_to_proto, event_from_proto, info_from_proto
from scheduler.simulator.small import GREEDY
from scheduler.wire import sampling_from_proto, sampling_to_proto
from tercet.mesh.v1 import scheduler_pb2, sequence_pb2, worker_pb2


def test_sampling_comes_back_as_it_was() -> None:
    penalties = sequence_pb2.Penalties(prompt_tokens=3, biased_ids=[1], biases=[0.5], min_tokens=9).SerializeToString()
    for sampling in (
        GREEDY,
        replace(GREEDY, seed=2**64 - 1, penalties=penalties, min_tokens=9),
        replace(GREEDY, num_logprobs=0),
    ):
        assert sampling_from_proto(sampling_to_proto(sampling)) == sampling


def test_a_leader_names_its_forks_and_their_seeds() -> None:
    new = NewSequence(5, (1, 2), 9, (7,), GREEDY, b"salt", forks=((6, 1), (7, 2**64 - 1)))
    message = command_to_proto(new).new_sequence
    assert [(fork.sequence_id, fork.seed) for fork in message.forks] == [(6, 1), (7, 2**64 - 1)]
    assert (message.sequence_id, list(message.token_ids), message.prefix_salt) == (5, [1, 2], b"salt")


@pytest.mark.parametrize("cause", list(ReleaseCause))
def test_every_cause_of_a_release_has_its_name(cause: ReleaseCause) -> None:
    message = command_to_proto(Release((3, 4), cause)).release
    assert list(message.sequence_ids) == [3, 4]
    assert worker_pb2.ReleaseCause.Name(message.cause) == f"RELEASE_CAUSE_{cause.name}"


def test_resume() -> None:
    assert list(command_to_proto(Resume((3, 4))).resume.sequence_ids) == [3, 4]


def test_events() -> None:
    counts = worker_pb2.BlockCounts(free=1, cached=2, used=3)
    step = worker_pb2.StepResult(plan_seq=1, step=2, sequence_ids=[5, 6], token_ids=[7, 8], blocks=counts, step_us=1500)
    seen = event_from_proto(worker_pb2.WorkerEvent(step=step), 9)
    assert seen == StepReported(9, 1, 2, (5, 6), (7, 8), (), (), BlockCounts(1, 2, 3), 1500)
    logprobs = sequence_pb2.TokenLogprobs(sequence_id=6, logprob=-1.5, top_ids=[7], top_logprobs=[-0.5])
    step.logprobs.append(logprobs)
    seen = event_from_proto(worker_pb2.WorkerEvent(step=step), 9)
    assert isinstance(seen, StepReported)
    assert seen.logprobs == ((6, logprobs.SerializeToString()),)
    gone = worker_pb2.Released(sequence_id=5, found=True, blocks_used=4, blocks_freed=3, blocks=counts, swapped=True)
    seen = event_from_proto(worker_pb2.WorkerEvent(released=gone), 9)
    assert seen == SequenceReleased(9, 5, True, 4, 3, BlockCounts(1, 2, 3), swapped=True)
    kv = worker_pb2.KvEvents(reset=True, removed=[1], stored=[2**64 - 1, 3])
    seen = event_from_proto(worker_pb2.WorkerEvent(kv=kv), 9)
    assert seen == KvChanged(9, True, (1,), (2**64 - 1, 3))
    assert event_from_proto(worker_pb2.WorkerEvent(draining=worker_pb2.Draining()), 9) == WorkerDraining(9)


@pytest.mark.parametrize(
    "event",
    [
        worker_pb2.WorkerEvent(),
        worker_pb2.WorkerEvent(hello=worker_pb2.Hello()),
        worker_pb2.WorkerEvent(step=worker_pb2.StepResult(sequence_ids=[1, 2], token_ids=[3])),
    ],
)
def test_what_the_contract_does_not_allow_is_an_error(event: worker_pb2.WorkerEvent) -> None:
    with pytest.raises(ContractError):
        event_from_proto(event, 1)


def test_a_hello_without_host_memory_is_a_worker_that_cannot_swap() -> None:
    sizes = dict.fromkeys(
        ("block_size", "num_blocks", "max_num_seqs", "max_num_batched_tokens", "max_model_len", "vocab_size"), 8
    )
    info = info_from_proto(worker_pb2.Hello(worker_id="w", model="tiny", **sizes))
    assert (info.num_swap_blocks, info.swap_block_ns) == (0, 0)
    with pytest.raises(ContractError, match="num_blocks"):
        info_from_proto(worker_pb2.Hello(worker_id="w", model="tiny", **{**sizes, "num_blocks": 0}))


def test_a_gateway_that_knows_no_n_means_one() -> None:
    submit = scheduler_pb2.Submit(request_key=1, prompt_token_ids=[1], max_tokens=2)
    assert submission_from_proto(submit).n == 1
    submit.n, submit.traffic_class, submit.priority = 4, "rag", -3
    seen = submission_from_proto(submit)
    assert (seen.n, seen.traffic_class, seen.priority) == (4, "rag", -3)


def test_the_fleet_shows_swaps_and_who_is_about_to_stop() -> None:
    worker = WorkerView("host:1", True, "tiny", "cpu", 3, 32, BlockCounts(20, 2, 10), 7, 9, 64, 5, True)
    fleet = fleet_to_proto(FleetView(1, 2, 5, 3, 4, 2, (worker,)))
    assert (fleet.preemptions, fleet.swaps) == (4, 2)
    (status,) = fleet.workers
    assert (status.swap_blocks_total, status.swap_blocks_used, status.draining) == (64, 5, True)
    assert (status.blocks_free, status.steps, status.tokens) == (20, 7, 9)
