"""A request's output: deltas of whole tokens, stop strings, one end."""

from __future__ import annotations

import asyncio
from array import array
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.cancel import CancelOrigin
from gateway.detokenizer import Detokenizer
from gateway.output import Finish, Output
from gateway.prompt_logprobs import PromptPart
from gateway.sequence_end import Account, EndReason, SequenceEnd
from gateway.stop_matcher import StopMatcher
from gateway.stream import ON_THEIR_WAY, Delta, Stream
from gateway.token_logprobs import TokenLogprobs
from tercet.errors import EngineFaultError, RequestCancelledError, SlowConsumerError, WorkerLostError

# Tokens of one or more bytes of a text with short repeats, so that stops and characters are cut everywhere.
# Of more than two bytes, and never whole, are the last ones: an emoji, a character of CJK, a lone beginning.
PIECES: list[str | bytes] = [
    "a", "b", "ab", "ba", "", b"\xc3", b"\xa9", "aé", b"b\xc3", "é",
    b"\xf0\x9f", b"\x98\x80", b"\xe4\xb8", b"\x96", "世界", b"\xff",
]  # fmt: skip


def piece_of(token_id: int) -> str | bytes:
    return PIECES[token_id]


def decode(token_ids: list[int]) -> str:
    raw = b"".join(p if isinstance(p, bytes) else p.encode() for p in map(piece_of, token_ids))
    return raw.decode("utf-8", "replace")


def make(
    stop_strings: list[str] | None = None, max_tokens_held: int = 1000, stop_token_ids: Any = (), n: int = 1,
    include_stop: bool = False, num_prompt_logprobs: int = 0,
) -> Stream:  # fmt: skip
    outputs = [
        Output(
            Detokenizer(piece_of), stop_strings=stop_strings or [], stop_token_ids=frozenset(stop_token_ids),
            include_stop=include_stop,
        )
        for _ in range(n)
    ]  # fmt: skip
    return Stream(outputs, max_tokens_held=max_tokens_held, clock=lambda: 1.0, num_prompt_logprobs=num_prompt_logprobs)


NOTHING = Account(0, 0, 0, 0.0)
END = SequenceEnd(EndReason.LENGTH, Account(1, 2, 3, 0.5))


async def drain(stream: Stream) -> list[Delta]:
    deltas = []
    while (delta := await stream.read()) is not None:
        deltas.append(delta)
    return deltas


@settings(max_examples=300)
@given(
    st.lists(st.integers(0, len(PIECES) - 1), max_size=20),
    st.lists(st.sampled_from(["aa", "ab", "é", "aéb", "bab", "\ufffd", "😀", "世", "世界a"]), max_size=3),
    st.lists(st.booleans(), min_size=20, max_size=20),
    st.booleans(),
)
def test_deltas_are_whole_tokens_and_join_to_the_text(
    token_ids: list[int], stops: list[str], reads: list[bool], include_stop: bool
) -> None:
    async def go() -> None:
        stream, pushed = make(stops, include_stop=include_stop), []
        deltas: list[Delta] = []
        reader: asyncio.Future[Delta | None] | None = None
        for token_id, read in zip(token_ids, reads, strict=False):
            pushed.append(token_id)
            if stream.push(0, token_id, TokenLogprobs(-len(pushed), (), ())) is not None:
                break
            if read:
                # What a client sees now is the text of whole tokens and can never belong to a stop string.
                reader = reader or asyncio.ensure_future(stream.read())
                await asyncio.sleep(0)
                await asyncio.sleep(0)
                if not reader.done():
                    continue
                delta = reader.result()
                assert delta is not None
                deltas.append(delta)
                reader = None
                seen = [token_id for delta in deltas for token_id in delta.token_ids]
                assert "".join(delta.text for delta in deltas) == decode(seen)
        stream.end(0, END)
        if reader is not None and (last := await reader) is not None:
            deltas.append(last)
        deltas += await drain(stream)
        matcher = StopMatcher(stops)
        match = matcher.push(decode(token_ids))
        text = "".join(delta.text for delta in deltas)
        assert [token_id for delta in deltas for token_id in delta.token_ids] == pushed
        assert [-item.logprob for delta in deltas for item in delta.logprobs] == list(range(1, len(pushed) + 1))
        assert all(len(delta.logprobs) == len(delta.token_ids) for delta in deltas)
        assert stream.num_tokens == len(pushed)
        assert [delta.seq for delta in deltas] == list(range(len(deltas)))
        assert all(delta.token_ids for delta in deltas)
        assert [d.token_offset for d in deltas] == [
            sum(len(d.token_ids) for d in deltas[:i]) for i in range(len(deltas))
        ]
        if match is None:
            assert (text, stream.finishes) == (decode(token_ids), (Finish(EndReason.LENGTH),))
        else:
            assert stream.finishes == (Finish(EndReason.STOP, stop_string=match.stop_string),)
            assert text == decode(token_ids)[: match.start + include_stop * len(match.stop_string)]

    asyncio.run(go())


