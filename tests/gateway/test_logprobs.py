"""Logprobs of answers and of prompts, from the scheduler to the client."""

from __future__ import annotations

from typing import Any

import grpc
import grpc.aio
import pytest

from tercet.mesh.v1 import sequence_pb2
from tercet.v1 import inference_pb2 as pb
from tests.gateway.calls import check_events, failure_of, stream
from tests.gateway.prompt_parts import send_part


async def test_logprobs_come_with_the_tokens_they_are_of(gateway: Any, scheduler: Any, model: Any) -> None:
    def item(sequence: Any, number: int) -> sequence_pb2.TokenLogprobs:
        return sequence_pb2.TokenLogprobs(
            sequence_id=sequence.sequence_id, logprob=-number, top_ids=[number, 7], top_logprobs=[-0.5, -number]
        )

    async def play(sequence: Any) -> None:
        # "a" of the stop string is held back, and one message brings tokens of several steps.
        first, *rest = model.tokenizer.encode("haxab", add_bos=False)
        await sequence.tokens(first, logprobs=[item(sequence, 0)])
        await sequence.tokens(*rest, logprobs=[item(sequence, 1 + i) for i in range(len(rest))])
        await sequence.end(sequence_pb2.END_REASON_LENGTH)

    scheduler.play = play
    request = pb.GenerateRequest(
        prompt="x", sampling=pb.SamplingParams(logprobs=2), stop=pb.StopConditions(strings=["abc"])
    )
    events = await stream(gateway, request)
    text, token_ids, _ = check_events(events)
    assert text == "haxab"
    deltas = [event.delta for event in events if event.HasField("delta")]
    assert all(len(delta.logprobs) == len(delta.token_ids) for delta in deltas)
    want = [pb.TokenLogprobs(logprob=-i, top_token_ids=[i, 7], top_logprobs=[-0.5, -i]) for i in range(len(token_ids))]
    assert [each for delta in deltas for each in delta.logprobs] == want
    assert scheduler.sequences[0].submit.sampling.num_logprobs == 2
    once = await gateway.inference.GenerateOnce(request)
    assert list(once.outputs[0].logprobs) == want
    await stream(gateway, pb.GenerateRequest(prompt="x", sampling=pb.SamplingParams(logprobs=0)))
    assert scheduler.sequences[2].submit.sampling.HasField("num_logprobs")
    await stream(gateway, pb.GenerateRequest(prompt="x"))
    assert not scheduler.sequences[3].submit.sampling.HasField("num_logprobs")


def prompt_part(sequence: Any, first: int, count: int) -> sequence_pb2.PromptLogprobs:
    """Two of the likeliest at each place."""
    places = range(first, first + count)
    return sequence_pb2.PromptLogprobs(
        sequence_id=sequence.sequence_id, first=first, logprobs=[-i for i in places],
        top_ids=[i for place in places for i in (place, 7)], top_logprobs=[-i for place in places for i in (0, place)],
    )  # fmt: skip


@pytest.mark.parametrize("n", [1, 2])
async def test_logprobs_of_the_prompt_come_before_its_first_token(
    gateway: Any, scheduler: Any, model: Any, n: int
) -> None:
    async def play(sequence: Any) -> None:
        # The second worker computes again what the first one had.
        await send_part(scheduler, prompt_part(sequence, 1, 2))
        await send_part(scheduler, prompt_part(sequence, 1, 3))
        await send_part(scheduler, prompt_part(sequence, 4, 1))
        for each in sequence.outputs:
            await each.tokens(7)
            await each.end(sequence_pb2.END_REASON_LENGTH)

    scheduler.play = play
    request = pb.GenerateRequest(
        token_ids=pb.TokenIds(ids=[9, 8, 7, 6, 5]), sampling=pb.SamplingParams(prompt_logprobs=2, n=n)
    )
    events = await stream(gateway, request)
    assert scheduler.sequences[0].submit.sampling.num_prompt_logprobs == 2
    kinds = [event.WhichOneof("event") for event in events]
    assert kinds == ["accepted", "prompt_logprobs", "prompt_logprobs", "prompt_logprobs", *["delta"] * n, "finished"]
    want = [pb.TokenLogprobs(logprob=-i, top_token_ids=[i, 7], top_logprobs=[0, -i]) for i in range(1, 5)]
    parts = [event.prompt_logprobs for event in events if event.HasField("prompt_logprobs")]
    assert [each for part in parts for each in part.logprobs] == want
    assert [each for part in parts for each in part.token_ids] == [8, 7, 6, 5]
    assert [part.token_offset for part in parts] == [1, 3, 4]
    once = await gateway.inference.GenerateOnce(request)
    assert once.prompt_logprobs == pb.PromptLogprobs(token_offset=1, token_ids=[8, 7, 6, 5], logprobs=want)
    one = pb.GenerateRequest(token_ids=pb.TokenIds(ids=[9]), sampling=pb.SamplingParams(prompt_logprobs=0))
    scheduler.play = scheduler.echo
    assert not (await gateway.inference.GenerateOnce(one)).HasField("prompt_logprobs")


async def test_a_token_before_the_prompts_logprobs_is_a_fault(gateway: Any, scheduler: Any) -> None:
    async def play(sequence: Any) -> None:
        await send_part(scheduler, prompt_part(sequence, 1, 1))
        await sequence.tokens(7)

    scheduler.play = play
    request = pb.GenerateRequest(prompt="hallo", sampling=pb.SamplingParams(prompt_logprobs=2))
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stream(gateway, request)
    assert failure_of(caught.value)[1] == "ENGINE_FAULT"
