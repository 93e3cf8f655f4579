"""What a gateway writes into its ledger, between real clients and a scripted scheduler."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
import sqlalchemy as sa

from gateway import server
from gateway.output import Output
from gateway.stream import Stream
from tercet.errors import ConfigError, LedgerError, QueueFullError
from tercet.failure import failure_to_proto
from tercet.ledger.ledger import Ledger
from tercet.ledger.record import from_line
from tercet.ledger.row import STAGES, Outcome, Row
from tercet.ledger.tables import refusals, requests
from tercet.mesh.v1 import scheduler_pb2, sequence_pb2
from tercet.sections import LedgerSettings, TenantsSettings
from tercet.tenants.plan import TenantPlan
from tercet.tenants.store import Store
from tercet.v1 import inference_pb2 as pb
from tercet.v1 import operations_pb2

from .conftest import Gateway, config_for, start_gateway, stop_gateway
from .guarded_gateway import Headers, bearer

HELLO = "hello"  # one token, and with the end token two


class Books:
    """A gateway that keeps a ledger, and what is in that."""

    def __init__(self, gateway: Gateway, scheduler: Any, path: Path) -> None:
        self.gateway = gateway
        self.scheduler = scheduler
        self._path = path
        self._ledger = Ledger(str(path), time.time)

    def journals(self) -> list[Path]:
        """Those files of the gateway's journal that have something in them."""
        return [each for each in self._path.parent.glob("*.journal") if each.stat().st_size]

    def rows(self) -> list[Any]:
        """All requests, in the order of their arrival."""
        return list(self._ledger.read(sa.select(requests).order_by(requests.c.number)))

    def refusals(self) -> list[Any]:
        return list(self._ledger.read(sa.select(refusals)))

    async def row(self, request_id: str) -> Any:
        """That of a request, once it has ended."""
        while True:
            for each in await asyncio.to_thread(self.rows):
                if each.request_id == request_id and each.outcome != Outcome.OPEN.value:
                    return each
            await asyncio.sleep(0.01)

    async def generate(self, request_id: str, **fields: Any) -> list[int]:
        """The ids that a client gets."""
        ids: list[int] = []
        async for event in self.gateway.inference.Generate(pb.GenerateRequest(request_id=request_id, **fields)):
            ids += event.delta.token_ids
        return ids


@pytest.fixture
def ledger_settings() -> dict[str, Any]:
    """Of the gateway; override to change."""
    return {}


@pytest.fixture
async def books(
    scheduler: Any, model_path: Path, tmp_path: Path, ledger_settings: dict[str, Any]
) -> AsyncIterator[Books]:
    path = tmp_path / "ledger.db"
    ledger = LedgerSettings(database=str(path), gpu_hour_price=7.2, **ledger_settings)
    config = config_for(model_path, scheduler.port, drain_seconds=0.3)
    gateway = await start_gateway(dataclasses.replace(config, ledger=ledger))
    await gateway.until_ready()
    made = Books(gateway, scheduler, path)
    yield made
    await stop_gateway(gateway)
    made._ledger.close()


def accounted(reason: int, **fields: Any) -> Any:
    """The end of a sequence of four tokens that took half a second of the GPU."""
    account = scheduler_pb2.Account(
        cached_tokens=3, blocks_used=5, blocks_freed=4, queue_us=2000, generated_tokens=4, gpu_us=500_000
    )
    return scheduler_pb2.SequenceEnd(reason=reason, account=account, **fields)


async def four_tokens(sequence: Any) -> None:
    """Four tokens in two messages, with all that there is to say of them."""
    for output in sequence.outputs:
        await output.tokens(5, 6)
    await asyncio.sleep(0.005)
    for output in sequence.outputs:
        await output.tokens(7, 8, end=accounted(sequence_pb2.END_REASON_LENGTH))


async def tokens_until_error(call: Any) -> int:
    """How many tokens still come before the error that ends the call."""
    received = 0
    with pytest.raises(grpc.aio.AioRpcError):
        while True:
            received += len((await call.read()).delta.token_ids)
    return received