@settings(max_examples=200)
@given(
    st.lists(st.lists(st.integers(0, len(PIECES) - 1), max_size=8), min_size=1, max_size=4),
    st.lists(st.sampled_from(["aa", "ab", "é", "bab"]), max_size=2),
    st.randoms(use_true_random=False),
)
def test_each_of_several_outputs_is_what_it_would_be_alone(
    outputs: list[list[int]], stops: list[str], random: Random
) -> None:
    async def go() -> None:
        stream = make(stops, n=len(outputs))
        left = [list(token_ids) for token_ids in outputs]
        stopped: set[int] = set()
        deltas: list[Delta] = []
        open_ends = set(range(len(outputs)))
        while open_ends:
            index = random.choice(sorted(open_ends))
            if left[index] and index not in stopped:
                if stream.push(index, left[index].pop(0)) is CancelOrigin.STOP_STRING:
                    stopped.add(index)
            else:
                stream.end(index, SequenceEnd(EndReason.CANCELLED, END.account) if index in stopped else END)
                open_ends.discard(index)
            if random.random() < 0.3:
                reader = asyncio.ensure_future(stream.read())
                await asyncio.sleep(0)
                if reader.done() and (delta := reader.result()) is not None:
                    deltas.append(delta)
                reader.cancel()
        assert stream.ended
        deltas += await drain(stream)
        assert [delta.seq for delta in deltas] == list(range(len(deltas)))
        for index, token_ids in enumerate(outputs):
            alone = make(stops)
            for token_id in token_ids:
                if alone.push(0, token_id) is not None:
                    break
            alone.end(0, END)
            (whole,) = await drain(alone) or [Delta(0, 0, 0, "", ())]
            own = [delta for delta in deltas if delta.output_index == index]
            assert "".join(delta.text for delta in own) == whole.text
            assert tuple(token_id for delta in own for token_id in delta.token_ids) == whole.token_ids
            assert all(
                delta.token_offset == sum(len(each.token_ids) for each in own[:at]) for at, delta in enumerate(own)
            )
            assert stream.finishes[index] == alone.finishes[0]
        assert stream.num_tokens == sum(len(delta.token_ids) for delta in deltas)
        assert await stream.wait_account() == Account(1, 2 * len(outputs), 3 * len(outputs), 0.5)

    asyncio.run(go())


def test_logprobs_of_all_tokens_or_of_none() -> None:
    item = TokenLogprobs(-1.0, (), ())
    for first, second in ((item, None), (None, item)):
        (output,) = make(["ab"])._outputs
        output.push(0, first)
        with pytest.raises(ValueError, match="are missing"):
            output.push(0, second)


async def test_deltas_come_in_the_order_in_which_they_became_ready() -> None:
    stream = make(n=3)
    for index, token_id in [(2, 0), (0, 1), (2, 2), (1, 3)]:
        stream.push(index, token_id)
    assert await stream.read() == Delta(0, 2, 0, "aab", (0, 2))
    stream.push(2, 1)
    assert await stream.read() == Delta(1, 0, 0, "b", (1,))
    assert await stream.read() == Delta(2, 1, 0, "ba", (3,))
    assert await stream.read() == Delta(3, 2, 2, "b", (1,))


