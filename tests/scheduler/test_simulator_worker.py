"""The simulated worker keeps the contract, and insists on it."""

from __future__ import annotations

import pytest

from scheduler.actions import NewSequence, Plan, Release, ReleaseCause, Resume, WorkerCommand
from scheduler.events import EndReason, Event, KvChanged, PlanEnded, SequenceReleased, StepReported
from scheduler.simulator.cost import StepCost
from scheduler.simulator.pool import OutOfBlocksError
from scheduler.simulator.small import GREEDY, worker_info
from scheduler.simulator.text import DrawnText, run_alone
from scheduler.simulator.worker import SimulatedWorker

PROMPT = (1, 2, 3, 4, 5, 6)


class Story:
    """A worker that runs what it is told as far as it goes, and the tokens that come of it."""

    def __init__(self, worker: SimulatedWorker | None = None) -> None:
        self.worker = worker or SimulatedWorker(1, worker_info(num_swap_blocks=6))
        self.tokens: dict[int, list[int]] = {}
        self.ends: dict[int, EndReason] = {}
        self.keys: set[int] = set()
        self.plan_seq = 0

    def tell(self, *commands: WorkerCommand) -> list[Event]:
        for command in commands:
            self.worker.receive(command)
        events = self.worker.begin()
        while self.worker.busy:
            events += self.worker.finish()
            events += self.worker.begin()
        for event in events:
            if isinstance(event, StepReported):
                for sequence_id, token in zip(event.sequence_ids, event.token_ids, strict=True):
                    self.tokens.setdefault(sequence_id, []).append(token)
                self.ends.update((ended.sequence_id, ended.reason) for ended in event.ended)
            elif isinstance(event, KvChanged):
                self.keys = set() if event.reset else self.keys
                self.keys = self.keys - set(event.removed) | set(event.stored)
        assert self.keys == self.worker.pool.keys
        return events

    def plan(self, num_steps: int, *chunks: tuple[int, int], join: tuple[int, ...] = ()) -> Plan:
        self.plan_seq += 1
        return Plan(self.plan_seq, num_steps, chunks, join, 0)

    def released(self, cause: ReleaseCause, *sequence_ids: int) -> list[SequenceReleased]:
        return [each for each in self.tell(Release(sequence_ids, cause)) if isinstance(each, SequenceReleased)]


def new(sequence_id: int = 1, max_length: int = 20, forks: tuple[tuple[int, int], ...] = ()) -> NewSequence:
    return NewSequence(sequence_id, PROMPT, max_length, (), GREEDY, b"", forks)


def alone(seed: int, count: int = 14) -> list[int]:
    return run_alone(PROMPT, count, (), seed)[0]


@pytest.mark.parametrize("chunks", [(6,), (2, 4), (1, 1, 1, 3)])
def test_forks_begin_where_the_leader_does_and_are_independent_then(chunks: tuple[int, ...]) -> None:
    story = Story()
    story.tell(new(forks=((2, 1), (3, 2))))
    for index, count in enumerate(chunks):
        story.tell(story.plan(1, (1, count), join=(1,) if index == 0 else ()))
        assert (2 in story.tokens) is (index == len(chunks) - 1)
    assert set(map(len, story.tokens.values())) == {1}
    # The full block of the prompt is shared, and so is, still, the partial one.
    assert story.worker.pool.counts.used == 2
    story.tell(story.plan(1))
    assert story.worker.pool.counts.used == 4
    story.tell(story.plan(40))
    assert story.tokens == {1: alone(0), 2: alone(1), 3: alone(2)}
    assert set(story.ends.values()) == {EndReason.LENGTH}
    assert story.worker.empty
    assert story.worker.pool.counts.used == 0


def test_a_fork_that_ends_with_its_first_token_leaves_the_others_their_blocks() -> None:
    story = Story()
    stop = alone(1)[0]
    assert stop not in alone(0)
    sequence = NewSequence(1, PROMPT, 20, (stop,), GREEDY, b"", ((2, 1),))
    story.tell(sequence, story.plan(40, (1, 6), join=(1,)))
    assert story.tokens == {1: alone(0), 2: [stop]}
    assert story.ends == {1: EndReason.LENGTH, 2: EndReason.STOP}


def test_forks_that_wait_go_with_their_leader_and_each_is_named() -> None:
    story = Story()
    story.tell(new(forks=((2, 1), (3, 2))), story.plan(1, (1, 4), join=(1,)))
    gone = story.released(ReleaseCause.PREEMPT, 1, 2, 3, 4)
    assert [(each.sequence_id, each.found, each.blocks_used) for each in gone] == [
        (1, True, 1),
        (2, True, 0),
        (3, True, 0),
        (4, False, 0),
    ]
    assert story.worker.empty
    # They may come again.
    story.tell(new(forks=((2, 1), (3, 2))), story.plan(40, (1, 6), join=(1,)))
    assert story.tokens == {1: alone(0), 2: alone(1), 3: alone(2)}


