"""What ends an answer: tokens and strings."""

from __future__ import annotations

from typing import Any

import pytest

from tercet.mesh.v1 import scheduler_pb2, sequence_pb2
from tercet.v1 import inference_pb2 as pb
from tests.gateway.calls import check_events, stream

STOP = pb.FINISH_REASON_STOP


@pytest.mark.parametrize("include", [False, True])
async def test_a_stop_string_is_the_end_of_the_text_if_it_is_included(
    gateway: Any, scheduler: Any, model: Any, include: bool
) -> None:
    async def play(sequence: Any) -> None:
        for token_id in model.tokenizer.encode("one END two", add_bos=False):
            await sequence.tokens(token_id)
        await sequence.stopped.wait()

    scheduler.play = play
    stop = pb.StopConditions(strings=["END"], include_stop_string=include)
    text, _, finished = check_events(await stream(gateway, pb.GenerateRequest(prompt="x", stop=stop)))
    assert text == ("one END" if include else "one ")
    assert finished.outputs[0] == pb.OutputEnd(reason=STOP, stop_string="END")
    once = await gateway.inference.GenerateOnce(pb.GenerateRequest(prompt="x", stop=stop))
    assert once.outputs[0].text == text


@pytest.mark.parametrize(("least", "text"), [(0, "a"), (2, "a"), (3, "a##b"), (4, "a##b"), (5, "a##b"), (6, "a##b##c")])
async def test_stop_strings_count_behind_the_least_tokens(
    gateway: Any, scheduler: Any, model: Any, least: int, text: str
) -> None:
    """a##b##c: the first one is complete with the third token, the second with the sixth."""

    async def play(sequence: Any) -> None:
        for token_id in model.tokenizer.encode("a##b##c", add_bos=False):
            await sequence.tokens(token_id)
        await sequence.end(sequence_pb2.END_REASON_LENGTH)

    scheduler.play = play
    stop = pb.StopConditions(strings=["##"], min_tokens=least, max_tokens=7)
    request = pb.GenerateRequest(prompt="x", stop=stop)
    streamed, _, finished = check_events(await stream(gateway, request))
    assert streamed == text == (await gateway.inference.GenerateOnce(request)).outputs[0].text
    assert (finished.outputs[0].stop_string == "##") is (least < 6)


@pytest.mark.parametrize("include", [False, True])
async def test_stop_token_is_named_and_its_text_is_the_end_if_it_is_included(
    gateway: Any, scheduler: Any, model: Any, include: bool
) -> None:
    comma = model.tokenizer.token_to_id(",")

    async def play(sequence: Any) -> None:
        # The client may have it before the word that it ended something.
        for token_id in model.tokenizer.encode("he,", add_bos=False):
            await sequence.tokens(token_id)
        await sequence.end(sequence_pb2.END_REASON_STOP, stop_token_id=comma)

    scheduler.play = play
    stop = pb.StopConditions(token_ids=[comma], include_stop_string=include)
    text, token_ids, finished = check_events(await stream(gateway, pb.GenerateRequest(prompt="x", stop=stop)))
    assert text == ("he," if include else "he")
    assert token_ids[-1] == comma
    assert finished.outputs[0] == pb.OutputEnd(reason=STOP, stop_token_id=comma)


@pytest.mark.parametrize("answers", [True, False])
async def test_stop_string_over_tokens_ends_its_sequence(
    gateway: Any, scheduler: Any, model: Any, answers: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.generation.ACCOUNT_WAIT_S", 0.2)
    scheduler.answer_cancels = answers

    async def play(sequence: Any) -> None:
        for token_id in model.tokenizer.encode("one END two", add_bos=False):
            await sequence.tokens(token_id)
        await sequence.stopped.wait()

    scheduler.play = play
    events = await stream(gateway, pb.GenerateRequest(prompt="x", stop=pb.StopConditions(strings=["zzz", "END"])))
    text, token_ids, finished = check_events(events)
    assert text == "one "
    assert model.tokenizer.decode(token_ids) == "one END"
    assert finished.outputs[0] == pb.OutputEnd(reason=STOP, stop_string="END")
    assert scheduler.sequences[0].stop_reason == sequence_pb2.CANCEL_REASON_STOP_STRING
    assert scheduler.sequences[0].cancel_reason is None
    # What is not known is said to be unknown, not zero.
    assert finished.usage.incomplete is not answers
    assert finished.usage.kv_blocks_used == (5 if answers else 0)
    assert finished.usage.kv_blocks_freed == (4 if answers else 0)


async def test_stop_string_beats_length_in_one_message(gateway: Any, scheduler: Any, model: Any) -> None:
    async def play(sequence: Any) -> None:
        account = scheduler_pb2.Account(blocks_used=2, blocks_freed=2)
        end = scheduler_pb2.SequenceEnd(reason=sequence_pb2.END_REASON_LENGTH, account=account)
        await sequence.tokens(*model.tokenizer.encode("aSTOP", add_bos=False), end=end)

    scheduler.play = play
    once = await gateway.inference.GenerateOnce(
        pb.GenerateRequest(prompt="x", stop=pb.StopConditions(strings=["STOP"]))
    )
    assert once.outputs[0].text == "a"
    assert once.outputs[0].end == pb.OutputEnd(reason=STOP, stop_string="STOP")
    assert (once.usage.incomplete, once.usage.kv_blocks_used) == (False, 2)
    assert (scheduler.sequences[0].stop_reason, scheduler.sequences[0].cancel_reason) == (None, None)
