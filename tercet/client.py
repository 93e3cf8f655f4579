"""A client of a Tercet gateway: typed events in, typed errors out.

    async with Client("127.0.0.1:50051") as client:
        async for event in client.generate("Once upon a time", max_tokens=32):
            if isinstance(event, Delta):
                print(event.text, end="", flush=True)

Leaving a scope ends what it opened: a generation that is dropped, by ``break`` or by an exception, is cancelled on the
server, and leaving the client's scope cancels every one that is still open. gRPC by itself does neither.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections import defaultdict
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from types import TracebackType
from typing import Any, TypeVar

import grpc
import grpc.aio

from tercet import errors, setting_check
from tercet.ledger.row import Cancelled
from tercet.messages import (
    Accepted,
    Answer,
    ChatMessage,
    Delta,
    Event,
    Finished,
    FleetInfo,
    ModelInfo,
    Options,
    Output,
    OutputEnd,
    Prompt,
    TokenLogprobs,
    Tool,
    ToolCall,
    ToolCallDelta,
    from_cancellation,
    from_event,
    from_fleet,
    from_model,
    from_result,
    joined,
    to_answer,
)
from tercet.request_messages import to_chat, to_request
from tercet.rpc import open_channel, typed_error
from tercet.tls.client import ClientTls
from tercet.traffic import TrafficInfo, from_traffic
from tercet.v1 import inference_pb2 as pb
from tercet.v1 import inference_pb2_grpc, models_pb2, models_pb2_grpc, operations_pb2, operations_pb2_grpc

__all__ = [
    "DEFAULT_ADDRESS",
    "Accepted",
    "Answer",
    "ChatMessage",
    "Client",
    "ClientTls",
    "Delta",
    "Event",
    "Finished",
    "FleetInfo",
    "Generation",
    "ModelInfo",
    "Options",
    "Output",
    "OutputEnd",
    "Prompt",
    "TokenLogprobs",
    "Tool",
    "ToolCall",
    "ToolCallDelta",
    "TrafficInfo",
    "generate_blocking",
]

DEFAULT_ADDRESS = "127.0.0.1:50051"

Reply = TypeVar("Reply")


class Generation:
    """One running request: an asynchronous iterator of events, and a scope.

    The call starts when the object is made. It is cancelled when the scope is left, when iteration is left early, or by
    `cancel`; after its end all three do nothing. Can be iterated once.
    """

    def __init__(self, call: Any, address: str) -> None:
        self._call = call
        self._address = address
        self._cancelled = False

    def cancel(self) -> None:
        """Ends the request on the server. Idempotent. An iteration that waits raises errors.RequestCancelledError."""
        self._cancelled = self._call.cancel() or self._cancelled

    async def __aenter__(self) -> Generation:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.cancel()

    async def __aiter__(self) -> AsyncGenerator[Event, None]:
        """Accepted, any number of Delta, Finished. Raises errors.RequestError, but not behind Finished."""
        finished = False
        try:
            while (message := await self._read()) is not grpc.aio.EOF:
                event = from_event(message)
                if event is not None:
                    finished = isinstance(event, Finished)
                    yield event
        except errors.RequestError:
            # A connection that breaks there takes nothing with it that anybody could want.
            if not finished:
                raise
        finally:
            self.cancel()

    async def _read(self) -> Any:
        try:
            return await _typed(self._call.read(), self._address)
        except asyncio.CancelledError:
            # gRPC raises the same for a cancelled call and a cancelled task; only the latter may pass as such.
            if self._cancelled:
                raise errors.RequestCancelledError("cancelled by its client") from None
            raise

    async def answer(self, on_text: Callable[[str], None] | None = None) -> Answer:
        """Reads to the end, calling `on_text` with each piece of the first output's text as it comes.

        Raises errors.RequestError.
        """
        accepted: Accepted | None = None
        finished: Finished | None = None
        texts: defaultdict[int, list[str]] = defaultdict(list)
        token_ids: defaultdict[int, list[int]] = defaultdict(list)
        logprobs: defaultdict[int, list[TokenLogprobs]] = defaultdict(list)
        calls: defaultdict[int, list[ToolCallDelta]] = defaultdict(list)
        # An iteration that `on_text` breaks off ends here, not whenever the event loop finds it.
        async with contextlib.aclosing(self.__aiter__()) as events:
            async for event in events:
                if isinstance(event, Delta):
                    texts[event.output_index].append(event.text)
                    token_ids[event.output_index].extend(event.token_ids)
                    logprobs[event.output_index].extend(event.logprobs)
                    calls[event.output_index].extend(event.tool_calls)
                    if on_text is not None and event.output_index == 0:
                        on_text(event.text)
                elif isinstance(event, Accepted):
                    accepted = event
                else:
                    finished = event
        if accepted is None or finished is None:
            raise errors.GatewayLostError(f"the stream from {self._address} ended without its last event")
        written = [
            ("".join(texts[index]), tuple(token_ids[index]), tuple(logprobs[index]), joined(calls[index]))
            for index in range(len(finished.outputs))
        ]
        return to_answer(written, accepted, finished)


class Client:
    """A connection to one gateway. Use as ``async with``; must stay on one event loop.

    `address` is host:port; `tls` says by what its certificate is known, None is plain text. `api_key` is sent with
    every call; without `tls` all on the way can read it. Nothing is dialled before the first call. Every method raises
    errors.RequestError: the gateway's own, GatewayLostError if there is no gateway, DeadlineError after `timeout_s`
    seconds. Raises ValueError for an address that is not host:port, for a key that no gateway could read, and for a
    `timeout_s` of more than a year; None is no limit.
    """

    def __init__(self, address: str = DEFAULT_ADDRESS, *, api_key: str = "", tls: ClientTls | None = None) -> None:
        if (problem := setting_check.address(address)) is not None:
            raise ValueError(f"address {problem}")
        self.address = address
        if not all("!" <= character <= "~" for character in api_key):
            raise ValueError("api_key must be printable ASCII without spaces")
        self._metadata = (("authorization", f"Bearer {api_key}"),) if api_key else None
        self._tls = tls
        self._channel: grpc.aio.Channel | None = None
        self._open: set[Any] = set()

    async def __aenter__(self) -> Client:
        self._channel = open_channel(self.address, self._tls)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for call in tuple(self._open):
            call.cancel()
        if self._channel is not None:
            await self._channel.close()
            self._channel = None

    def generate(
        self, prompt: Prompt, options: Options | None = None, *, timeout_s: float | None = None, **more: Any
    ) -> Generation:
        """Starts a request: text, token ids, or chat messages. Options as one object, or by name (see Options).

        Raises TypeError for a prompt that is none of these or a name that is no option.
        """
        request = to_request(prompt, _options(options, more))
        call = inference_pb2_grpc.InferenceStub(self._live()).Generate(
            request, timeout=_time_limit(timeout_s), metadata=self._metadata
        )
        self._open.add(call)
        call.add_done_callback(self._open.discard)
        return Generation(call, self.address)

    async def generate_once(
        self, prompt: Prompt, options: Options | None = None, *, timeout_s: float | None = None, **more: Any
    ) -> Answer:
        """The same as `generate`, answered at once when all is done."""
        request = to_request(prompt, _options(options, more))
        stub = inference_pb2_grpc.InferenceStub(self._live())
        return from_result(await self._ask(stub.GenerateOnce, request, timeout_s))

    async def tokenize(
        self, prompt: str | Sequence[ChatMessage], *, model: str = "", timeout_s: float | None = None
    ) -> tuple[int, ...]:
        """Token ids of a text or a chat, as `generate` would see them."""
        request = pb.TokenizeRequest(model=model)
        if isinstance(prompt, str):
            request.prompt = prompt
        else:
            request.chat.CopyFrom(to_chat(prompt))
        stub = inference_pb2_grpc.InferenceStub(self._live())
        result = await self._ask(stub.Tokenize, request, timeout_s)
        return tuple(result.token_ids)

    async def detokenize(self, token_ids: Sequence[int], *, model: str = "", timeout_s: float | None = None) -> str:
        """The text of token ids, without special tokens."""
        request = pb.DetokenizeRequest(model=model, token_ids=token_ids)
        stub = inference_pb2_grpc.InferenceStub(self._live())
        result: pb.DetokenizeResult = await self._ask(stub.Detokenize, request, timeout_s)
        return result.text

    async def models(self, *, timeout_s: float | None = None) -> tuple[ModelInfo, ...]:
        """Every served model."""
        stub = models_pb2_grpc.ModelsStub(self._live())
        result = await self._ask(stub.ListModels, models_pb2.ListModelsRequest(), timeout_s)
        return tuple(from_model(model) for model in result.models)

    async def model(self, name: str = "", *, timeout_s: float | None = None) -> ModelInfo:
        """One model by any of its names; the first if `name` is empty. Raises ModelNotFoundError."""
        if not name:
            served = await self.models(timeout_s=timeout_s)
            if not served:
                raise errors.ModelNotFoundError(f"{self.address} serves no model")
            return served[0]
        stub = models_pb2_grpc.ModelsStub(self._live())
        request = models_pb2.GetModelRequest(name=name)
        return from_model(await self._ask(stub.GetModel, request, timeout_s))

    async def fleet(self, *, timeout_s: float | None = None) -> FleetInfo:
        """The state of the mesh now."""
        stub = operations_pb2_grpc.OperationsStub(self._live())
        request = operations_pb2.GetFleetRequest()
        return from_fleet(await self._ask(stub.GetFleet, request, timeout_s))

    async def traffic(self, *, timeout_s: float | None = None) -> TrafficInfo:
        """What classes and tenants ask for and get."""
        stub = operations_pb2_grpc.OperationsStub(self._live())
        request = operations_pb2.GetTrafficRequest()
        return from_traffic(await self._ask(stub.GetTraffic, request, timeout_s))

    async def cancel(self, request_id: str, *, tenant: str = "", timeout_s: float | None = None) -> bool:
        """Cancels a request by its id; with the key of an operator that of `tenant`, or, if that is empty, whoever's.
        Whether it was running."""
        stub = operations_pb2_grpc.OperationsStub(self._live())
        request = operations_pb2.CancelGenerationRequest(request_id=request_id, tenant=tenant)
        result = await self._ask(stub.CancelGeneration, request, timeout_s)
        return bool(result.found)

    async def cancellations(
        self, *, limit: int = 100, origin: str = "", tenant: str = "", timeout_s: float | None = None
    ) -> tuple[Cancelled, ...]:
        """The latest cancels of the gateway's requests, the newest first; of one origin, or one tenant, if given."""
        stub = operations_pb2_grpc.OperationsStub(self._live())
        request = operations_pb2.ListCancellationsRequest(max_cancellations=limit, origin=origin, tenant=tenant)
        answer = await self._ask(stub.ListCancellations, request, timeout_s)
        return tuple(map(from_cancellation, answer.cancellations))

    async def dump_plan_log(self, *, timeout_s: float | None = None) -> AsyncGenerator[bytes, None]:
        """The scheduler's plan log: the file for `tercet replay-plans`, piece by piece."""
        stub = operations_pb2_grpc.OperationsStub(self._live())
        call = stub.DumpPlanLog(
            operations_pb2.DumpPlanLogRequest(), timeout=_time_limit(timeout_s), metadata=self._metadata
        )
        self._open.add(call)
        call.add_done_callback(self._open.discard)
        try:
            while (part := await _typed(call.read(), self.address)) is not grpc.aio.EOF:
                yield part.data
        finally:
            call.cancel()

    async def _ask(self, method: Callable[..., Awaitable[Any]], request: Any, timeout_s: float | None) -> Any:
        return await _typed(method(request, timeout=_time_limit(timeout_s), metadata=self._metadata), self.address)

    def _live(self) -> grpc.aio.Channel:
        if self._channel is None:
            raise RuntimeError("use Client as `async with Client(address) as client`")
        return self._channel


