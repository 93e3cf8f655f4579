"""The gateway's gRPC services: translation between tercet.v1 and the rest, one method per call."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any, NoReturn, TypeVar

import grpc
import grpc.aio
import structlog
from google.protobuf.message import Message

from tercet import errors, rpc
from tercet.refusal_lines import RefusalLines
from tercet.slow_reader import write
from tercet.v1 import inference_pb2, models_pb2, operations_pb2

from .answer_size import AnswerSize
from .books import Books
from .caller import Caller
from .cancellation_messages import to_cancellations
from .generation import Generation
from .generations import Generations
from .guard import Guard
from .public_messages import to_accepted, to_delta, to_finished, to_prompt_logprobs, to_result
from .schedulers import Schedulers
from .served_model import Catalogue, ServedModel
from .unexpected import engine_fault
from .validate import validate_detokenize, validate_generate, validate_tokenize
from .wire import Malformed, checked, deserializer

log = structlog.get_logger()
_refusals = RefusalLines(log, "calls_refused")

# How long a request that has failed waits for its client to take the first message.
HEARD_SECONDS = 0.5

Request = TypeVar("Request", bound=Message)


class InferenceService:
    """tercet.v1.Inference."""

    def __init__(self, catalogue: Catalogue, generations: Generations, guard: Guard) -> None:
        self._catalogue = catalogue
        self._generations = generations
        self._guard = guard

    async def generate(
        self, received: inference_pb2.GenerateRequest | Malformed, context: grpc.aio.ServicerContext
    ) -> None:
        """Streams; see the proto. Whatever ends the call, the request is closed."""
        generation: Generation | None = None
        try:
            generation = self._start(received, context)
            admission = await generation.open()
            accepted = inference_pb2.GenerateEvent(accepted=to_accepted(admission))
            await self._write(generation, context, accepted, first=True)
            while (part := await generation.read_prompt()) is not None:
                event = inference_pb2.GenerateEvent(prompt_logprobs=to_prompt_logprobs(admission, [part]))
                await self._write(generation, context, event)
            while (delta := await generation.read()) is not None:
                # Before, not behind: once the write has begun, nobody can take the tokens back.
                generation.delivered_tokens += len(delta.token_ids)
                await self._write(generation, context, inference_pb2.GenerateEvent(delta=to_delta(delta)))
            finished = to_finished(await generation.finish())
            await self._write(generation, context, inference_pb2.GenerateEvent(finished=finished))
        except BaseException as error:
            await _end_call(error, context, generation)
        finally:
            self._leave(generation)

    async def generate_once(
        self, received: inference_pb2.GenerateRequest | Malformed, context: grpc.aio.ServicerContext
    ) -> None:
        """Answers once; see the proto. The request is closed when its client has read that."""
        generation: Generation | None = None
        try:
            generation = self._start(received, context)
            admission = await generation.open()
            parts, deltas = await generation.read_all(AnswerSize())
            summary = await generation.finish()
            generation.delivered_tokens = summary.completion_tokens
            await self._write(generation, context, to_result(admission, parts, deltas, summary), first=True)
        except BaseException as error:
            await _end_call(error, context, generation)
        finally:
            self._leave(generation)

    async def tokenize(
        self, received: inference_pb2.TokenizeRequest | Malformed, context: grpc.aio.ServicerContext
    ) -> None:
        """Answers with token ids as Generate would make them."""
        with contextlib.ExitStack() as held:
            try:
                caller = self._guard.caller(context)
                max_bytes = self._generations.settings.max_prompt_bytes
                model, given = validate_tokenize(checked(received), self._catalogue, max_prompt_bytes=max_bytes)
                held.enter_context(self._generations.place(caller))
                text, ids = await self._generations.tokenizing.encode(model, given, caller.tenant)
                result = inference_pb2.TokenizeResult(token_ids=ids, text=text)
                await write(context, result, self._stall_s, first=True)
            except BaseException as error:
                await _end_call(error, context, None)

    async def detokenize(
        self, received: inference_pb2.DetokenizeRequest | Malformed, context: grpc.aio.ServicerContext
    ) -> None:
        """Answers with the text of token ids."""
        with contextlib.ExitStack() as held:
            try:
                caller = self._guard.caller(context)
                model, ids = validate_detokenize(checked(received), self._catalogue)
                held.enter_context(self._generations.place(caller))
                text = await self._generations.tokenizing.decode(model, ids, caller.tenant)
                await write(context, inference_pb2.DetokenizeResult(text=text), self._stall_s, first=True)
            except BaseException as error:
                await _end_call(error, context, None)

    def _start(
        self, received: inference_pb2.GenerateRequest | Malformed, context: grpc.aio.ServicerContext
    ) -> Generation:
        caller = self._guard.caller(context)
        try:
            self._generations.refuse_if_draining()
            message = checked(received)
            max_bytes = self._generations.settings.max_prompt_bytes
            request = validate_generate(message, self._catalogue, max_prompt_bytes=max_bytes)
            return self._generations.start(request, caller, context.time_remaining())
        except errors.RequestError as error:
            traffic_class = "" if isinstance(received, Malformed) else received.traffic_class
            self._generations.note_refusal(caller.tenant, traffic_class, error)
            raise

    async def _write(
        self, generation: Generation, context: grpc.aio.ServicerContext, message: Message, *, first: bool = False
    ) -> None:
        # A client that does not read blocks the write, out of reach of everything else that may end the request.
        stream, task = generation.stream, asyncio.current_task()
        assert stream is not None
        assert task is not None
        hurry: asyncio.TimerHandle | None = None

        def interrupt_soon() -> None:
            nonlocal hurry
            hurry = asyncio.get_running_loop().call_later(HEARD_SECONDS, task.cancel)

        # Of a request that was accepted the client hears that first, if it reads.
        stream.interrupt = interrupt_soon if first else task.cancel
        try:
            await write(context, message, self._stall_s, first=first)
        except errors.SlowConsumerError as slow:
            raise stream.error or slow from None
        finally:
            stream.interrupt = None
            if hurry is not None:
                hurry.cancel()

    def _leave(self, generation: Generation | None) -> None:
        if generation is not None:
            generation.close()
            self._generations.leave(generation)

    @property
    def _stall_s(self) -> float:
        return self._generations.settings.stream_stall_seconds


class ModelsService:
    """tercet.v1.Models."""

    def __init__(self, catalogue: Catalogue, link: Schedulers) -> None:
        self._catalogue = catalogue
        self._link = link

    async def list_models(self, _: models_pb2.ListModelsRequest, _caller: Caller) -> models_pb2.ListModelsResponse:
        """All models."""
        return models_pb2.ListModelsResponse(models=[self._model(model) for model in self._catalogue.models])

    async def get_model(self, message: models_pb2.GetModelRequest, _caller: Caller) -> models_pb2.Model:
        """One model by any of its names."""
        if not message.name:
            raise errors.InvalidFieldError("name is required", field="name")
        return self._model(self._catalogue.find(message.name))

    def _model(self, model: ServedModel) -> models_pb2.Model:
        ready = self._link.ready(model.name, model.revision)
        limit = model.max_model_len
        if ready:
            limit = min(limit, self._link.pool(model.name, model.revision).max_model_len or limit)
        return models_pb2.Model(
            name=model.name,
            served_names=model.served_names,
            revision=model.revision,
            max_model_len=limit,
            vocab_size=model.vocab_size,
            ready=ready,
            chat=model.template is not None,
        )


class OperationsService:
    """tercet.v1.Operations."""

    def __init__(self, generations: Generations, books: Books, link: Schedulers, guard: Guard) -> None:
        self._generations = generations
        self._books = books
        self._link = link
        self._guard = guard

    async def get_fleet(self, _: operations_pb2.GetFleetRequest, _caller: Caller) -> operations_pb2.Fleet:
        """What the scheduler says."""
        return await self._link.fleet()

    async def get_traffic(self, message: operations_pb2.GetTrafficRequest, _caller: Caller) -> operations_pb2.Traffic:
        """What the scheduler says."""
        return await self._link.traffic(message)

    async def list_cancellations(
        self, message: operations_pb2.ListCancellationsRequest, _caller: Caller
    ) -> operations_pb2.ListCancellationsResponse:
        """The latest of this gateway."""
        return to_cancellations(self._books.cancellations(), message)

    async def cancel_generation(
        self, received: operations_pb2.CancelGenerationRequest | Malformed, context: grpc.aio.ServicerContext
    ) -> operations_pb2.CancelGenerationResponse:
        """Cancels by request id: an operator whoever's, others their own."""
        try:
            caller = self._guard.caller(context)
            message = checked(received)
            if not message.request_id:
                raise errors.InvalidFieldError("request_id is required", field="request_id")
            if message.tenant not in ("", caller.tenant) and not caller.operator:
                raise errors.PermissionDeniedError("the requests of other tenants need the key of an operator")
            tenant = message.tenant or (None if caller.operator else caller.tenant)
            found = self._generations.cancel(message.request_id, tenant)
            return operations_pb2.CancelGenerationResponse(found=found)
        except BaseException as error:
            await _end_call(error, context, None)

    async def dump_plan_log(
        self, received: operations_pb2.DumpPlanLogRequest | Malformed, context: grpc.aio.ServicerContext
    ) -> None:
        """The scheduler's plan log, passed on piece by piece."""
        try:
            self._guard.operator(context)
            checked(received)
            limit_s, first = self._generations.settings.stream_stall_seconds, True
            async with contextlib.aclosing(self._link.plan_log()) as parts:
                async for data in parts:
                    await write(context, operations_pb2.PlanLogPart(data=data), limit_s, first=first)
                    first = False
        except BaseException as error:
            await _end_call(error, context, None)


