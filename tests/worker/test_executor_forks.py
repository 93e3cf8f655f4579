"""Forks: they begin where their leader's prefill ends, share its blocks, and differ from it in their seeds alone."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.worker.recall_model import RecallModel
from tests.worker.stepped_executor import SteppedExecutor, alone, ended_of, released_of, steps_of, tokens_of
from worker.messages import (
    Chunk,
    Ended,
    EndReason,
    Fork,
    NewSequence,
    Release,
    ReleaseCause,
    Released,
    Resume,
    Sampling,
)

S = 4
# Both the text before and the seed decide what comes next.
SAMPLING = Sampling(temperature=0.3, top_p=1.0, seed=100)


def leader(prompt: list[int], num_forks: int = 2, length: int = 10, **fields: object) -> NewSequence:
    """Sequence 1, with forks 2, 3, ... and the seeds behind its own."""
    forks = tuple(Fork(2 + i, SAMPLING.seed + 1 + i) for i in range(num_forks))
    return NewSequence(1, tuple(prompt), len(prompt) + length, sampling=SAMPLING, forks=forks, **fields)  # type: ignore[arg-type]


def members(spec: NewSequence) -> list[NewSequence]:
    """The sequences that a leader and its forks are worth."""
    out = [dataclasses.replace(spec, forks=())]
    for fork in spec.forks:
        sampling = dataclasses.replace(spec.sampling, seed=fork.seed)
        out.append(dataclasses.replace(spec, sequence_id=fork.sequence_id, sampling=sampling, forks=()))
    return out


def texts(spec: NewSequence) -> dict[int, list[int]]:
    """What each member must produce."""
    return {member.sequence_id: alone(member) for member in members(spec)}


@pytest.mark.parametrize("length", [1, S - 1, S, S + 1, 3 * S, 3 * S + 2])
def test_each_has_the_text_of_running_alone(length: int) -> None:
    spec = leader([(7 * i) % 11 for i in range(length)])
    expected = texts(spec)
    assert len(set(map(tuple, expected.values()))) == 3, "the seeds make no difference: this test proves nothing"
    bench = SteppedExecutor()
    events = bench.run(spec, bench.plan(32, chunks=(Chunk(1, 99),), join=(1,)))
    assert {key: tokens_of(events, key) for key in (1, 2, 3)} == expected
    assert set(ended_of(events)) == {1, 2, 3}
    assert bench.kv_cache.counts().used == 0
    assert bench.executor.idle


def test_the_step_that_ends_the_prefill_gives_all_their_first_token() -> None:
    bench = SteppedExecutor()
    spec = leader(list(range(10)))
    first = bench.run(spec, bench.plan(1, chunks=(Chunk(1, 6),), join=(1,)))
    assert steps_of(first)[0].sequence_ids == ()
    assert bench.executor.num_sequences == 3
    computed = bench.model.tokens_computed
    second = bench.run(bench.plan(1, chunks=(Chunk(1, 6),)))
    assert steps_of(second)[0].sequence_ids == (1, 2, 3)
    assert bench.model.tokens_computed == computed + 4
    (progress,) = steps_of(second)[0].prefills
    assert (progress.sequence_id, progress.num_computed) == (1, 10)


def test_full_blocks_are_shared_and_the_partial_one_is_copied_for_all_but_one() -> None:
    bench = SteppedExecutor()
    events = bench.run(leader(list(range(2 * S + 1))), bench.plan(1, chunks=(Chunk(1, 99),), join=(1,)))
    assert steps_of(events)[0].blocks.used == 3
    events = bench.run(bench.plan(1))
    assert steps_of(events)[0].blocks.used == 2 + 3


def test_forks_of_a_leader_that_did_not_join_do_not_decode() -> None:
    bench = SteppedExecutor()
    events = bench.run(leader([1, 2, 3]), bench.plan(4, chunks=(Chunk(1, 99),)))
    assert [step.sequence_ids for step in steps_of(events)] == [(1, 2, 3)]
    events = bench.run(bench.plan(1, join=(2,)))
    assert [step.sequence_ids for step in steps_of(events)] == [(2,)]


def test_a_member_may_end_with_the_first_token() -> None:
    spec = leader([5, 6, 7], num_forks=4)
    first = {key: text[0] for key, text in texts(spec).items()}
    stop = first[3]
    stopped = {key for key, token_id in first.items() if token_id == stop}
    assert stopped < set(first)
    bench = SteppedExecutor()
    spec = dataclasses.replace(spec, stop_token_ids=frozenset({stop}))
    events = bench.run(spec, bench.plan(1, chunks=(Chunk(1, 99),), join=(1,)))
    assert {key: ended.reason for key, ended in ended_of(events).items()} == dict.fromkeys(stopped, EndReason.STOP)
    expected = texts(spec)
    events += bench.run(bench.plan(32))
    assert {key: tokens_of(events, key) for key in expected} == expected
    bench = SteppedExecutor()
    spec = leader([5, 6, 7], length=1)
    events = bench.run(spec, bench.plan(9, chunks=(Chunk(1, 99),), join=(1,)))
    assert {key: ended.reason for key, ended in ended_of(events).items()} == dict.fromkeys((1, 2, 3), EndReason.LENGTH)
    assert bench.kv_cache.counts().used == 0


def test_a_leader_released_in_prefill_takes_its_forks_along() -> None:
    for ids in ((1, 2, 3), (3, 1, 2), (2, 3, 1)):
        bench = SteppedExecutor()
        bench.run(leader(list(range(10))), bench.plan(1, chunks=(Chunk(1, 6),), join=(1,)))
        answers = released_of(bench.obey(Release(ids, ReleaseCause.PREEMPT)))
        assert [(answer.sequence_id, answer.found) for answer in answers] == [(key, True) for key in ids]
        assert {answer.sequence_id: answer.blocks_used for answer in answers} == {1: 2, 2: 0, 3: 0}
        assert bench.executor.idle
    bench = SteppedExecutor()
    bench.run(leader(list(range(10))), bench.plan(1, chunks=(Chunk(1, 6),), join=(1,)))
    bench.obey(Release((1,), ReleaseCause.CANCEL))
    assert bench.executor.num_sequences == 0
    (answer,) = released_of(bench.obey(Release((2,), ReleaseCause.CANCEL)))
    assert not answer.found


def test_a_fork_released_alone_leaves_the_others() -> None:
    spec = leader(list(range(10)))
    expected = texts(spec)
    bench = SteppedExecutor()
    (answer,) = released_of(bench.obey(spec, Release((2,), ReleaseCause.CANCEL)))
    assert (answer.found, answer.blocks_used) == (True, 0)
    events = bench.run(bench.plan(32, chunks=(Chunk(1, 99),), join=(1,)))
    assert {key: tokens_of(events, key) for key in (1, 2, 3)} == {**expected, 2: []}


def test_a_leader_that_fails_in_prefill_fails_its_forks() -> None:
    by_fault = SteppedExecutor(model=RecallModel(fail_on=13))
    by_nan = SteppedExecutor(model=RecallModel(nan_on=13))
    by_room = SteppedExecutor(num_blocks=1)
    for bench in (by_fault, by_nan, by_room):
        events = bench.run(leader([1, 2, 3, 4, 13]), bench.plan(9, chunks=(Chunk(1, 99),), join=(1,)))
        ended = ended_of(events)
        assert set(ended) == {1, 2, 3}
        for item in ended.values():
            assert item.reason is EndReason.FAILED
            assert item.failure is not None
            assert item.failure.reason == "ENGINE_FAULT"
        assert bench.kv_cache.counts().used == 0
        assert bench.executor.idle


def test_a_leader_that_cannot_run_is_refused_with_its_forks() -> None:
    bench = SteppedExecutor()
    events = bench.run(leader([1, 2], problem="it is odd"), bench.plan(1))
    assert {key: ended.reason for key, ended in ended_of(events).items()} == dict.fromkeys((1, 2, 3), EndReason.FAILED)
    assert bench.executor.idle


def test_a_leader_preempted_in_prefill_comes_back_with_its_forks() -> None:
    spec = leader(list(range(10)))
    bench = SteppedExecutor()
    bench.run(spec, bench.plan(1, chunks=(Chunk(1, 6),), join=(1,)))
    bench.obey(Release((1, 2, 3), ReleaseCause.PREEMPT))
    events = bench.run(spec, bench.plan(32, chunks=(Chunk(1, 99),), join=(1,)))
    assert {key: tokens_of(events, key) for key in (1, 2, 3)} == texts(spec)


def test_blocks_that_members_share_are_counted_once_by_the_last_that_has_them() -> None:
    prompt = [(7 * i) % 11 for i in range(12 * S + 1)]
    spec = leader(prompt, num_forks=3, length=9)
    expected = texts(spec)
    stop = next(token for token in expected[2][:3] if token not in expected[1])
    spec = dataclasses.replace(spec, stop_token_ids=frozenset({stop}))
    lengths = {key: text.index(stop) + 1 if stop in text else 9 for key, text in expected.items()}
    assert len(set(lengths.values())) > 1, "all end at once: this test proves nothing"
    bench = SteppedExecutor()
    ended = ended_of(bench.run(spec, bench.plan(32, chunks=(Chunk(1, 99),), join=(1,))))
    # The last token of each has no place in the cache, so who gets but one still shares the prompt's partial block.
    own = {key: -(-(len(prompt) + length - 1) // S) - 12 if length > 1 else 0 for key, length in lengths.items()}
    assert sum(item.blocks_used for item in ended.values()) == 12 + sum(own.values())
    assert sum(item.blocks_freed for item in ended.values()) == 12 + sum(own.values())
    *early, last = ended
    assert {key: ended[key].blocks_used for key in early} == {key: own[key] for key in early}
    assert ended[last].blocks_used == 12 + own[last]


def test_of_many_that_end_with_their_first_token_one_counts_the_prompt() -> None:
    bench = SteppedExecutor()
    spec = leader(list(range(2 * S + 1)), num_forks=15, length=1)
    ended = ended_of(bench.run(spec, bench.plan(1, chunks=(Chunk(1, 99),), join=(1,)))).values()
    assert [(item.blocks_used, item.blocks_freed) for item in ended] == [(0, 0)] * 15 + [(3, 3)]


def test_what_another_request_shares_is_used_and_not_freed() -> None:
    prompt = list(range(2 * S + 1))
    bench = SteppedExecutor()
    bench.run(NewSequence(9, tuple(prompt), 30), bench.plan(1, chunks=(Chunk(9, 99),), join=(9,)))
    ended = ended_of(bench.run(leader(prompt, length=1), bench.plan(1, chunks=(Chunk(1, 99),), join=(1,)))).values()
    assert (sum(item.blocks_used for item in ended), sum(item.blocks_freed for item in ended)) == (3, 1)


def test_members_that_are_released_count_as_those_that_end() -> None:
    bench = SteppedExecutor()
    bench.run(leader(list(range(2 * S + 1))), bench.plan(2, chunks=(Chunk(1, 99),), join=(1,)))
    answers = released_of(bench.obey(Release((2, 1, 3), ReleaseCause.CANCEL)))
    assert [(answer.blocks_used, answer.blocks_freed) for answer in answers] == [(1, 1), (1, 1), (3, 3)]


def test_one_that_was_away_is_a_sibling_still() -> None:
    for cause in (ReleaseCause.PREEMPT, ReleaseCause.SWAP):
        bench = SteppedExecutor(num_swap_blocks=8)
        spec = leader(list(range(2 * S + 1)), length=3 * S)
        events = bench.run(spec, bench.plan(2, chunks=(Chunk(1, 99),), join=(1,)))
        bench.obey(Release((2,), cause))
        if cause is ReleaseCause.SWAP:
            bench.obey(Resume((2,)))
        else:
            (fork, _), tokens = spec.forks, tokens_of(events, 2)
            sampling = dataclasses.replace(SAMPLING, seed=fork.seed)
            bench.obey(
                dataclasses.replace(
                    spec, sequence_id=2, token_ids=(*spec.token_ids, *tokens), sampling=sampling, forks=()
                )
            )
        ended = ended_of(bench.run(bench.plan(32, chunks=(Chunk(2, 99),), join=(2,)))).values()
        own = -(-(len(spec.token_ids) + 3 * S - 1) // S) - 2
        assert sum(item.blocks_used for item in ended) == 2 + 3 * own
        assert sum(item.blocks_freed for item in ended) == 2 + 3 * own


def test_an_id_that_is_used_again_replaces_what_it_was() -> None:
    bench = SteppedExecutor()
    bench.obey(leader([1, 2, 3]), NewSequence(2, (4, 5), 9, sampling=SAMPLING))
    assert bench.executor.num_sequences == 3
    plan = bench.plan(32, chunks=(Chunk(1, 9), Chunk(2, 9)), join=(1, 2))
    events = bench.run(plan)
    assert tokens_of(events, 2) == alone(NewSequence(2, (4, 5), 9, sampling=SAMPLING))
    assert bench.kv_cache.counts().used == 0


@settings(max_examples=60, deadline=None)
@given(
    prompts=st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=20), min_size=1, max_size=4),
    num_forks=st.lists(st.integers(0, 3), min_size=4, max_size=4),
    length=st.integers(1, 9),
    chunk=st.integers(1, 9),
    steps=st.integers(1, 6),
    caching=st.booleans(),
    victims=st.sets(st.integers(0, 15), max_size=3),
    captured=st.none() | st.integers(0, 99),
)
def test_any_schedule_gives_each_member_its_own_text(
    prompts: list[list[int]],
    num_forks: list[int],
    length: int,
    chunk: int,
    steps: int,
    caching: bool,
    victims: set[int],
    captured: int | None,
) -> None:
    bench = SteppedExecutor(num_blocks=200, caching=caching, captured=captured)
    expected, got = {}, {}
    account = [0, 0]
    for number, prompt in enumerate(prompts):
        forks = tuple(Fork(4 * number + i, 50 + i) for i in range(1, 1 + num_forks[number]))
        spec = NewSequence(4 * number, tuple(prompt), len(prompt) + length, sampling=SAMPLING, forks=forks)
        expected |= texts(spec)
        bench.obey(spec)
    live = set(expected)
    while live:
        events = bench.run(bench.plan(steps, chunks=tuple(Chunk(key, chunk) for key in sorted(live)), join=tuple(live)))
        for key in live:
            got[key] = got.get(key, []) + tokens_of(events, key)
        live -= set(ended_of(events))
        gone: list[Ended | Released] = list(ended_of(events).values())
        if doomed := live & victims:
            # A leader that has not begun takes its forks along, whom the scheduler names too.
            doomed |= {key for key in live for head in doomed if not got[head] and head == key // 4 * 4}
            gone += released_of(bench.obey(Release(tuple(doomed), ReleaseCause.CANCEL)))
            live -= doomed
        account[0] += sum(item.blocks_used for item in gone)
        account[1] += sum(item.blocks_freed for item in gone)
        assert all(item.blocks_freed <= item.blocks_used for item in gone)
    for key, tokens in got.items():
        assert tokens == expected[key][: len(tokens)]
        assert key in victims or key // 4 * 4 in victims or tokens == expected[key]
    # Only what requests share with each other is held more than once.
    assert account[0] == account[1] or len(prompts) > 1
    assert bench.executor.idle
    assert bench.kv_cache.counts().used == 0
