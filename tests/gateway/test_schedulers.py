"""A gateway with two schedulers: what runs at one that goes is handed to the next, with all that its client has."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from gateway import schedulers
from gateway.books import Books
from gateway.served_model import ServedModel
from tercet.ledger.row import Row
from tercet.mesh.v1 import scheduler_pb2, sequence_pb2
from tercet.sections import SchedulerSettings
from tercet.v1 import inference_pb2 as pb

from .conftest import FakeScheduler, Gateway, config_for, start_gateway, stop_gateway


class Two:
    """The gateway, the scheduler that has a worker, and the one that has none yet."""

    def __init__(self, gateway: Gateway, leader: FakeScheduler, next_one: FakeScheduler) -> None:
        self.gateway = gateway
        self.leader = leader
        self.next_one = next_one

    async def say_goodbye(self, **accounts: Any) -> None:
        """The leader leaves, and the next one has its worker."""
        self.leader.workers_live = 0
        parted = [
            scheduler_pb2.Parted(sequence_id=each.sequence_id, account=scheduler_pb2.Account(**accounts))
            for each in self.leader.sequences
        ]
        await self.leader.send(scheduler_pb2.SchedulerMessage(goodbye=scheduler_pb2.Goodbye(parted=parted)))

    async def take_over(self) -> None:
        self.next_one.workers_live = 1
        await self.next_one.send_pools()


@pytest.fixture
def worker_grace_s() -> float:
    """How long accepted requests wait for a worker; override to change."""
    return 30.0


@pytest.fixture
async def two(model: ServedModel, model_path: Path, worker_grace_s: float) -> AsyncIterator[Two]:
    leader, next_one = FakeScheduler(model), FakeScheduler(model)
    next_one.workers_live = 0
    for each in (leader, next_one):
        await each.start()
    addresses = tuple(f"127.0.0.1:{each.port}" for each in (leader, next_one))
    config = config_for(model_path, leader.port, scheduler=addresses)
    grace = SchedulerSettings(worker_grace_seconds=worker_grace_s)
    gateway = await start_gateway(dataclasses.replace(config, scheduler=grace))
    await gateway.until_ready()
    yield Two(gateway, leader, next_one)
    await stop_gateway(gateway)
    for each in (leader, next_one):
        await each.stop()


async def _tokens(call: Any, count: int) -> list[int]:
    """The next ones, so many at least."""
    token_ids: list[int] = []
    while len(token_ids) < count:
        event = await asyncio.wait_for(call.read(), 20)
        token_ids += event.delta.token_ids
    return token_ids


def _begins(*token_ids: int) -> Callable[[Any], Awaitable[None]]:
    async def play(sequence: Any) -> None:
        await sequence.tokens(*token_ids)

    return play


def _ends(*token_ids: int) -> Callable[[Any], Awaitable[None]]:
    async def play(sequence: Any) -> None:
        await sequence.tokens(*token_ids)
        await sequence.end(sequence_pb2.END_REASON_LENGTH)

    return play


async def test_the_next_one_is_told_all_that_came_and_what_it_cost(two: Two) -> None:
    two.leader.play, two.next_one.play = _begins(5, 6), _ends(7)
    call = two.gateway.inference.Generate(pb.GenerateRequest(prompt="x", sampling=pb.SamplingParams(seed=9)))
    assert await _tokens(call, 2) == [5, 6]
    await two.say_goodbye(cached_tokens=1, gpu_us=70)
    await two.take_over()
    assert await _tokens(call, 1) == [7]
    (before,), (after,) = two.leader.sequences, two.next_one.sequences
    (begun,) = after.submit.begun
    assert list(begun.token_ids) == [5, 6]
    assert not begun.ended
    assert (begun.account.cached_tokens, begun.account.gpu_us) == (1, 70)
    same = scheduler_pb2.Submit()
    same.CopyFrom(after.submit)
    del same.begun[:]
    assert same == before.submit


async def test_the_next_one_is_told_what_it_had_cost_at_one_that_died(
    two: Two, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows: list[Row] = []
    close = Books.close
    monkeypatch.setattr(Books, "close", lambda books, row, *others: (rows.append(row), close(books, row, *others)))
    two.leader.play, two.next_one.play = _begins(5, 6), _ends(7)
    call = two.gateway.inference.Generate(pb.GenerateRequest(prompt="x"))
    assert await _tokens(call, 2) == [5, 6]
    (sequence,) = two.leader.sequences
    account = scheduler_pb2.Account(cached_tokens=1, gpu_us=70, cpu_us=30)
    costs = scheduler_pb2.CostsSoFar(
        sequences=[scheduler_pb2.Parted(sequence_id=sequence.sequence_id, account=account)]
    )
    await two.leader.send(scheduler_pb2.SchedulerMessage(costs=costs))
    await sequence.tokens(8)
    assert await _tokens(call, 1) == [8]
    await two.leader.stop()
    await two.take_over()
    assert await _tokens(call, 1) == [7]
    (after,) = two.next_one.sequences
    (begun,) = after.submit.begun
    assert list(begun.token_ids) == [5, 6, 8]
    assert begun.account == account
    while await asyncio.wait_for(call.read(), 20) is not grpc.aio.EOF:
        pass
    (row,) = rows
    assert row.takeovers == 1


async def test_an_answer_that_was_complete_has_its_cost_from_the_goodbye(two: Two, model: ServedModel) -> None:
    async def play(sequence: Any) -> None:
        await sequence.tokens(*model.tokenizer.encode("one END two", add_bos=False))
        await sequence.outputs[0].stopped.wait()
        await two.say_goodbye(cached_tokens=1, queue_us=2_000_000)

    two.leader.play, two.leader.answer_cancels = play, False
    call = two.gateway.inference.Generate(pb.GenerateRequest(prompt="x", stop=pb.StopConditions(strings=["END"])))
    while (event := await asyncio.wait_for(call.read(), 20)) is not grpc.aio.EOF:
        last = event
    assert not last.finished.usage.incomplete
    assert last.finished.usage.cached_tokens == 1
    assert not two.next_one.sequences


async def test_a_new_request_waits_for_the_next_one(two: Two) -> None:
    two.next_one.play = _ends(7)
    await two.say_goodbye()
    await two.gateway.until_ready(False)
    asking = asyncio.create_task(_once(two, "y"))
    await asyncio.sleep(0.1)
    assert not asking.done()
    await two.take_over()
    assert list((await asyncio.wait_for(asking, 20)).outputs[0].token_ids) == [7]
    assert not two.next_one.sequences[0].submit.begun


async def _once(two: Two, prompt: str) -> pb.GenerateResult:
    return await two.gateway.inference.GenerateOnce(pb.GenerateRequest(prompt=prompt))


async def test_one_that_has_lost_its_workers_to_another_is_left(two: Two) -> None:
    two.leader.play, two.next_one.play = _begins(5, 6), _ends(7)
    call = two.gateway.inference.Generate(pb.GenerateRequest(prompt="x"))
    assert await _tokens(call, 2) == [5, 6]
    two.leader.workers_live = 0
    await two.leader.send_pools()
    await two.gateway.until_ready(False)
    # It may have them back: nobody else has them.
    assert not two.next_one.sequences
    await two.take_over()
    assert await _tokens(call, 1) == [7]
    assert list(two.next_one.sequences[0].submit.begun[0].token_ids) == [5, 6]


async def test_one_that_hangs_is_left_for_the_one_that_leads_since(two: Two) -> None:
    two.leader.play, two.next_one.play = _begins(5, 6), _ends(7)
    await two.leader.send_standing(100)
    call = two.gateway.inference.Generate(pb.GenerateRequest(prompt="x"))
    assert await _tokens(call, 2) == [5, 6]
    # The first one says nothing any more, neither that it has lost its worker.
    await two.next_one.send_standing(101)
    await two.take_over()
    assert await _tokens(call, 1) == [7]
    assert list(two.next_one.sequences[0].submit.begun[0].token_ids) == [5, 6]
    # It is connected again, and says what it has said.
    assert list((await asyncio.wait_for(_once(two, "y"), 20)).outputs[0].token_ids) == [7]
    assert len(two.leader.sequences) == 1


async def test_one_that_began_to_lead_earlier_gets_nothing(two: Two) -> None:
    two.leader.play = _begins(5, 6)
    await two.leader.send_standing(101)
    call = two.gateway.inference.Generate(pb.GenerateRequest(prompt="x"))
    assert await _tokens(call, 2) == [5, 6]
    await two.next_one.send_standing(100)
    await two.take_over()
    two.leader.play = _ends(8)
    assert list((await asyncio.wait_for(_once(two, "y"), 20)).outputs[0].token_ids) == [8]
    assert not two.next_one.sequences


async def test_nobody_takes_over(two: Two, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedulers, "TAKE_OVER_S", 0.2)
    two.leader.play = _begins(5)
    call = two.gateway.inference.Generate(pb.GenerateRequest(prompt="x"))
    await _tokens(call, 1)
    await two.say_goodbye()
    assert await asyncio.wait_for(call.code(), 20) is grpc.StatusCode.UNAVAILABLE
    assert "no other took over" in await call.details()


async def test_the_next_one_has_no_worker_yet(two: Two, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedulers, "TAKE_OVER_S", 0.5)
    two.leader.play, two.next_one.play = _begins(5, 6), _ends(7)
    call = two.gateway.inference.Generate(pb.GenerateRequest(prompt="x"))
    await _tokens(call, 2)
    await two.next_one.send_standing(101)
    await two.say_goodbye()
    await asyncio.wait({asyncio.ensure_future(call.code())}, timeout=0.8)
    await two.take_over()
    assert await _tokens(call, 1) == [7]


@pytest.mark.parametrize("worker_grace_s", [1.0])
async def test_the_next_one_gets_no_worker(two: Two, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedulers, "TAKE_OVER_S", 0.5)
    two.leader.play = _begins(5)
    call = two.gateway.inference.Generate(pb.GenerateRequest(prompt="x"))
    await _tokens(call, 1)
    await two.next_one.send_standing(101)
    await two.say_goodbye()
    assert await asyncio.wait_for(call.code(), 20) is grpc.StatusCode.UNAVAILABLE
    assert "all workers were lost" in await call.details()


async def test_a_client_that_leaves_meanwhile_is_forgotten(two: Two) -> None:
    two.leader.play = _begins(5)
    call = two.gateway.inference.Generate(pb.GenerateRequest(prompt="x"))
    await _tokens(call, 1)
    await two.say_goodbye()
    call.cancel()
    await two.take_over()
    two.next_one.play = _ends(7)
    await asyncio.wait_for(_once(two, "y"), 20)
    assert [len(each.submit.begun) for each in two.next_one.sequences] in ([0], [1, 0])


async def test_a_refusal_of_one_that_stops_is_not_the_clients(two: Two) -> None:
    two.leader.refuse = sequence_pb2.Failure(reason="DRAINING", message="the scheduler is stopping")
    two.next_one.play = _ends(7)
    asking = asyncio.create_task(_once(two, "x"))
    await asyncio.sleep(0.1)
    await two.take_over()
    assert list((await asyncio.wait_for(asking, 20)).outputs[0].token_ids) == [7]
