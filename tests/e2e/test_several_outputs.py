"""Several outputs of one prompt through three real processes: each is what it would be alone."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from typing import Any

import pytest

from tercet import errors
from tercet.client import Accepted, Answer, AsyncClient, Delta

from .conftest import ROOT, Mesh

pytestmark = pytest.mark.e2e

PROMPT = "The lighthouse keeper looked at the sea and said"
# Of a worker on a CPU.
BLOCK_SIZE = 16
LONG_PROMPT = " ".join(f"Item {number} costs {number * 7 % 101} francs." for number in range(40))


async def alone(client: AsyncClient, prompt: str, seeds: list[int], **options: Any) -> list[Answer]:
    return [await client.generate_once(prompt, seed=seed, **options) for seed in seeds]


@pytest.mark.parametrize("prompt", ["Once", PROMPT, LONG_PROMPT], ids=["one block", "some", "long"])
async def test_three_outputs_equal_three_requests_with_the_seeds_after_it(client: AsyncClient, prompt: str) -> None:
    options = {"temperature": 0.9, "top_p": 0.95, "max_tokens": 24, "ignore_eos": True}
    together = await client.generate(prompt, n=3, seed=11, **options).answer()
    once = await client.generate_once(prompt, n=3, seed=11, **options)
    singles = await alone(client, prompt, [11, 12, 13], **options)
    assert [(output.text, output.token_ids) for output in together.outputs] == [
        (single.text, single.token_ids) for single in singles
    ]
    assert once.outputs == together.outputs
    assert len({output.token_ids for output in together.outputs}) > 1
    assert together.finished.usage.completion_tokens == 72


async def test_seeds_wrap_around(client: AsyncClient) -> None:
    options = {"temperature": 1.0, "max_tokens": 8, "ignore_eos": True}
    together = await client.generate_once(PROMPT, n=2, seed=2**64 - 1, **options)
    singles = await alone(client, PROMPT, [2**64 - 1, 0], **options)
    assert [output.token_ids for output in together.outputs] == [single.token_ids for single in singles]


async def test_greedy_outputs_are_all_the_same(client: AsyncClient) -> None:
    together = await client.generate_once(PROMPT, n=3, temperature=0.0, max_tokens=12)
    (single,) = await alone(client, PROMPT, [0], temperature=0.0, max_tokens=12)
    assert [output.token_ids for output in together.outputs] == [single.token_ids] * 3


async def test_outputs_interleave_while_they_grow(client: AsyncClient) -> None:
    events = [event async for event in client.generate(PROMPT, n=3, seed=1, max_tokens=16, ignore_eos=True)]
    order = [event.output_index for event in events if isinstance(event, Delta)]
    # None waits for another to end.
    first_ends = len(order) - 1 - order[::-1].index(0)
    assert {order.index(1), order.index(2)} < set(range(first_ends))


async def test_a_stop_string_ends_one_output_and_the_others_go_on(client: AsyncClient, mesh: Mesh) -> None:
    options = {"temperature": 1.0, "seed": 21, "max_tokens": 32, "ignore_eos": True}
    free = await client.generate_once(PROMPT, n=3, **options)
    # A piece of the second output's text that the others do not have.
    second = free.outputs[1].text
    others = free.outputs[0].text + free.outputs[2].text
    stop = next(second[at : at + 6] for at in range(8, len(second) - 6) if second[at : at + 6] not in others)
    stopped = await client.generate(PROMPT, n=3, stop=stop, **options).answer()
    assert [output.stop for output in stopped.outputs] == [None, stop, None]
    assert stopped.outputs[1].text == second[: second.index(stop)]
    assert (stopped.outputs[0], stopped.outputs[2]) == (free.outputs[0], free.outputs[2])
    assert stopped.finished.usage.kv_blocks_used is not None
    await asyncio.to_thread(mesh.wait_idle)


async def test_usage_counts_a_block_that_outputs_share_once(client: AsyncClient, mesh: Mesh) -> None:
    await asyncio.to_thread(mesh.wait_idle)
    options = {"temperature": 1.0, "max_tokens": 20, "ignore_eos": True}
    prompt = f"Shared by four. {LONG_PROMPT}"
    (single,) = await alone(client, prompt, [7], **options)
    held = single.finished.usage
    assert held.kv_blocks_used is not None
    together = (await client.generate(prompt, n=4, seed=7, **options).answer()).finished.usage
    assert together.kv_blocks_used == together.kv_blocks_freed
    # Each other adds the blocks that its own 19 tokens in the cache begin or are in.
    assert held.kv_blocks_used < together.kv_blocks_used <= held.kv_blocks_used + 3 * 3
    once = (await client.generate(prompt, n=4, seed=7, max_tokens=1).answer()).finished.usage
    assert once.kv_blocks_used == once.kv_blocks_freed == -(-once.prompt_tokens // BLOCK_SIZE)


async def test_ten_requests_of_three_beside_each_other(client: AsyncClient, mesh: Mesh) -> None:
    options = {"temperature": 0.8, "max_tokens": 12, "ignore_eos": True}

    async def ask(seed: int) -> Answer:
        return await client.generate(f"{seed}: {PROMPT}", n=3, seed=seed, **options).answer()

    answers = await asyncio.gather(*(ask(seed) for seed in range(0, 100, 10)))
    for seed in (0, 50, 90):
        singles = await alone(client, f"{seed}: {PROMPT}", [seed, seed + 1, seed + 2], **options)
        found = answers[seed // 10].outputs
        assert [output.token_ids for output in found] == [single.token_ids for single in singles]
    await asyncio.to_thread(mesh.wait_idle)


async def test_leaving_cancels_every_output(client: AsyncClient, mesh: Mesh) -> None:
    def tokens() -> int:
        return sum(worker.tokens for worker in mesh.fleet().workers)

    before, deltas = await asyncio.to_thread(tokens), 0
    async with client.generate(PROMPT, n=4, max_tokens=1000, ignore_eos=True) as generation:
        async for event in generation:
            deltas += isinstance(event, Delta)
            if deltas == 12:
                break
    await asyncio.to_thread(mesh.wait_idle)
    # Not even one of the four ran to its end.
    assert deltas == 12
    assert await asyncio.to_thread(tokens) - before < 1000


async def test_class_and_priority_are_taken_and_a_class_that_is_not_known_is_refused(client: AsyncClient) -> None:
    answer = await client.generate_once(PROMPT, max_tokens=2, traffic_class="batch", priority=5)
    assert len(answer.token_ids) == 2
    with pytest.raises(errors.InvalidFieldError) as caught:
        await client.generate_once(PROMPT, max_tokens=2, traffic_class="express")
    assert caught.value.metadata["field"] == "traffic_class"
    with pytest.raises(errors.InvalidFieldError) as caught:
        await client.generate_once(PROMPT, n=129)
    assert caught.value.metadata["field"] == "sampling.n"


async def test_accepted_names_the_first_seed(client: AsyncClient) -> None:
    events = [event async for event in client.generate(PROMPT, n=2, temperature=1.0, max_tokens=6, ignore_eos=True)]
    assert isinstance(events[0], Accepted)
    second = "".join(event.text for event in events if isinstance(event, Delta) and event.output_index == 1)
    (single,) = await alone(
        client, PROMPT, [(events[0].seed + 1) % 2**64], temperature=1.0, max_tokens=6, ignore_eos=True
    )
    assert single.text == second


def test_the_command_prints_them_under_headings(mesh: Mesh) -> None:
    arguments = ["generate", PROMPT, "--raw", "-n", "2", "--seed", "3", "--max-tokens", "6", "--class", "rag"]
    done = subprocess.run(
        [sys.executable, "-m", "tercet", *arguments, "--address", mesh.address, "--json"],
        capture_output=True, text=True, timeout=60, cwd=ROOT, check=True,
    )  # fmt: skip
    outputs = json.loads(done.stdout)["outputs"]
    done = subprocess.run(
        [sys.executable, "-m", "tercet", *arguments, "--address", mesh.address],
        capture_output=True, text=True, timeout=60, cwd=ROOT, check=True,
    )  # fmt: skip
    assert done.stdout == f"--- 1 of 2\n{outputs[0]['text']}\n--- 2 of 2\n{outputs[1]['text']}\n"


async def test_the_plan_log_can_be_had_through_the_gateway(client: AsyncClient) -> None:
    await client.generate_once(PROMPT, max_tokens=4)
    assert b"".join([part async for part in client.dump_plan_log()])
