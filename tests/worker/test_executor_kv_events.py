"""Cache events: what they tell is at any time what the prefix cache holds."""

from __future__ import annotations

import hashlib

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.worker.stepped_executor import SteppedExecutor, kv_events_of, released_of, tokens_of
from worker.messages import (
    Attach,
    Chunk,
    Event,
    KvEvents,
    NewSequence,
    PlanDone,
    Release,
    ReleaseCause,
    Resume,
    StepResult,
)

S = 4


def keys_of(token_ids: list[int], salt: bytes = b"") -> list[int]:
    """The keys of the full blocks of a prefix, by their definition in the contract."""
    name = hashlib.blake2s(salt, digest_size=16, person=b"tercet-s").digest()
    keys = []
    for first in range(0, len(token_ids) - S + 1, S):
        ids = b"".join(token_id.to_bytes(4, "little") for token_id in token_ids[first : first + S])
        name = hashlib.blake2s(name + ids, digest_size=16, person=b"tercet-b").digest()
        keys.append(int.from_bytes(name[:8], "little"))
    return keys


class Listener:
    """The prefix cache as somebody sees it who gets the events."""

    def __init__(self) -> None:
        self.keys: set[int] = set()

    def take(self, events: list[Event]) -> None:
        for event in kv_events_of(events):
            if event.reset:
                self.keys.clear()
            assert set(event.removed) <= self.keys
            self.keys -= set(event.removed)
            assert not set(event.stored) & self.keys
            self.keys |= set(event.stored)


def published(bench: SteppedExecutor) -> set[int]:
    keys = bench.kv_cache.pool.published_keys().tolist()
    assert len(set(keys)) == len(keys)
    return set(keys)


def test_a_prompt_is_told_by_the_keys_of_its_blocks() -> None:
    bench = SteppedExecutor()
    assert bench.events == [KvEvents(True, (), ())]
    prompt = list(range(2 * S + 1))
    events = bench.run(
        NewSequence(1, tuple(prompt), 20, prefix_salt=b"tenant"), bench.plan(1, chunks=(Chunk(1, 99),), join=(1,))
    )
    (told,) = kv_events_of(events)
    assert (told.reset, told.removed) == (False, ())
    assert set(told.stored) == set(keys_of(prompt, b"tenant"))
    assert not set(told.stored) & set(keys_of(prompt))


def test_tokens_go_first() -> None:
    bench = SteppedExecutor()
    prompt = tuple(range(S + 1))
    events = bench.run(NewSequence(1, prompt, 20), bench.plan(1, chunks=(Chunk(1, 99),), join=(1,)))
    assert [type(event) for event in events] == [StepResult, PlanDone, KvEvents]


def test_a_new_scheduler_gets_all_there_is_and_nothing_of_before() -> None:
    bench = SteppedExecutor()
    prompt = list(range(3 * S + 1))
    bench.run(NewSequence(1, tuple(prompt), 20), bench.plan(1, chunks=(Chunk(1, 99),), join=(1,)))
    everything = KvEvents(True, (), tuple(sorted(keys_of(prompt))))
    assert bench.obey(Attach(bench.events.append)) == [everything]
    bench.obey(NewSequence(2, (1, 2, 3), 9))
    events = bench.run(bench.plan(1, chunks=(Chunk(2, 9),)))
    assert len(events) == 2
    assert kv_events_of(events) == []


def swapped_and_evicted() -> tuple[SteppedExecutor, list[int]]:
    """Sequence 1 in host memory, nothing of it in the prefix cache; and the tokens that were computed."""
    bench = SteppedExecutor(num_blocks=8, num_swap_blocks=8)
    prompt = list(range(3 * S + 1))
    events = bench.run(NewSequence(1, tuple(prompt), 20), bench.plan(4, chunks=(Chunk(1, 99),), join=(1,)))
    bench.obey(Release((1,), ReleaseCause.SWAP))
    other = NewSequence(2, tuple(range(50, 50 + 7 * S + 1)), 7 * S + 2)
    bench.run(other, bench.plan(1, chunks=(Chunk(2, 99),)))
    assert published(bench) == set(keys_of(list(other.token_ids)))
    return bench, [*prompt, *tokens_of(events, 1)[:-1]]