async def forever(sequence: Any) -> None:
    while not sequence.cancelled.is_set():
        await sequence.tokens(5)
        await asyncio.sleep(0.001)


async def test_a_request_that_was_served(books: Books, model: Any) -> None:
    books.scheduler.play = four_tokens
    books.scheduler.promise = {"traffic_class": "rag", "ttft_target_us": 10**9, "gap_target_us": 10**9}
    before = time.time()
    assert await books.generate("served", prompt=HELLO * 2) == [5, 6, 7, 8]
    row = await books.row("served")
    assert (row.tenant, row.traffic_class, row.model, row.revision) == ("", "rag", model.name, model.revision)
    assert before <= row.arrived_at <= time.time()
    assert (row.outcome, row.reason, row.outputs, row.slo) == ("completed", "length", 1, "met")
    assert (row.prompt_tokens, row.cached_tokens) == (2, 3)
    assert (row.generated_tokens, row.delivered_tokens, row.wasted_tokens) == (4, 4, 0)
    assert row.queue_s == 0.002
    assert 0 < row.ttft_s < row.total_s
    assert 0 < row.tpot_s <= row.largest_gap_s < row.total_s
    stages = [getattr(row, f"{name}_s") for name in STAGES]
    assert sum(stages) == pytest.approx(row.total_s)
    assert row.decode_s > 0
    # The scheduler's word, and no more than what the gateway waited.
    assert row.waiting_s <= 0.002
    assert row.gpu_s == 0.5
    # Half a second of an hour that costs 7.2.
    assert row.cost == pytest.approx(0.001)


def test_times_between_tokens_are_those_of_each_output(model: Any) -> None:
    now = 10.0
    outputs = [Output(model.tokenizer.detokenizer([]), stop_strings=(), stop_token_ids=frozenset()) for _ in range(2)]
    stream = Stream(outputs, max_tokens_held=100, clock=lambda: now)
    assert (stream.first_token_at, stream.tpot_s, stream.largest_gap_s) == (None, None, None)
    for moment, index in ((11.0, 0), (11.5, 1), (12.0, 0), (14.0, 1), (14.25, 0)):
        now = moment
        stream.push(index, 97)
    # Of three tokens and two: 2.25 s and 1 s between those of the first, 2.5 s of the other.
    assert (stream.first_token_at, stream.largest_gap_s) == (11.0, 2.5)
    assert stream.tpot_s == (14.25 - 11.0) / 2


async def test_several_outputs_are_one_row(books: Books) -> None:
    books.scheduler.play = four_tokens
    assert len(await books.generate("three", prompt=HELLO, sampling=pb.SamplingParams(n=3))) == 12
    row = await books.row("three")
    assert (row.outputs, row.generated_tokens, row.delivered_tokens, row.gpu_s) == (3, 12, 12, 1.5)
    # They come side by side.
    assert row.tpot_s < row.total_s / 3


@pytest.mark.parametrize(
    ("promise", "slo"),
    [
        ({"ttft_target_us": 1}, "ttft"),
        ({"gap_target_us": 1}, "gap"),
        ({"ttft_target_us": 1, "gap_target_us": 1}, "ttft+gap"),
        ({}, "met"),
    ],
)
async def test_which_part_of_a_promise_was_broken(books: Books, promise: dict[str, int], slo: str) -> None:
    books.scheduler.play = four_tokens
    books.scheduler.promise = promise
    await books.generate("late", prompt=HELLO)
    assert (await books.row("late")).slo == slo


async def test_an_answer_in_one_piece(books: Books) -> None:
    books.scheduler.play = four_tokens
    answer = await books.gateway.inference.GenerateOnce(pb.GenerateRequest(prompt=HELLO, request_id="once"))
    assert len(answer.outputs[0].token_ids) == 4
    row = await books.row("once")
    assert (row.outcome, row.generated_tokens, row.delivered_tokens) == ("completed", 4, 4)


