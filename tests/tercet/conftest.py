"""A small gateway that speaks the public contract and does what its prompt says."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from tercet import errors
from tercet.rpc import Server, abort
from tercet.tls.server import ServerTls
from tercet.v1 import inference_pb2 as pb
from tercet.v1 import inference_pb2_grpc, models_pb2, models_pb2_grpc, operations_pb2, operations_pb2_grpc

# Lets the tests here import their helpers by name.
sys.path.insert(0, str(Path(__file__).parent))


class FakeGateway(
    inference_pb2_grpc.InferenceServicer, models_pb2_grpc.ModelsServicer, operations_pb2_grpc.OperationsServicer
):
    """Prompts: ``count N`` streams N words, ``forever`` streams until cancelled, ``silent`` never answers, ``refuse``
    is refused with a typed error, ``raw status`` with an untyped one, ``torn`` ends without its last event. A chat is
    answered with the number of its messages and the last one's text. Of n outputs each repeats the first one's words,
    marked by its index and one word longer than the one before; they take turns."""

    def __init__(self) -> None:
        self.requests: list[pb.GenerateRequest] = []
        self.tokenized: list[pb.TokenizeRequest] = []
        self.max_tenants: list[int] = []
        # What the next calls that generate or tokenize end with, and what all that generate do behind Accepted.
        self.failures: list[errors.RequestError | grpc.StatusCode] = []
        self.fails_behind_accepted: errors.RequestError | None = None
        self.num_failed = 0
        self.failed = threading.Event()
        # Of such calls what time they had, in seconds, and by what key they came.
        self.time_left_s: list[float] = []
        self.keys: list[str] = []
        self.prompt_logprobs: list[pb.PromptLogprobs] = []
        self.cancelled = threading.Event()
        self.started = threading.Event()
        self.chat = True
        self.swap_blocks = 0
        self.live = True
        self.draining = self.late = self.hung = False
        self.traffic = operations_pb2.Traffic(epoch=1)
        self.traffic_error: errors.RequestError | None = None
        self.plan_log: list[bytes] = []
        self.plan_log_fails = False
        self.address = ""

    async def Generate(self, request, context):
        self.requests.append(request)
        self.started.set()
        await self._begin(context)
        kind = request.WhichOneof("input")
        if kind == "chat":
            messages = request.chat.messages
            words = [f"{len(messages)}:", f" {messages[-1].content}"]
        elif kind == "token_ids":
            words = [f"<{token}>" for token in request.token_ids.ids]
        elif request.prompt.startswith("count"):
            words = [f"{i} " for i in range(int(request.prompt.split()[1]))]
        else:
            words = []
        if request.prompt == "refuse":
            await abort(context, errors.QueueFullError("full up", metadata={"queued": "7"}, retry_after_s=1.5))
        if request.prompt == "raw status":
            await context.abort(grpc.StatusCode.DATA_LOSS, "gone")
        if request.prompt == "too late":
            await context.abort(grpc.StatusCode.CANCELLED, "CANCELLED")
        try:
            if request.prompt == "silent" or "silent" in words[-1:]:
                await asyncio.sleep(3600)
            accepted = pb.Accepted(request_id="r1", model="fake", seed=9, prompt_tokens=3, queue_position=4)
            yield pb.GenerateEvent(accepted=accepted)
            if self.fails_behind_accepted is not None:
                await abort(context, self.fails_behind_accepted)
            for part in self.prompt_logprobs if request.sampling.HasField("prompt_logprobs") else ():
                yield pb.GenerateEvent(prompt_logprobs=part)
            index = 0
            n = request.sampling.n or 1
            while request.prompt == "forever" or words[-1:] == [" forever"] or index < len(words):
                text = words[index] if index < len(words) else "again "
                yield pb.GenerateEvent(
                    delta=pb.Delta(seq=index * n, token_offset=index, text=text, token_ids=[100 + index])
                )
                for output in range(1, n):
                    delta = pb.Delta(seq=index * n + output, token_offset=index, output_index=output)
                    delta.text, delta.token_ids[:] = f"{output}:{text}", [1000 * output + index]
                    yield pb.GenerateEvent(delta=delta)
                index += 1
                await asyncio.sleep(0.001)
            for output in range(1, n):
                delta = pb.Delta(seq=index * n, token_offset=index, output_index=output, text="more", token_ids=[7])
                yield pb.GenerateEvent(delta=delta)
            if request.prompt != "torn":
                yield pb.GenerateEvent(finished=self._finished(index * n + n - 1, n))
            if request.prompt == "lost behind its end":
                await context.abort(grpc.StatusCode.UNAVAILABLE, "gone")
        except BaseException:
            self.cancelled.set()
            raise

    async def GenerateOnce(self, request, context):
        result = pb.GenerateResult(request_id="r1", model="fake", seed=9)
        outputs = [result.outputs.add() for _ in range(request.sampling.n or 1)]
        async for event in self.Generate(request, context):
            if event.WhichOneof("event") == "delta":
                outputs[event.delta.output_index].text += event.delta.text
                outputs[event.delta.output_index].token_ids.extend(event.delta.token_ids)
            elif event.WhichOneof("event") == "finished":
                for output, end in zip(outputs, event.finished.outputs, strict=True):
                    output.end.CopyFrom(end)
                result.usage.CopyFrom(event.finished.usage)
                result.timings.CopyFrom(event.finished.timings)
        return result

    async def _begin(self, context):
        self.time_left_s.append(context.time_remaining() or 0.0)
        self.keys.append(dict(context.invocation_metadata()).get("authorization", ""))
        if self.failures:
            failure = self.failures.pop(0)
            self.num_failed += 1
            self.failed.set()
            if isinstance(failure, grpc.StatusCode):
                await context.abort(failure, "gone")
            await abort(context, failure)

    async def Tokenize(self, request, context):
        self.tokenized.append(request)
        await self._begin(context)
        text = request.prompt or request.chat.messages[-1].content
        return pb.TokenizeResult(token_ids=[len(word) for word in text.split()], text=text)

    async def Detokenize(self, request, context):
        return pb.DetokenizeResult(text=" ".join(str(token) for token in request.token_ids))

    async def ListModels(self, request, context):
        return models_pb2.ListModelsResponse(models=[self._model()])

    async def GetModel(self, request, context):
        if request.name != "fake":
            await abort(context, errors.ModelNotFoundError(f"no model {request.name}", metadata={"served": "fake"}))
        return self._model()

    async def GetFleet(self, request, context):
        worker = operations_pb2.WorkerStatus(
            address="127.0.0.1:1",
            live=self.live,
            model="fake",
            device="cpu",
            blocks_total=10,
            blocks_free=8,
            blocks_cached=2,
            swap_blocks_total=self.swap_blocks,
            swap_blocks_used=self.swap_blocks // 2,
            draining=self.draining,
            late=self.late,
            hung=self.hung,
        )
        return operations_pb2.Fleet(requests_finished=len(self.requests), preemptions=5, swaps=3, workers=[worker])

    async def GetTraffic(self, request, context):
        """A second later with each call."""
        self.max_tenants.append(request.max_tenants)
        if self.traffic_error is not None:
            await abort(context, self.traffic_error)
        self.traffic.uptime_seconds += 1
        return self.traffic

    async def DumpPlanLog(self, request, context):
        for part in self.plan_log:
            yield operations_pb2.PlanLogPart(data=part)
        if self.plan_log_fails:
            await abort(context, errors.SchedulerLostError("no scheduler"))

    async def ListCancellations(self, request, context):
        return operations_pb2.ListCancellationsResponse()

    async def CancelGeneration(self, request, context):
        return operations_pb2.CancelGenerationResponse(found=request.request_id == "r1")

    def _model(self) -> models_pb2.Model:
        return models_pb2.Model(name="fake", served_names=["fake"], max_model_len=64, ready=True, chat=self.chat)

    def _finished(self, tokens: int, n: int = 1) -> pb.Finished:
        ends = [pb.OutputEnd(reason=pb.FINISH_REASON_STOP, stop_string="!")]
        ends += [pb.OutputEnd(output_index=index, reason=pb.FINISH_REASON_LENGTH) for index in range(1, n)]
        usage = pb.Usage(prompt_tokens=3, completion_tokens=tokens, kv_blocks_used=2, kv_blocks_freed=2)
        timings = pb.Timings(time_to_first_token_seconds=0.5, total_seconds=1.5)
        return pb.Finished(outputs=ends, usage=usage, timings=timings)


@contextlib.contextmanager
def serving(tls: ServerTls | None = None) -> Iterator[FakeGateway]:
    """A FakeGateway that listens, on a loop and thread of its own."""
    fake = FakeGateway()
    listening = threading.Event()
    holder: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []

    async def serve() -> None:
        stop = asyncio.Event()
        server = Server(tls=tls)
        inference_pb2_grpc.add_InferenceServicer_to_server(fake, server.grpc_server)
        models_pb2_grpc.add_ModelsServicer_to_server(fake, server.grpc_server)
        operations_pb2_grpc.add_OperationsServicer_to_server(fake, server.grpc_server)
        port = await server.start("127.0.0.1", 0, [pb.DESCRIPTOR], key="gateway.port")
        fake.address = f"127.0.0.1:{port}"
        holder.append((asyncio.get_running_loop(), stop))
        listening.set()
        await stop.wait()
        await server.stop(0)

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    assert listening.wait(20)
    yield fake
    loop, stop = holder[0]
    loop.call_soon_threadsafe(stop.set)
    thread.join(20)
    assert not thread.is_alive()


@pytest.fixture
def gateway() -> Iterator[FakeGateway]:
    with serving() as fake:
        yield fake