def test_what_comes_back_from_host_memory_can_be_found_under_its_own_name() -> None:
    bench, token_ids = swapped_and_evicted()
    assert len(token_ids) == 4 * S
    events = bench.run(Resume((1,)), bench.plan(1, join=(1,)))
    assert set(keys_of(token_ids)) <= published(bench)
    listener = Listener()
    listener.take(bench.events)
    assert listener.keys == published(bench)
    assert set(kv_events_of(events)[0].stored) == set(keys_of(token_ids))


def test_what_came_about_before_a_scheduler_attached_is_told_once() -> None:
    bench, token_ids = swapped_and_evicted()
    bench.obey(Resume((1,)))
    (everything,) = kv_events_of(bench.obey(Attach(bench.events.append)))
    assert set(keys_of(token_ids)) <= set(everything.stored)
    events = bench.run(NewSequence(3, (1, 2, 3), 9), bench.plan(1, chunks=(Chunk(3, 9),)))
    assert not any(event.stored for event in kv_events_of(events))


def test_without_prefix_caching_nothing_is_told() -> None:
    bench = SteppedExecutor(caching=False)
    prompt = tuple(range(3 * S + 1))
    bench.run(NewSequence(1, prompt, 20), bench.plan(9, chunks=(Chunk(1, 99),), join=(1,)))
    assert kv_events_of(bench.events) == []


def test_what_was_evicted_is_told() -> None:
    bench = SteppedExecutor(num_blocks=4)
    first, second = list(range(2 * S + 1)), list(range(50, 50 + 3 * S + 1))
    for number, prompt in enumerate((first, second), 1):
        length = len(prompt) + 1
        bench.run(NewSequence(number, tuple(prompt), length), bench.plan(1, chunks=(Chunk(number, 99),)))
    told = kv_events_of(bench.events)[-1]
    # The beginning of a prefix outlives its end.
    assert set(told.removed) == set(keys_of(first))
    assert set(told.stored) == set(keys_of(second))


@settings(max_examples=60, deadline=None)
@given(
    moves=st.lists(
        st.tuples(
            st.sampled_from(["new", "step", "cancel", "swap", "resume", "attach"]),
            st.integers(0, 5),
            st.lists(st.integers(0, 1), min_size=1, max_size=18),
        ),
        max_size=30,
    ),
    num_blocks=st.integers(4, 16),
    captured=st.none() | st.integers(0, 99),
)
def test_a_listener_knows_the_cache(
    moves: list[tuple[str, int, list[int]]], num_blocks: int, captured: int | None
) -> None:
    bench = SteppedExecutor(num_blocks=num_blocks, num_swap_blocks=6, captured=captured)
    listener = Listener()
    listener.take(bench.events)
    for move, number, tokens in moves:
        first = len(bench.events)
        if move == "new":
            bench.obey(NewSequence(number, tuple(tokens), len(tokens) + 9))
        elif move in ("cancel", "swap"):
            cause = ReleaseCause.CANCEL if move == "cancel" else ReleaseCause.SWAP
            assert len(released_of(bench.obey(Release((number,), cause)))) == 1
        elif move == "resume":
            bench.obey(Resume((number,)))
        elif move == "attach":
            bench.obey(Attach(bench.events.append))
        else:
            # What changed between steps is told behind the next one that runs.
            chunks = tuple(Chunk(key, 7) for key in range(6))
            bench.run(bench.plan(2, chunks=chunks, join=tuple(range(6))))
        listener.take(bench.events[first:])
        ran = any(isinstance(event, StepResult) for event in bench.events[first:])
        if ran or move == "attach":
            assert listener.keys == published(bench)
