"""Servers of both kinds that follow the script of a wire."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from tercet import errors
from tercet.rpc import Server, abort
from tercet.v1 import inference_pb2 as pb
from tercet.v1 import inference_pb2_grpc, models_pb2, models_pb2_grpc, operations_pb2, operations_pb2_grpc
from tests.load.wire import Wire


class Gateway(
    inference_pb2_grpc.InferenceServicer, models_pb2_grpc.ModelsServicer, operations_pb2_grpc.OperationsServicer
):
    """A gateway that follows the wire's script."""

    def __init__(self, wire: Wire) -> None:
        self.wire = wire
        self.requests: list[pb.GenerateRequest] = []
        self.keys: list[str] = []
        self.left = asyncio.Event()
        self.traffic = operations_pb2.Traffic()

    async def Generate(self, request: pb.GenerateRequest, context: Any) -> AsyncIterator[pb.GenerateEvent]:
        script = self.wire.receive()
        self.requests.append(request)
        self.keys.append(dict(context.invocation_metadata()).get("authorization", ""))
        if script.error is not None:
            self.wire.ends_sent += 1
            await abort(context, errors.from_reason(script.error.reason, "no", retry_after_s=1.5))
        with self.wire.writing():
            yield pb.GenerateEvent(accepted=pb.Accepted(request_id="r-1", prompt_tokens=2))
        try:
            for token in range(request.stop.max_tokens):
                wait_s = script.gap_s if token else script.first_s
                await (asyncio.sleep(wait_s) if wait_s is not None else asyncio.Event().wait())
                self.wire.pieces_sent += 1
                with self.wire.writing():
                    yield pb.GenerateEvent(delta=pb.Delta(text="x", token_ids=[9]))
        except asyncio.CancelledError:
            self.left.set()
            raise
        self.wire.ends_sent += 1
        usage = pb.Usage(prompt_tokens=2, completion_tokens=request.stop.max_tokens, cached_tokens=1)
        timings = pb.Timings(queue_seconds=0.125)
        end = pb.OutputEnd(reason=pb.FINISH_REASON_LENGTH)
        yield pb.GenerateEvent(finished=pb.Finished(outputs=[end], usage=usage, timings=timings))

    async def Tokenize(self, request: pb.TokenizeRequest, context: Any) -> pb.TokenizeResult:
        return pb.TokenizeResult(token_ids=range(len(request.prompt.split())))

    async def ListModels(self, request: Any, context: Any) -> models_pb2.ListModelsResponse:
        model = models_pb2.Model(name="m", served_names=["m"], revision="r9", max_model_len=4096, vocab_size=50_000)
        return models_pb2.ListModelsResponse(models=[model])

    async def GetTraffic(self, request: Any, context: Any) -> operations_pb2.Traffic:
        return self.traffic

    async def GetFleet(self, request: Any, context: Any) -> operations_pb2.Fleet:
        worker = operations_pb2.WorkerStatus(address="w:1", live=True, blocks_total=60, blocks_free=10, tokens=100)
        worker.blocks_cached, worker.blocks_used, worker.device = 20, 30, "cpu"
        return operations_pb2.Fleet(requests_waiting=4, requests_running=3, workers=[worker])


@asynccontextmanager
async def gateway(wire: Wire) -> AsyncIterator[tuple[Gateway, str]]:
    served, server = Gateway(wire), Server()
    inference_pb2_grpc.add_InferenceServicer_to_server(served, server.grpc_server)
    models_pb2_grpc.add_ModelsServicer_to_server(served, server.grpc_server)
    operations_pb2_grpc.add_OperationsServicer_to_server(served, server.grpc_server)
    port = await server.start("127.0.0.1", 0, [], key="gateway.port")
    try:
        yield served, f"127.0.0.1:{port}"
    finally:
        await server.stop(0)


