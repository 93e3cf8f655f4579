"""A sequence that comes back, groups, and places."""

from __future__ import annotations

from sequences import sequence_of

from scheduler.lifecycle import State
from scheduler.sequence import Request, Sequence
from scheduler.simulator.small import submission
from scheduler.traffic_class import CLASSES


def make(state: State = State.QUEUED) -> Sequence:
    request = Request(1, submission(1, (1, 2, 3), 8), 5.0, None)
    return sequence_of(request, 1, [1, 2, 3], 11, state=state)


def test_a_sequence_that_comes_back_keeps_its_tokens_and_its_queue_time() -> None:
    sequence = make()
    sequence.place(link=3, now=7.0)
    sequence.token_ids.append(9)
    sequence.become(State.DECODE)
    sequence.computed = 3
    sequence.become(State.PREEMPTED)
    sequence.requeue()
    assert (sequence.link, sequence.computed, sequence.token_ids) == (None, 0, [1, 2, 3, 9])
    sequence.place(link=4, now=20.0)
    assert sequence.prefill_length == 4
    assert sequence.placements == 2
    assert sequence.queue_seconds == 2.0
    assert sequence.generated == 1


def group_of(size: int) -> list[Sequence]:
    leader, *forks = (make() for _ in range(size))
    leader.forks = tuple(forks)
    for fork in forks:
        fork.leader = leader
    return [leader, *forks]


def test_a_group_that_parts_is_no_group_and_each_has_its_own_tokens() -> None:
    group = group_of(3)
    for fork in group[1:]:
        fork.token_ids = group[0].token_ids
    group[0].part()
    assert all(each.leader is None and each.group == (each,) for each in group)
    for each in group:
        each.token_ids.append(each.arrival)
    assert [len(each.token_ids) for each in group] == [4, 4, 4]


def test_a_fork_that_leaves_goes_alone() -> None:
    leader, gone, stays = group_of(3)
    gone.leave()
    assert gone.group == (gone,)
    assert gone.leader is None
    assert leader.group == (leader, stays)


def test_the_first_fork_leads_when_the_leader_leaves() -> None:
    leader, heir, other = group_of(3)
    leader.leave()
    assert leader.group == (leader,)
    assert heir.leader is None
    assert heir.group == (heir, other)
    assert other.leader is heir


def test_what_comes_back_from_host_memory_decodes_where_it_was() -> None:
    sequence = make()
    sequence.place(3, 7.0)
    sequence.become(State.DECODE)
    sequence.token_ids.append(9)
    sequence.become(State.PREEMPTED)
    sequence.requeue()
    sequence.keep(3, 2, swapped=True)
    sequence.resume(3)
    assert sequence.state is State.DECODE
    assert (sequence.link, sequence.computed, sequence.prefill_length) == (3, 3, 4)
    assert (sequence.kept_on, sequence.kept_blocks, sequence.placements) == (None, 0, 2)


def test_the_shield_falls_with_the_next_token() -> None:
    sequence = make(State.DECODE)
    assert not sequence.shielded
    sequence.length_at_preemption = len(sequence.token_ids)
    assert sequence.shielded
    sequence.token_ids.append(1)
    assert not sequence.shielded


def test_one_without_a_promise_lets_those_pass_from_its_turn_on_that_are_to_be_kept_within_a_time() -> None:
    def waiting(traffic_class: str, arrived_at: float, arrival: int) -> Sequence:
        kind = CLASSES[traffic_class]
        request = Request(1, submission(arrival), arrived_at, None, traffic_class=kind)
        return sequence_of(request, arrival, [1], 4, claim=kind.claim(arrived_at, arrival))

    # It has waited for twenty seconds more than its patience.
    patient = waiting("batch", 0.0, 1)
    assert patient.turn < waiting("interactive", 80.0, 2).turn
    patient.have_turn(80.0, 5.0)
    assert patient.turn == (85.0, 1)
    assert waiting("interactive", 83.9, 3).turn < patient.turn < waiting("interactive", 84.1, 4).turn
    assert waiting("rag", 79.9, 5).turn < patient.turn < waiting("rag", 80.1, 6).turn
    # Once and for all, and in its line it stays where it was.
    patient.have_turn(90.0, 5.0)
    assert (patient.turn, patient.claim) == ((85.0, 1), (60.0, 1))
    early = waiting("batch", 75.0, 7)
    early.have_turn(80.0, 5.0)
    assert early.turn == early.claim == (135.0, 7)
    promised = waiting("rag", 0.0, 8)
    promised.have_turn(80.0, 5.0)
    assert promised.turn == promised.claim == (5.0, 8)
