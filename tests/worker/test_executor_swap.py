"""Swap: a sequence that gives way keeps its blocks in host memory, and goes on as if nothing had been."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.worker.recall_model import CONFIG, continuation
from tests.worker.stepped_executor import CPU, SteppedExecutor, ended_of, released_of, tokens_of
from worker.kv_cache import Copied, KVCache
from worker.messages import (
    Attach,
    Chunk,
    EndReason,
    Fork,
    NewSequence,
    Release,
    ReleaseCause,
    Released,
    Resume,
    Sampling,
)
from worker.sequences import Sequences
from worker.swap_space import SwapSpace


class SlowSwapSpace(SwapSpace):
    """Copies take their time, as beside a GPU that computes: every third look finds one done. Until then blocks that
    come back hold something else."""

    def load(self, host_blocks: Sequence[int], blocks: Sequence[int]) -> Copied:
        for tensor in self._device.tensors:
            tensor[torch.tensor(blocks, dtype=torch.int64)] = 66.0
        copied = SlowCopy(lambda: SwapSpace.load(self, host_blocks, blocks))
        self._kv_cache.keep_until(copied, blocks)
        return copied


class SlowCopy:
    """See SlowSwapSpace. What reserves its blocks before it is done has it done first."""

    def __init__(self, copy: Callable[[], object]) -> None:
        self._copy: Callable[[], object] | None = copy
        self._looks = 0

    def query(self) -> bool:
        self._looks += 1
        if self._looks == 3:
            self.synchronize()
        return self._copy is None

    def synchronize(self) -> None:
        if self._copy is not None:
            self._copy()
            self._copy = None

    def wait(self) -> None:
        self.synchronize()


S = 4
SWAP = ReleaseCause.SWAP


def release(bench: SteppedExecutor, sequence_id: int, cause: ReleaseCause = SWAP) -> Released:
    """The answer to a release."""
    (answer,) = released_of(bench.obey(Release((sequence_id,), cause)))
    return answer


def poison(bench: SteppedExecutor) -> None:
    """Overwrites every block that nobody uses, as other sequences would."""
    pool = bench.kv_cache.pool
    table = bench.kv_cache.new_table(b"poison")
    table.reserve((pool.num_free + pool.num_cached) * pool.block_size)
    for tensor in bench.kv_cache.blocks.tensors:
        tensor[torch.tensor(table.blocks(), dtype=torch.int64)] = 55.0
    table.release()


def started(bench: SteppedExecutor, prompt: list[int], length: int, steps: int = 3) -> list[int]:
    """Sequence 1 after some steps; the tokens it got."""
    spec = NewSequence(1, tuple(prompt), len(prompt) + length)
    return tokens_of(bench.run(spec, bench.plan(steps, chunks=(Chunk(1, 99),), join=(1,))), 1)


@pytest.mark.parametrize("caching", [True, False])
@pytest.mark.parametrize("num_computed", [1, S - 1, S, S + 1, 3 * S, 3 * S + 2])
def test_every_byte_comes_back(num_computed: int, caching: bool) -> None:
    kv_cache = KVCache(CONFIG, 8, S, torch.bfloat16, CPU, caching)
    swap_space = SwapSpace(kv_cache, 6)
    sequences = Sequences(kv_cache, swap_space)
    for tensor in kv_cache.blocks.tensors:
        tensor.copy_(torch.randn(tensor.shape))
    sequences.add(NewSequence(1, tuple(range(num_computed)), 40))
    sequence = sequences.get(1)
    assert sequence is not None
    kv_cache.reserve(sequence.table, num_computed)
    sequence.advance(num_computed)
    sequence.append(7)
    num_blocks = -(-num_computed // S)

    def content() -> list[torch.Tensor]:
        return [tensor[sequence.table.blocks()[:num_blocks]].clone() for tensor in kv_cache.blocks.tensors]

    before, held = content(), sequence.table.num_blocks
    (answer,) = sequences.release((1,), SWAP)
    assert (answer.found, answer.swapped, answer.blocks_used, answer.blocks_freed) == (True, True, held, held)
    assert swap_space.num_free == 6 - num_blocks
    sequences.check()
    # All blocks, also cached ones: a table takes them, so that nothing is found in the cache.
    other = kv_cache.new_table(b"")
    other.reserve(8 * S)
    for tensor in kv_cache.blocks.tensors:
        tensor.fill_(55.0)
    other.release()
    sequences.resume((1,))
    for a, b in zip(before, content(), strict=True):
        assert torch.equal(a.view(torch.int16), b.view(torch.int16))
    assert sequence.table.num_tokens == sequence.num_computed == num_computed
    assert swap_space.num_free == 6
    sequences.check()


@pytest.mark.parametrize("caching", [True, False])
def test_the_text_goes_on(caching: bool) -> None:
    prompt = list(range(10))
    bench = SteppedExecutor(num_blocks=6, num_swap_blocks=4, caching=caching)
    first = started(bench, prompt, 9)
    answer = release(bench, 1)
    assert (answer.swapped, answer.blocks_used, answer.blocks.used) == (True, 3, 0)
    assert bench.executor.num_sequences == 1
    assert not bench.executor.idle
    # Out of the device it does not decode, joined or not.
    poison(bench)
    assert tokens_of(bench.run(bench.plan(2, chunks=(Chunk(1, 5),), join=(1,))), 1) == []
    assert tokens_of(bench.run(Resume((1,)), bench.plan(2)), 1) == []
    events = bench.run(bench.plan(32, join=(1,)))
    assert first + tokens_of(events, 1) == continuation(prompt, 9)
    assert bench.executor.idle


@pytest.mark.parametrize("captured", [None, 1, 2])
def test_others_go_on_while_one_comes_back(captured: int | None) -> None:
    bench = SteppedExecutor(num_swap_blocks=4, captured=captured, swap_space=SlowSwapSpace)
    first = started(bench, list(range(10)), 29)
    assert release(bench, 1).swapped
    events = bench.run(NewSequence(2, (5, 6), 60), bench.plan(2, chunks=(Chunk(2, 2),), join=(2,)))
    events += bench.run(Resume((1,)), bench.plan(9, join=(1,)))
    late = tokens_of(events, 1)
    assert 0 < len(late) < 9
    assert len(tokens_of(events, 2)) == 11
    bench.executor._sequences.check()
    events += bench.run(bench.plan(40))
    assert first + tokens_of(events, 1) == continuation(list(range(10)), 29)
    assert tokens_of(events, 2) == continuation([5, 6], 51)
    assert bench.swap_space.num_free == 4


@pytest.mark.parametrize("cause", list(ReleaseCause))
def test_one_that_comes_back_may_be_let_go(cause: ReleaseCause) -> None:
    bench = SteppedExecutor(num_swap_blocks=4, swap_space=SlowSwapSpace)
    first = started(bench, list(range(10)), 9)
    release(bench, 1)
    bench.obey(Resume((1,)))
    answer = release(bench, 1, cause)
    assert (answer.found, answer.swapped) == (True, cause is SWAP)
    bench.executor._sequences.check()
    if cause is SWAP:
        events = bench.run(Resume((1,)), bench.plan(32, join=(1,)))
        assert first + tokens_of(events, 1) == continuation(list(range(10)), 9)
    assert bench.swap_space.num_free == 4
    assert bench.executor.idle


def test_it_may_go_and_come_back_within_one_message() -> None:
    prompt = list(range(10))
    bench = SteppedExecutor(num_swap_blocks=4)
    first = started(bench, prompt, 9)
    events = bench.run(Release((1,), SWAP), Resume((1,)), bench.plan(32, join=(1,)))
    assert first + tokens_of(events, 1) == continuation(prompt, 9)


def test_what_the_prefix_cache_still_has_is_not_copied_back() -> None:
    prompt = list(range(10))
    bench = SteppedExecutor(num_swap_blocks=4)
    first = started(bench, prompt, 9)
    release(bench, 1)
    assert bench.kv_cache.counts().cached == 3
    for tensor in bench.swap_space._host.tensors:
        tensor.fill_(55.0)
    events = bench.run(Resume((1,)), bench.plan(32, join=(1,)))
    assert first + tokens_of(events, 1) == continuation(prompt, 9)


def test_without_room_it_is_preempted() -> None:
    prompt = list(range(10))
    bench = SteppedExecutor(num_swap_blocks=2)
    first = started(bench, prompt, 9)
    answer = release(bench, 1)
    assert (answer.found, answer.swapped, answer.cause, answer.blocks_used) == (True, False, SWAP, 3)
    assert bench.executor.idle
    spec = NewSequence(1, tuple(prompt + first), 19)
    events = bench.run(Resume((1,)), spec, bench.plan(32, chunks=(Chunk(1, 99),), join=(1,)))
    assert first + tokens_of(events, 1) == continuation(prompt, 9)


def test_in_prefill_it_is_preempted_with_its_forks() -> None:
    bench = SteppedExecutor(num_swap_blocks=9)
    spec = NewSequence(1, tuple(range(10)), 20, forks=(Fork(2, 5),))
    bench.run(spec, bench.plan(1, chunks=(Chunk(1, 6),), join=(1,)))
    answers = released_of(bench.obey(Release((1, 2), SWAP)))
    assert [(answer.found, answer.swapped) for answer in answers] == [(True, False)] * 2
    assert bench.executor.idle


def test_forks_swap_one_by_one() -> None:
    spec = NewSequence(1, tuple(range(10)), 25, sampling=Sampling(0.3, seed=3), forks=(Fork(2, 4), Fork(3, 5)))
    undisturbed = SteppedExecutor()
    events = undisturbed.run(spec, undisturbed.plan(32, chunks=(Chunk(1, 99),), join=(1,)))
    expected = {key: tokens_of(events, key) for key in (1, 2, 3)}
    bench = SteppedExecutor(num_blocks=20, num_swap_blocks=12)
    events = bench.run(spec, bench.plan(3, chunks=(Chunk(1, 99),), join=(1,)))
    answers = released_of(bench.obey(Release((2, 1), SWAP)))
    # Shared blocks are not free before the last one leaves.
    assert [(answer.swapped, answer.blocks_used, answer.blocks_freed) for answer in answers] == [(True, 3, 1)] * 2
    events += bench.run(bench.plan(3))
    poison(bench)
    events += bench.run(Resume((1, 2)), bench.plan(32, join=(1, 2)))
    assert {key: tokens_of(events, key) for key in (1, 2, 3)} == expected
    assert bench.swap_space.num_free == 12
    assert bench.executor.idle


@pytest.mark.parametrize("cause", [ReleaseCause.CANCEL, ReleaseCause.PREEMPT])
def test_a_swapped_one_can_be_dropped(cause: ReleaseCause) -> None:
    bench = SteppedExecutor(num_swap_blocks=4)
    started(bench, list(range(10)), 9)
    release(bench, 1)
    assert release(bench, 1).swapped, "it is there already"
    answer = release(bench, 1, cause)
    assert (answer.found, answer.swapped, answer.blocks_used, answer.blocks_freed) == (True, False, 0, 0)
    assert bench.swap_space.num_free == 4
    assert bench.executor.idle
    assert not release(bench, 1, cause).found
    assert bench.run(Resume((1,)), bench.plan(3, join=(1,)))[-1] == bench.events[-1]
    assert not tokens_of(bench.events[-2:], 1)


def test_unknown_ids() -> None:
    bench = SteppedExecutor(num_swap_blocks=4)
    answer = release(bench, 9)
    assert (answer.found, answer.swapped) == (False, False)
    assert bench.obey(Resume((9, 10))) == []


def test_a_scheduler_that_resumes_without_credits_hurts_that_sequence_alone() -> None:
    bench = SteppedExecutor(num_blocks=4, num_swap_blocks=4)
    started(bench, list(range(10)), 9)
    release(bench, 1)
    spec = NewSequence(2, tuple(range(50, 57)), 12)
    events = bench.run(spec, bench.plan(1, chunks=(Chunk(2, 99),), join=(2,)))
    events += bench.run(Resume((1,)), bench.plan(32, join=(1, 2)))
    ended = ended_of(events)
    assert ended[1].reason is EndReason.FAILED
    assert ended[1].failure is not None
    assert tokens_of(events, 2) == continuation(list(range(50, 57)), 5)
    assert bench.swap_space.num_free == 4
    assert bench.executor.idle


def test_a_new_scheduler_finds_nothing_swapped() -> None:
    bench = SteppedExecutor(num_swap_blocks=4)
    started(bench, list(range(10)), 9)
    release(bench, 1)
    bench.obey(Attach(bench.events.append))
    assert bench.swap_space.num_free == 4
    assert bench.executor.idle


def test_the_time_of_a_block_is_measured() -> None:
    times = iter([0.0, 9.0, 10.0, 10.0016, 20.0, 20.0008, 30.0, 30.5])
    kv_cache = KVCache(CONFIG, 16, S, torch.float32, CPU)
    swap_space = SwapSpace(kv_cache, 4)
    swap_space.measure(lambda: next(times))
    assert swap_space.block_ns == 100_000  # the best of several: 800 us there and back, four blocks
    assert swap_space.num_free == 4
    nothing = SwapSpace(kv_cache, 0)
    nothing.measure()
    assert nothing.block_ns == 0


@settings(max_examples=60, deadline=None)
@given(
    prompts=st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=14), min_size=2, max_size=4),
    moves=st.lists(st.tuples(st.integers(0, 3), st.sampled_from(["swap", "resume", "preempt", "step"])), max_size=25),
    num_swap_blocks=st.integers(0, 12),
    caching=st.booleans(),
    captured=st.none() | st.integers(0, 99),
    swap_space=st.sampled_from([SwapSpace, SlowSwapSpace]),
)
def test_whatever_comes_and_goes_each_keeps_its_text(
    prompts: list[list[int]],
    moves: list[tuple[int, str]],
    num_swap_blocks: int,
    caching: bool,
    captured: int | None,
    swap_space: type[SwapSpace],
) -> None:
    length = 12
    bench = SteppedExecutor(
        num_blocks=30, num_swap_blocks=num_swap_blocks, caching=caching, captured=captured, swap_space=swap_space
    )
    got: dict[int, list[int]] = {number: [] for number in range(len(prompts))}
    swapped: set[int] = set()
    live = set(got)

    def start(number: int) -> None:
        tokens = (*prompts[number], *got[number])
        bench.obey(NewSequence(number, tokens, len(prompts[number]) + length))

    def step() -> None:
        chunks = tuple(Chunk(number, 99) for number in sorted(live - swapped))
        events = bench.run(bench.plan(1, chunks=chunks, join=tuple(live - swapped)))
        for number in live:
            got[number] += tokens_of(events, number)
        assert all(ended.reason is EndReason.LENGTH for ended in ended_of(events).values())
        live.difference_update(ended_of(events))

    for number in got:
        start(number)
    for who, move in [*moves, *((number, "resume") for number in got)]:
        number = who % len(prompts)
        if move == "step":
            step()
        elif move == "resume" and number in swapped:
            poison(bench)
            assert bench.obey(Resume((number,))) == []
            swapped.remove(number)
        elif move in ("swap", "preempt") and number in live:
            cause = SWAP if move == "swap" and number not in swapped else ReleaseCause.PREEMPT
            answer = release(bench, number, cause)
            assert answer.found
            swapped.discard(number)
            if answer.swapped:
                swapped.add(number)
            else:
                start(number)
        bench.executor._sequences.check()
    while live:
        step()
    for number, prompt in enumerate(prompts):
        assert got[number] == continuation(prompt, length)
    assert bench.swap_space.num_free == num_swap_blocks
    assert bench.executor.idle