async def test_what_runs_has_an_open_row_before_its_client_hears_of_it(books: Books, until: Any) -> None:
    books.scheduler.play = lambda sequence: sequence.cancelled.wait()
    call = books.gateway.inference.Generate(pb.GenerateRequest(prompt=HELLO, request_id="running"))
    event = await call.read()
    assert event.HasField("accepted")
    (journal,) = books.journals()
    assert b'"running"' in journal.read_bytes()

    async def written() -> bool:
        return bool(await asyncio.to_thread(books.rows))

    await until(written)
    (row,) = books.rows()
    assert (row.request_id, row.outcome, row.prompt_tokens, row.generated_tokens) == ("running", "open", 1, None)
    call.cancel()
    assert (await books.row("running")).outcome == "cancelled"
    assert len(books.rows()) == 1


async def test_a_client_that_leaves(books: Books) -> None:
    books.scheduler.play = forever
    call = books.gateway.inference.Generate(pb.GenerateRequest(prompt=HELLO, request_id="left"))
    received = 0
    for _ in range(6):
        received += len((await call.read()).delta.token_ids)
    call.cancel()
    row = await books.row("left")
    assert (row.outcome, row.reason, row.slo) == ("cancelled", "client", None)
    # What was on its way when it left has been delivered to its connection.
    assert received <= row.delivered_tokens <= row.generated_tokens
    assert row.wasted_tokens == row.generated_tokens - row.delivered_tokens
    assert (row.cached_tokens, row.gpu_s) == (7, 0.0)


async def test_an_operator_who_cancels(books: Books) -> None:
    books.scheduler.play = forever
    call = books.gateway.inference.Generate(pb.GenerateRequest(prompt=HELLO, request_id="stopped"))
    await call.read()
    received = 0
    cancel = operations_pb2.CancelGenerationRequest(request_id="stopped")
    assert (await books.gateway.operations.CancelGeneration(cancel)).found
    received += await tokens_until_error(call)
    row = await books.row("stopped")
    assert (row.outcome, row.reason) == ("cancelled", "REQUEST_CANCELLED")
    # Its client reads to the end: to the last token the same.
    assert row.delivered_tokens == received


async def test_a_deadline_that_passes(books: Books, until_late: Any) -> None:
    books.scheduler.play = forever
    request = pb.GenerateRequest(prompt=HELLO, request_id="late")
    await until_late(lambda timeout_s: books.gateway.inference.Generate(request, timeout=timeout_s))
    row = await books.row("late")
    assert (row.outcome, row.reason, row.slo) == ("expired", "DEADLINE_PASSED", "unserved")


async def test_a_client_that_leaves_before_it_is_accepted(books: Books) -> None:
    books.scheduler.accept = False
    call = books.gateway.inference.Generate(pb.GenerateRequest(prompt=HELLO, request_id="early"))
    await books.scheduler.submitted.wait()
    assert books.rows() == []
    call.cancel()
    row = await books.row("early")
    assert (row.outcome, row.reason, row.prompt_tokens, row.delivered_tokens) == ("cancelled", "client", 1, 0)


async def test_what_it_had_cost_is_known_of_a_scheduler_that_is_lost(books: Books) -> None:
    books.scheduler.play = forever
    call = books.gateway.inference.Generate(pb.GenerateRequest(prompt=HELLO, request_id="half"))
    await call.read()
    (sequence,) = books.scheduler.sequences
    account = scheduler_pb2.Account(cached_tokens=1, queue_us=5_000, gpu_us=2_000_000, cpu_us=500_000)
    parted = [scheduler_pb2.Parted(sequence_id=sequence.sequence_id, account=account)]
    parted.append(scheduler_pb2.Parted(sequence_id=987_654, account=account))
    await books.scheduler.send(scheduler_pb2.SchedulerMessage(costs=scheduler_pb2.CostsSoFar(sequences=parted)))
    # Behind it there are tokens.
    await call.read()
    await asyncio.sleep(0.05)
    await books.scheduler.stop()
    await tokens_until_error(call)
    row = await books.row("half")
    assert (row.outcome, row.reason) == ("lost", "SCHEDULER_LOST")
    assert (row.gpu_s, row.cpu_s, row.cached_tokens, row.queue_s) == (2.0, 0.5, 1, 0.005)
    # Two seconds of an hour that costs 7.2.
    assert row.cost == pytest.approx(0.004)