async def test_it_ends_when_the_last_output_has_ended() -> None:
    stream = make(n=2)
    stream.end(1, END)
    waiting = asyncio.ensure_future(stream.read())
    await asyncio.sleep(0)
    assert (waiting.done(), stream.ended, stream.finishes, stream.account_closed) == (False, False, (), False)
    stream.end(0, END)
    assert await waiting is None
    assert stream.finishes == (Finish(EndReason.LENGTH),) * 2


def told(stream: Stream) -> list[bool]:
    """Whether the client was behind, each time that something was said of it."""
    said: list[bool] = []
    stream.on_reader = lambda: said.append(stream.behind)
    return said


async def test_unread_tokens_of_all_outputs_count_together() -> None:
    stream = make(max_tokens_held=3, n=2)
    said = told(stream)
    assert [stream.push(index, 0) for index in (0, 1, 0)] == [None] * 3
    await stream.read()
    assert [stream.push(index, 0) for index in (1, 1)] == [None] * 2
    assert said == []
    assert stream.push(0, 0) is None
    assert said == [True]


async def test_first_token_goes_at_once_and_later_ones_join() -> None:
    stream = make()
    stream.push(0, 0)
    assert await stream.read() == Delta(0, 0, 0, "a", (0,))
    for token_id in (1, 2, 3):
        stream.push(0, token_id)
    assert await stream.read() == Delta(1, 0, 1, "babba", (1, 2, 3))


async def test_held_token_comes_with_the_delta_that_completes_it() -> None:
    stream = make(["ab!"])
    stream.push(0, 1)
    assert (await stream.read()).text == "b"  # type: ignore[union-attr]
    stream.push(0, 2)  # "ab": may become "ab!"
    pending = asyncio.ensure_future(stream.read())
    await asyncio.sleep(0)
    assert not pending.done()
    stream.push(0, 1)
    assert await pending == Delta(1, 0, 1, "abb", (2, 1))


async def test_a_client_that_is_behind_catches_up_and_gets_every_token() -> None:
    stream = make(max_tokens_held=4)
    said = told(stream)
    for _ in range(7):
        assert stream.push(0, 0) is None
    assert said == [True]
    # What is being handed over is unread as long as nobody asks for more.
    assert (await stream.read()).token_ids == (0,) * 7  # type: ignore[union-attr]
    for _ in range(3):
        stream.push(0, 1)
    assert said == [True]
    assert (await stream.read()).token_ids == (1,) * 3  # type: ignore[union-attr]
    waiting = asyncio.ensure_future(stream.read())
    await asyncio.sleep(0)
    assert said == [True, False]
    stream.push(0, 2)
    assert (await waiting).token_offset == 10  # type: ignore[union-attr]
    for _ in range(5):
        stream.push(0, 0)
    assert said == [True, False, True]


async def test_more_unread_tokens_than_can_be_on_their_way_end_the_stream() -> None:
    stream, interrupted = make(max_tokens_held=3), []
    stream.interrupt = lambda: interrupted.append(True)
    assert [stream.push(0, 0) for _ in range(3 + ON_THEIR_WAY)] == [None] * (3 + ON_THEIR_WAY)
    assert interrupted == []
    assert stream.push(0, 0) is CancelOrigin.SLOW_CONSUMER
    assert interrupted == [True]
    with pytest.raises(SlowConsumerError):
        await stream.read()
    assert stream.push(0, 0) is None
    stream.end(0, END)
    assert not stream.finishes


async def test_the_first_end_counts() -> None:
    stream = make()
    stream.push(0, 0)
    stream.fail(WorkerLostError("one"))
    stream.fail(EngineFaultError("two"))
    stream.end(0, END)
    # What was generated before the failure is not withheld.
    assert (await stream.read()) == Delta(0, 0, 0, "a", (0,))
    with pytest.raises(WorkerLostError, match="one"):
        await stream.read()
    assert not stream.finishes