def generate_blocking(
    prompt: Prompt,
    options: Options | None = None,
    *,
    address: str = DEFAULT_ADDRESS,
    api_key: str = "",
    tls: ClientTls | None = None,
    **more: Any,
) -> Answer:
    """One whole answer, for code without an event loop. Raises errors.RequestError."""

    async def ask() -> Answer:
        async with (
            Client(address, api_key=api_key, tls=tls) as client,
            client.generate(prompt, options, **more) as generation,
        ):
            return await generation.answer()

    return asyncio.run(ask())


def _options(options: Options | None, more: dict[str, Any]) -> Options:
    if options is not None and more:
        raise TypeError("give Options, or options by name, not both")
    if not isinstance(options, Options | None):
        raise TypeError(f"options must be Options, is {type(options).__name__}")
    known = [item.name for item in dataclasses.fields(Options)]
    for name in more:
        if name not in known:
            raise TypeError(f"{name!r} is not an option; options are {', '.join(known)}")
    return options or Options(**more)


def _time_limit(timeout_s: float | None) -> float | None:
    # gRPC takes what overflows there for a time that has passed. Written so that NaN fails.
    if timeout_s is not None and not timeout_s <= setting_check.MAX_SECONDS:
        raise ValueError(f"timeout_s must be at most {setting_check.MAX_SECONDS:,}, is {timeout_s:g}; None is no limit")
    return timeout_s