async def test_a_scheduler_that_is_lost(books: Books) -> None:
    books.scheduler.play = forever
    call = books.gateway.inference.Generate(pb.GenerateRequest(prompt=HELLO, request_id="lost"))
    received = 0
    for _ in range(4):
        received += len((await call.read()).delta.token_ids)
    await books.scheduler.stop()
    received += await tokens_until_error(call)
    row = await books.row("lost")
    assert (row.outcome, row.reason, row.delivered_tokens) == ("lost", "SCHEDULER_LOST", received)
    # What the scheduler would have said nobody knows.
    assert (row.cached_tokens, row.gpu_s, row.cost, row.queue_s) == (None, None, None, None)


async def test_refusals_are_counted(books: Books, until: Any) -> None:
    async def refused(**fields: Any) -> None:
        with pytest.raises(grpc.aio.AioRpcError):
            await books.gateway.inference.GenerateOnce(pb.GenerateRequest(**fields))

    for _ in range(3):
        await refused(prompt=HELLO, model="another", traffic_class="batch")
    # Neither a class nor a model that clients make up is kept.
    await refused(prompt="", traffic_class="made-up")
    books.scheduler.refuse = failure_to_proto(QueueFullError("full", retry_after_s=1.0))
    for number in range(4):
        await refused(prompt=HELLO, request_id=f"full-{number}", traffic_class="rag")

    async def counted() -> bool:
        return sum(each.count for each in await asyncio.to_thread(books.refusals)) == 8

    await until(counted)
    sums: dict[tuple[str, ...], int] = {}
    for each in books.refusals():
        name = (each.tenant, each.traffic_class, each.model, each.reason)
        sums[name] = sums.get(name, 0) + each.count
    served = books.scheduler.model.name
    assert sums == {
        ("", "batch", "", "MODEL_NOT_FOUND"): 3,
        ("", "", "", "INVALID_FIELD"): 1,
        ("", "rag", served, "QUEUE_FULL"): 4,
    }
    assert {each.request_id for each in books.refusals() if each.reason == "QUEUE_FULL"} <= {
        f"full-{number}" for number in range(4)
    }
    assert books.rows() == []


async def test_a_gateway_that_stops_leaves_nothing_open(books: Books, until: Any) -> None:
    books.scheduler.play = forever
    books.scheduler.answer_cancels = False
    calls = [
        books.gateway.inference.Generate(pb.GenerateRequest(prompt=HELLO, request_id=f"r{number}"))
        for number in range(5)
    ]
    for call in calls:
        await call.read()

    async def all_open() -> bool:
        return [each.outcome for each in await asyncio.to_thread(books.rows)] == ["open"] * 5

    await until(all_open)
    books.gateway.stopping.set()
    await books.gateway.task
    # Each by the error that its client got.
    assert {(each.outcome, each.reason) for each in books.rows()} == {("failed", "DRAINING")}
    (alive,) = books._ledger.read(sa.text("SELECT count(*) FROM gateways WHERE ended_at IS NULL"))  # type: ignore[arg-type]
    assert alive[0] == 0
    assert books.journals() == []