def add_services(
    server: grpc.aio.Server,
    guard: Guard,
    inference: InferenceService,
    models: ModelsService,
    operations: OperationsService,
) -> None:
    """Registers the services. Not with the generated functions: those parse before a handler can answer for it. Methods
    that answer once are registered as streams where they write by themselves; their clients see no difference."""
    pb, mpb, opb = inference_pb2, models_pb2, operations_pb2
    stream = grpc.unary_stream_rpc_method_handler(
        inference.generate, deserializer(pb.GenerateRequest), pb.GenerateEvent.SerializeToString
    )
    once = grpc.unary_stream_rpc_method_handler(
        inference.generate_once, deserializer(pb.GenerateRequest), pb.GenerateResult.SerializeToString
    )
    tokenize = grpc.unary_stream_rpc_method_handler(
        inference.tokenize, deserializer(pb.TokenizeRequest), pb.TokenizeResult.SerializeToString
    )
    detokenize = grpc.unary_stream_rpc_method_handler(
        inference.detokenize, deserializer(pb.DetokenizeRequest), pb.DetokenizeResult.SerializeToString
    )
    plan_log = grpc.unary_stream_rpc_method_handler(
        operations.dump_plan_log, deserializer(opb.DumpPlanLogRequest), opb.PlanLogPart.SerializeToString
    )
    cancel = grpc.unary_unary_rpc_method_handler(
        operations.cancel_generation, deserializer(opb.CancelGenerationRequest), _serialize
    )
    methods = {
        "tercet.v1.Inference": {
            "Generate": stream,
            "GenerateOnce": once,
            "Tokenize": tokenize,
            "Detokenize": detokenize,
        },
        "tercet.v1.Models": {
            "ListModels": _unary(guard.caller, models.list_models, mpb.ListModelsRequest),
            "GetModel": _unary(guard.caller, models.get_model, mpb.GetModelRequest),
        },
        "tercet.v1.Operations": {
            "GetFleet": _unary(guard.operator, operations.get_fleet, opb.GetFleetRequest),
            "GetTraffic": _unary(guard.operator, operations.get_traffic, opb.GetTrafficRequest),
            "CancelGeneration": cancel,
            "ListCancellations": _unary(guard.operator, operations.list_cancellations, opb.ListCancellationsRequest),
            "DumpPlanLog": plan_log,
        },
    }
    for service, handlers in methods.items():
        # Both, as the generated functions do: older versions of grpcio know only the first kind here.
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))
        server.add_registered_method_handlers(service, handlers)