async def _typed(reply: Awaitable[Reply], address: str) -> Reply:
    """The reply of a call, its status turned into a typed error."""
    try:
        return await reply
    except grpc.aio.AioRpcError as error:
        raise to_error(error, address) from None


def to_error(error: grpc.aio.AioRpcError, address: str) -> errors.RequestError:
    """The typed error of a status: the gateway's own, or one for what gRPC says by itself."""
    typed = typed_error(error.trailing_metadata())
    if typed is not None:
        return typed
    text = error.details() or ""
    code = error.code()
    if code is grpc.StatusCode.UNAVAILABLE:
        return errors.GatewayLostError(f"no gateway answers at {address}: {text}")
    if code is grpc.StatusCode.UNIMPLEMENTED:
        return errors.GatewayLostError(f"{address} answers, but is not a gateway: {text}")
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return errors.DeadlineError("the deadline of the call passed")
    if code is grpc.StatusCode.CANCELLED:
        # Who cancels here hears nothing of it: this is gRPC at the other end, which stops, or is flooded, and has not
        # begun the call.
        return errors.GatewayLostError(f"{address} turned the call away: {text}")
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED:
        # Of gRPC itself, which says so of nothing but messages and metadata that are too large.
        return errors.InvalidFieldError(f"the request is too large: {text}")
    if code is grpc.StatusCode.INVALID_ARGUMENT:
        return errors.InvalidFieldError(text)
    return errors.EngineFaultError(text or code.name, metadata={"code": code.name})