async def test_end_reasons() -> None:
    for end, error in [
        (SequenceEnd(EndReason.FAILED, NOTHING, failure=WorkerLostError("gone")), WorkerLostError),
        (SequenceEnd(EndReason.FAILED, NOTHING), EngineFaultError),
        (SequenceEnd(EndReason.CANCELLED, NOTHING), RequestCancelledError),
    ]:
        stream = make()
        stream.end(0, end)
        with pytest.raises(error):
            await stream.read()
    for stop_token_ids, named in [((), None), ((7,), 7)]:
        stream = make(stop_token_ids=stop_token_ids)
        stream.end(0, SequenceEnd(EndReason.STOP, NOTHING, stop_token_id=7))
        assert stream.finishes == (Finish(EndReason.STOP, stop_token_id=named),)


async def test_account_is_the_first_one_given() -> None:
    stream = make(["a"])
    assert stream.push(0, 0) is CancelOrigin.STOP_STRING
    waiting = asyncio.ensure_future(stream.wait_account())
    await asyncio.sleep(0)
    stream.close_account(Account(1, 9, 8, 0.0))
    stream.end(0, END)
    assert await waiting == Account(1, 9, 8, 0.0)
    assert stream.finishes == (Finish(EndReason.STOP, stop_string="a"),)


async def test_acceptance_or_refusal() -> None:
    stream = make()
    waiting = asyncio.ensure_future(stream.wait_accepted())
    await asyncio.sleep(0)
    stream.accept(4)
    assert await waiting == 4
    stream = make()
    waiting = asyncio.ensure_future(stream.wait_accepted())
    await asyncio.sleep(0)
    stream.fail(WorkerLostError("no"))
    with pytest.raises(WorkerLostError):
        await waiting


def part(first: int, count: int, width: int = 2) -> PromptPart:
    """Of each place its number, negative, and the numbers of the likeliest tokens."""
    places = range(first, first + count)
    tops = [100 * place + index for place in places for index in range(width)]
    return PromptPart(first, array("f", [-i for i in places]), array("I", tops), array("f", [-i for i in tops]))


@settings(max_examples=100)
@given(
    num_tokens=st.integers(1, 12),
    width=st.integers(0, 3),
    pushes=st.lists(st.tuples(st.integers(1, 12), st.integers(1, 12)), max_size=12),
)
def test_each_place_of_a_prompt_comes_once_however_often_it_was_computed(
    num_tokens: int, width: int, pushes: list[tuple[int, int]]
) -> None:
    async def go() -> None:
        stream, known = make(num_prompt_logprobs=num_tokens), 1
        with pytest.raises(ValueError, match="before all of the prompt"):
            stream.push(0, 1)
        for first, count in [*pushes, (1, num_tokens)]:
            end = first + count
            if first > known or end > num_tokens + 1:
                with pytest.raises(ValueError, match="do not follow"):
                    stream.push_prompt(part(first, count, width))
            else:
                stream.push_prompt(part(first, count, width))
                known = max(known, end)
        stream.push(0, 1)
        stream.end(0, END)
        found = []
        while (each := await stream.read_prompt()) is not None:
            assert each.first == 1 + len(found)
            found += list(each)
        assert found == list(part(1, num_tokens, width))
        assert [delta.token_ids for delta in await drain(stream)] == [(1,)]

    asyncio.run(go())


async def test_who_waits_for_a_prompt_hears_of_its_end() -> None:
    stream = make(num_prompt_logprobs=2)
    stream.push_prompt(part(1, 1))
    assert await stream.read_prompt() is not None
    waiting = asyncio.ensure_future(stream.read_prompt())
    await asyncio.sleep(0)
    stream.fail(WorkerLostError("gone"))
    with pytest.raises(WorkerLostError):
        await waiting


def test_columns_of_a_prompt_that_do_not_fit_are_refused() -> None:
    stream = make(num_prompt_logprobs=4)
    for tops, logprobs in (([1], [-1.0]), ([1, 2], [-1.0])):
        with pytest.raises(ValueError, match="differ in length"):
            stream.push_prompt(PromptPart(1, array("f", [-1.0, -2.0]), array("I", tops), array("f", logprobs)))