def _unary(
    admit: Callable[[grpc.aio.ServicerContext], Caller],
    method: Callable[[Request, Caller], Awaitable[Message]],
    cls: type[Request],
) -> grpc.RpcMethodHandler:
    """A method for those whom `admit` lets in."""

    async def handle(received: Request | Malformed, context: grpc.aio.ServicerContext) -> Message:
        try:
            caller = admit(context)
            return await method(checked(received), caller)
        except BaseException as error:
            await _end_call(error, context, None)

    return grpc.unary_unary_rpc_method_handler(handle, deserializer(cls), _serialize)


def _serialize(message: Any) -> bytes:
    data: bytes = message.SerializeToString()
    return data


async def _end_call(error: BaseException, context: grpc.aio.ServicerContext, generation: Generation | None) -> NoReturn:
    """Ends a call whose handler raised `error`: with a typed status, or, if the call is over, by raising it again."""
    if isinstance(error, asyncio.CancelledError) and generation is not None and generation.stream is not None:
        # Interrupted in a write: the stream says why. If it does not, the client went away.
        error = generation.stream.error or error
    if not isinstance(error, errors.RequestError):
        if isinstance(error, grpc.aio.BaseError) or not isinstance(error, Exception):
            try:
                raise error
            finally:
                # Otherwise each refers to the other, the error and this frame, and all that the call had waits for the
                # garbage collector.
                del error
        error = engine_fault(error)
    if generation is not None:
        # Before the status goes out: to a client that does not read, that can take for ever.
        generation.close(error)
    else:
        _refusals.tell("call_refused", reason=error.reason, field=error.metadata.get("field"))
    await rpc.abort(context, error)