@pytest.fixture
def hung(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """While it is cleared, the database does not answer; it is, once the gateway runs."""
    going = threading.Event()
    going.set()
    write = Ledger.write

    def wait_and_write(*arguments: Any) -> None:
        going.wait(60)
        write(*arguments)

    monkeypatch.setattr(Ledger, "write", wait_and_write)
    return going


async def test_a_database_that_hangs_stops_nobody(hung: threading.Event, books: Books) -> None:
    hung.clear()
    for number in range(5):
        await books.generate(f"r{number}", prompt=HELLO)
    assert books.rows() == []
    # Should it be killed now, they are there all the same.
    (journal,) = books.journals()
    kept = [from_line(line) for line in journal.read_bytes().splitlines()]
    assert [(each.request_id, each.outcome.value) for each in kept if isinstance(each, Row)] == [
        (f"r{number}", outcome) for number in range(5) for outcome in ("open", "completed")
    ]
    hung.set()
    for number in range(5):
        assert (await books.row(f"r{number}")).outcome == "completed"


@pytest.mark.parametrize("ledger_settings", [{"max_waiting_rows": 3}])
async def test_what_there_is_no_room_for_is_refused_and_nothing_is_lost(
    hung: threading.Event, books: Books, until: Any
) -> None:
    hung.clear()
    for number in range(3):
        await books.generate(f"r{number}", prompt=HELLO)
    for _ in range(2):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await books.generate("too-many", prompt=HELLO)
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        assert "ledger.max_waiting_rows" in (caught.value.details() or "")
    hung.set()
    for number in range(3):
        assert (await books.row(f"r{number}")).outcome == "completed"
    # There is room again, for as many as before.
    for number in range(3, 9):
        await books.generate(f"r{number}", prompt=HELLO)
        await books.row(f"r{number}")
    assert len(books.rows()) == 9

    async def both_counted() -> bool:
        return sum(each.count for each in await asyncio.to_thread(books.refusals)) == 2

    await until(both_counted)
    assert {each.reason for each in books.refusals()} == {"LEDGER_LOST"}


async def test_a_gateway_without_its_ledger_does_not_start(scheduler: Any, model_path: Path, tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"no database at all" * 100)
    for where in (tmp_path / "x", tmp_path / "nowhere" / "ledger.db"):
        config = dataclasses.replace(config_for(model_path, scheduler.port), ledger=LedgerSettings(database=str(where)))
        with pytest.raises(LedgerError):
            await server.run(config, asyncio.Event())


async def test_a_gateway_that_cannot_listen_leaves_no_journal(books: Books, model_path: Path, tmp_path: Path) -> None:
    path = tmp_path / "other.db"
    config = dataclasses.replace(
        config_for(model_path, books.scheduler.port, port=books.gateway.port),
        ledger=LedgerSettings(database=str(path)),
    )
    with pytest.raises(ConfigError, match=r"gateway\.port"):
        await server.run(config, asyncio.Event())
    assert [name for name in os.listdir(tmp_path) if name.startswith("other.db")] == ["other.db"]


async def test_a_ledger_that_nobody_has_named_and_that_cannot_be_is_named(
    scheduler: Any, model_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "state").write_text("")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    for settings in (LedgerSettings(), LedgerSettings(database="postgresql+psycopg://nobody@/none")):
        config = dataclasses.replace(config_for(model_path, scheduler.port), ledger=settings)
        with pytest.raises(LedgerError, match=r"state/tercet cannot be made: .*; set ledger\."):
            await server.run(config, asyncio.Event())


async def test_rows_are_of_tenants(scheduler: Any, model_path: Path, tmp_path: Path, until: Any) -> None:
    store = Store(str(tmp_path / "tenants.db"), time.time)
    store.create()
    key = store.add("alice", TenantPlan(), operator=False)
    store.close()
    path = tmp_path / "ledger.db"
    config = dataclasses.replace(
        config_for(model_path, scheduler.port),
        tenants=TenantsSettings(store=str(tmp_path / "tenants.db")),
        ledger=LedgerSettings(database=str(path)),
    )
    gateway = await start_gateway(config)
    books = Books(gateway, scheduler, path)

    async def ask(headers: Headers) -> str:
        request = pb.GenerateRequest(prompt=HELLO, request_id="hers")
        try:
            await gateway.inference.GenerateOnce(request, metadata=headers)
        except grpc.aio.AioRpcError as error:
            return error.code().name
        return "OK"

    async def served() -> bool:
        return await ask(bearer(key)) == "OK"

    await until(served)
    assert await ask(()) == await ask(bearer("tct_wrong")) == "UNAUTHENTICATED"
    row = await books.row("hers")
    assert (row.tenant, row.outcome) == ("alice", "completed")
    await stop_gateway(gateway)
    unknown = [each for each in books.refusals() if each.reason == "UNAUTHENTICATED"]
    # Who they are nobody knows, and what they say of themselves is not kept.
    assert {(each.tenant, each.request_id) for each in unknown} == {("", "")}
    assert sum(each.count for each in unknown) == 2
    books._ledger.close()