def test_a_swapped_sequence_goes_on_where_it_was() -> None:
    story = Story()
    story.tell(new(forks=((2, 1),)), story.plan(5, (1, 6), join=(1,)))
    (gone,) = story.released(ReleaseCause.SWAP, 2)
    # Three blocks, one of them shared with the leader.
    assert (gone.found, gone.swapped, gone.blocks_used, gone.blocks_freed) == (True, True, 3, 2)
    assert story.worker.memory.swap_blocks_used == 3
    story.tell(story.plan(2))
    assert len(story.tokens[2]) == 5
    story.tell(Resume((2,)), story.plan(2))
    assert len(story.tokens[2]) == 5, "it decodes from the plan that joins it on"
    story.tell(story.plan(40, join=(2,)))
    assert story.tokens == {1: alone(0), 2: alone(1)}
    assert story.worker.memory.swap_blocks_used == story.worker.pool.counts.used == 0


def test_what_cannot_be_swapped_is_released() -> None:
    story = Story(SimulatedWorker(1, worker_info(num_swap_blocks=5)))
    story.tell(new(1), new(2), new(3), story.plan(5, (1, 6), (2, 6), join=(1, 2)), story.plan(1, (3, 1)))
    in_prefill, first, no_room, unknown = story.released(ReleaseCause.SWAP, 3, 1, 2, 9)
    assert (in_prefill.found, in_prefill.swapped) == (True, False)
    assert (first.swapped, story.worker.memory.swap_blocks_used) == (True, first.blocks_used)
    assert first.blocks_used + no_room.blocks_used > 5
    assert (no_room.found, no_room.swapped) == (True, False)
    assert (unknown.found, unknown.swapped) == (False, False)


@pytest.mark.parametrize("cause", [ReleaseCause.CANCEL, ReleaseCause.PREEMPT])
def test_a_release_drops_what_is_in_host_memory(cause: ReleaseCause) -> None:
    story = Story()
    story.tell(new(), story.plan(3, (1, 6), join=(1,)))
    story.released(ReleaseCause.SWAP, 1)
    (gone,) = story.released(cause, 1)
    assert (gone.found, gone.swapped, gone.blocks_used, gone.blocks_freed) == (True, False, 0, 0)
    assert story.worker.empty
    story.tell(Resume((1,)), story.plan(1))
    assert story.worker.empty


def test_the_first_word_on_the_cache_is_that_it_is_empty() -> None:
    story = Story()
    assert story.tell() == [KvChanged(1, True, (), ())]
    assert story.tell() == []


def test_steps_take_what_they_cost_and_say_so() -> None:
    info = worker_info(num_swap_blocks=6, swap_block_ns=1_000_000)
    worker = SimulatedWorker(1, info, cost=StepCost(0.01, 0.001, 0.0001))
    story = Story(worker)
    events = story.tell(new(), story.plan(2, (1, 6), join=(1,)))
    assert [event.step_us for event in events if isinstance(event, StepReported)] == [16_000, 11_600]
    assert [event.step_us for event in events if isinstance(event, PlanEnded)] == [(16_000, 11_600)]
    story.released(ReleaseCause.SWAP, 1)
    worker.receive(Resume((1,)))
    worker.receive(story.plan(1, join=(1,)))
    worker.begin()
    # Two blocks there and back.
    assert worker.step_seconds == pytest.approx(0.01 + 0.001 + 7 * 0.0001 + 4 * 0.001)


def test_without_verification_the_counts_are_the_same() -> None:
    def run(verify: bool) -> list[Event]:
        info = worker_info(num_blocks=12, num_swap_blocks=6, vocab_size=257)
        story = Story(SimulatedWorker(1, info, verify=verify, text=DrawnText({0: 17, 1: 12, 2: 15})))
        events = story.tell(new(forks=((2, 1), (3, 2))), story.plan(4, (1, 6), join=(1,)))
        events += story.released(ReleaseCause.SWAP, 1)
        events += story.tell(story.plan(9))
        events += story.tell(Resume((1,)), story.plan(40, join=(1,)))
        assert {key: len(tokens) for key, tokens in story.tokens.items()} == {1: 14, 2: 14, 3: 14}
        return events

    assert run(verify=False) == run(verify=True)


def test_a_scheduler_that_breaks_its_promises_is_found_out() -> None:
    story = Story(SimulatedWorker(1, worker_info(num_blocks=2)))
    with pytest.raises(OutOfBlocksError):
        story.tell(new(), story.plan(40, (1, 6), join=(1,)))
    story = Story(SimulatedWorker(1, worker_info(max_num_seqs=2)))
    # What has not begun is no sequence.
    story.tell(new(forks=((2, 1), (3, 2))), story.plan(1, (1, 5), join=(1,)))
    with pytest.raises(AssertionError, match="too many sequences"):
        story.tell(story.plan(1, (1, 1)))
    story = Story(SimulatedWorker(1, worker_info(max_num_batched_tokens=5)))
    with pytest.raises(AssertionError, match="too many tokens"):
        story.tell(new(), story.plan(1, (1, 6)))
    story = Story()
    with pytest.raises(AssertionError, match="came twice"):
        story.tell(new(forks=((2, 1),)), new(2))
