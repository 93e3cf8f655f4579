"""Books close: what clients of all kinds count is what the ledger adds up to."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter, defaultdict
from typing import Any

import grpc
import grpc.aio
import pytest
import structlog

from gateway import call_end, generation
from tercet.errors import EngineFaultError, QueueFullError
from tercet.failure import failure_to_proto
from tercet.ledger.usage import usage
from tercet.mesh.v1 import scheduler_pb2, sequence_pb2
from tercet.refusal_lines import RefusalLines
from tercet.v1 import inference_pb2 as pb
from tercet.v1 import operations_pb2

from .test_books import Books as Kept
from .test_books import books as books  # so that pytest finds the fixtures here
from .test_books import ledger_settings as ledger_settings

REQUESTS = 120
KINDS = ("stream", "once", "leaves", "leaves_once", "cancelled", "late", "refused", "invalid", "fails", "stops")
ENDLESS = ("leaves", "leaves_once", "cancelled", "late")


class Play:
    """A scheduler that fails and ends requests as their ids say, and accounts for what it did."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        # Set when a request has been accepted: one whose client leaves before that may never reach the gateway.
        self.begun: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)

    async def __call__(self, sequence: Any) -> None:
        kind = sequence.submit.request_id.partition("-")[0]
        self.begun[sequence.submit.request_id].set()
        length = 10**6 if kind in ENDLESS else self._rng.randrange(1, 30)
        for _ in range(length):
            if sequence.cancelled.is_set():
                return
            for index, output in enumerate(sequence.outputs):
                await output.tokens(97 + index)
            await asyncio.sleep(self._rng.choice([0, 0, 0.002]))
        for output in sequence.outputs:
            account = scheduler_pb2.Account(generated_tokens=length, gpu_us=1000 * length)
            end = scheduler_pb2.SequenceEnd(reason=sequence_pb2.END_REASON_LENGTH, account=account)
            if kind == "fails":
                end.reason = sequence_pb2.END_REASON_FAILED
                end.failure.CopyFrom(failure_to_proto(EngineFaultError("broken")))
            await output.tokens(end=end)


class Clients:
    """Each makes one request, and all count the tokens that they get, by kind."""

    def __init__(self, books: Kept, play: Play, rng: random.Random) -> None:
        self._gateway = books.gateway
        self._play = play
        self._rng = rng
        self.tokens: Counter[str] = Counter()

    async def ask(self, kind: str, request_id: str) -> None:
        await asyncio.sleep(self._rng.random() * 0.3)
        sampling = pb.SamplingParams(n=self._rng.randrange(1, 4), temperature=-1.0 if kind == "invalid" else 1.0)
        request = pb.GenerateRequest(request_id=request_id, prompt="hello", sampling=sampling)
        if kind == "stops":
            request.stop.strings.append("aaa")
        with contextlib.suppress(grpc.aio.AioRpcError, asyncio.CancelledError):
            await (self._once if kind in ("once", "leaves_once") else self._stream)(kind, request)

    async def _once(self, kind: str, request: pb.GenerateRequest) -> None:
        call = self._gateway.inference.GenerateOnce(request)
        if kind == "leaves_once":
            await self._play.begun[request.request_id].wait()
            await asyncio.sleep(self._rng.random() * 0.05)
            call.cancel()
        answer = await call
        self.tokens[kind] += sum(len(each.token_ids) for each in answer.outputs)

    async def _stream(self, kind: str, request: pb.GenerateRequest) -> None:
        timeout = self._rng.random() * 0.3 + 0.2 if kind == "late" else None
        call = self._gateway.inference.Generate(request, timeout=timeout)
        leaves_after = self._rng.randrange(1, 10)
        while (event := await call.read()) is not grpc.aio.EOF:
            self.tokens[kind] += len(event.delta.token_ids)
            leaves_after -= 1
            if not leaves_after and kind == "leaves":
                call.cancel()
            if not leaves_after and kind == "cancelled":
                cancel = operations_pb2.CancelGenerationRequest(request_id=request.request_id)
                await self._gateway.operations.CancelGeneration(cancel)


@pytest.mark.parametrize("seed", range(3))
async def test_sums_are_what_clients_received(books: Kept, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(seed)
    books.scheduler.play = play = Play(rng)
    clients = Clients(books, play, rng)
    submit = books.scheduler._submit
    # Each refusal has its line.
    for where in (generation, call_end):
        monkeypatch.setattr(where, "_refusals", RefusalLines(structlog.get_logger(), "refused", lines=REQUESTS))

    def refuse_some(message: Any, outgoing: Any) -> None:
        refused = message.request_id.startswith("refused")
        books.scheduler.refuse = failure_to_proto(QueueFullError("full")) if refused else None
        submit(message, outgoing)

    books.scheduler._submit = refuse_some
    kinds = [rng.choice(KINDS) for _ in range(REQUESTS)]
    with structlog.testing.capture_logs() as logs:
        await asyncio.gather(*(clients.ask(kind, f"{kind}-{number}") for number, kind in enumerate(kinds)))
        books.gateway.stopping.set()
        await books.gateway.task
    seen = sum(each["event"] in ("request_ended", "call_refused") for each in logs)

    (total,) = usage(books._ledger, 0.0, 1e12)
    rows = {each.request_id: each for each in books.rows()}
    late = kinds.count("late")
    # One row for each that came, or one of the refusals; nothing is open, and nothing is counted twice. A deadline may
    # pass before a request comes.
    assert total.requests == seen
    assert REQUESTS - late <= seen <= REQUESTS
    assert total.open == 0
    assert total.refused - kinds.count("refused") - kinds.count("invalid") in range(late + 1)
    assert len(rows) == total.requests - total.refused
    assert total.generated_tokens == total.delivered_tokens + total.wasted_tokens

    def of(kind: str) -> list[Any]:
        return [each for name, each in rows.items() if name.partition("-")[0] == kind]

    for kind in KINDS:
        delivered = sum(each.delivered_tokens for each in of(kind))
        if kind in ("leaves", "late"):
            # What was on its way when they left was delivered to their connections.
            assert delivered >= clients.tokens[kind]
        else:
            assert delivered == clients.tokens[kind], kind
    outcomes = {kind: {each.outcome for each in of(kind)} for kind in KINDS}
    assert outcomes["stream"] == outcomes["once"] == outcomes["stops"] == {"completed"}
    assert outcomes["fails"] == {"failed"}
    assert outcomes["cancelled"] == outcomes["leaves_once"] == {"cancelled"}
    assert outcomes["leaves"] <= {"cancelled"}
    assert outcomes["late"] <= {"expired", "cancelled"}
    assert outcomes["refused"] == outcomes["invalid"] == set()
    # A millisecond for each token.
    for kind in ("stream", "once"):
        for each in of(kind):
            assert each.gpu_s == pytest.approx(each.generated_tokens / 1000)