class HttpServer:
    """A server of OpenAI's API that follows the wire's script, one request a connection."""

    def __init__(self, wire: Wire) -> None:
        self.wire = wire
        self.requests: list[tuple[str, dict[str, str], dict[str, Any]]] = []
        self.takes_tokens = True
        self.tokenizes = True
        self.knows_salts = True
        self.tail = b"data: [DONE]\n\n"
        self.left = asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            _, path, _ = (await reader.readline()).decode().split()
            headers: dict[str, str] = {}
            while line := (await reader.readline()).decode().strip():
                name, _, value = line.partition(": ")
                headers[name.lower()] = value
            body = json.loads(await reader.readexactly(int(headers.get("content-length", "0"))) or b"{}")
            answering = asyncio.create_task(self._answer(writer, path, headers, body))
            leaving = asyncio.create_task(reader.read())
            await asyncio.wait({answering, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if not answering.done():
                self.left.set()
            for task in (answering, leaving):
                task.cancel()
            await asyncio.gather(answering, leaving, return_exceptions=True)
        finally:
            writer.close()

    async def _answer(
        self, writer: asyncio.StreamWriter, path: str, headers: dict[str, str], body: dict[str, Any]
    ) -> None:
        if path == "/v1/models":
            return self._whole(writer, 200, {"data": [{"id": "m", "max_model_len": 4096}]})
        if path == "/version":
            return self._whole(writer, 200 if self.tokenizes else 404, {"version": "0.9"})
        if path == "/tokenize" and self.tokenizes:
            # As a tokenizer with a token for the beginning of a text.
            return self._whole(writer, 200, {"tokens": list(range(1 + len(body["prompt"].split())))})
        if not body.get("stream"):
            takes = self.takes_tokens or isinstance(body["prompt"], str)
            status = 200 if takes and (self.knows_salts or "cache_salt" not in body) else 400
            return self._whole(writer, status, {"choices": []} if status == 200 else {"error": {"message": "no"}})
        self.requests.append((path, headers, body))
        await self._stream(writer, body, chat=path == "/v1/chat/completions")
        return None

    async def _stream(self, writer: asyncio.StreamWriter, body: dict[str, Any], *, chat: bool) -> None:
        script = self.wire.receive()
        if script.error is not None:
            self.wire.ends_sent += 1
            error = {"error": {"message": "full", "code": script.error.reason.lower()}}
            return self._whole(writer, 429, error, "retry-after-ms: 1500\r\n")
        writer.write(
            b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-type: text/event-stream\r\nx-request-id: r-1\r\n\r\n"
        )
        if chat:
            self._event(writer, {"choices": [{"delta": {"role": "assistant", "content": ""}, "finish_reason": None}]})
        for token in range(body["max_tokens"]):
            wait_s = script.gap_s if token else script.first_s
            await (asyncio.sleep(wait_s) if wait_s is not None else asyncio.Event().wait())
            self.wire.pieces_sent += 1
            piece: dict[str, Any] = {"delta": {"content": "x"}} if chat else {"text": "x"}
            self._event(writer, {"id": "c-1", "choices": [{**piece, "finish_reason": None}]})
            await writer.drain()
        self.wire.ends_sent += 1
        end: dict[str, Any] = {"delta": {}} if chat else {"text": ""}
        self._event(writer, {"choices": [{**end, "finish_reason": "length"}]})
        usage = {"prompt_tokens": 2, "completion_tokens": body["max_tokens"]}
        self._event(writer, {"choices": [], "usage": {**usage, "prompt_tokens_details": {"cached_tokens": 1}}})
        writer.write(self.tail)
        return None

    def _event(self, writer: asyncio.StreamWriter, event: dict[str, Any]) -> None:
        writer.write(b"data: " + json.dumps(event).encode() + b"\n\n")

    def _whole(self, writer: asyncio.StreamWriter, status: int, body: dict[str, Any], more: str = "") -> None:
        text = json.dumps(body)
        writer.write(
            f"HTTP/1.1 {status} X\r\nconnection: close\r\n{more}content-length: {len(text)}\r\n\r\n{text}".encode()
        )


@asynccontextmanager
async def http_server(wire: Wire) -> AsyncIterator[tuple[HttpServer, str]]:
    served = HttpServer(wire)
    server = await asyncio.start_server(served.serve, "127.0.0.1", 0)
    try:
        yield served, f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
    finally:
        server.close()
