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
from tercet.v1 import inference_pb2, models_pb2, operations_pb2

from .books import Books
from .caller import Caller
from .cancellation_messages import to_cancellations
from .generation import Generation
from .generations import Generations
from .guard import Guard
from .public_messages import to_accepted, to_delta, to_finished, to_result
from .schedulers import Schedulers
from .served_model import Catalogue, ServedModel
from .stream import Delta
from .validate import validate_detokenize, validate_generate, validate_tokenize
from .wire import Malformed, checked, deserializer

log = structlog.get_logger()
_refusals = RefusalLines(log, "calls_refused")

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
            await self._write(generation, context, inference_pb2.GenerateEvent(accepted=to_accepted(admission)))
            while (delta := await generation.read()) is not None:
                # Before, not behind: once the write has begun, nobody can take the tokens back.
                generation.delivered_tokens += len(delta.token_ids)
                await self._write(generation, context, inference_pb2.GenerateEvent(delta=to_delta(delta)))
            finished = to_finished(await generation.finish())
            await self._write(generation, context, inference_pb2.GenerateEvent(finished=finished))
        except BaseException as error:
            await _end_call(error, context, generation)
        finally:
            if generation is not None:
                generation.close()

    async def generate_once(
        self, received: inference_pb2.GenerateRequest | Malformed, context: grpc.aio.ServicerContext
    ) -> inference_pb2.GenerateResult:
        """Answers once; see the proto."""
        generation: Generation | None = None
        try:
            generation = self._start(received, context)
            admission = await generation.open()
            deltas: list[Delta] = []
            while (delta := await generation.read()) is not None:
                deltas.append(delta)
            summary = await generation.finish()
            generation.delivered_tokens = summary.completion_tokens
            return to_result(admission, deltas, summary)
        except BaseException as error:
            await _end_call(error, context, generation)
        finally:
            if generation is not None:
                generation.close()

    async def tokenize(self, message: inference_pb2.TokenizeRequest, caller: Caller) -> inference_pb2.TokenizeResult:
        """Token ids as Generate would make them."""
        max_bytes = self._generations.settings.max_prompt_bytes
        model, given = validate_tokenize(message, self._catalogue, max_prompt_bytes=max_bytes)
        with self._generations.place(caller):
            text, ids = await self._generations.tokenizing.encode(model, given, caller.tenant)
        return inference_pb2.TokenizeResult(token_ids=ids, text=text)

    async def detokenize(
        self, message: inference_pb2.DetokenizeRequest, caller: Caller
    ) -> inference_pb2.DetokenizeResult:
        """Text of token ids."""
        model, ids = validate_detokenize(message, self._catalogue)
        with self._generations.place(caller):
            text = await self._generations.tokenizing.decode(model, ids, caller.tenant)
        return inference_pb2.DetokenizeResult(text=text)

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
        self, generation: Generation, context: grpc.aio.ServicerContext, event: inference_pb2.GenerateEvent
    ) -> None:
        # A client that does not read blocks the write, out of reach of everything else that may end the request. The
        # first one takes the initial metadata along: grpc sends them again, and fails at it, when that write was left.
        stream, task = generation.stream, asyncio.current_task()
        assert stream is not None
        assert task is not None
        stream.interrupt = None if event.HasField("accepted") else task.cancel
        late = False

        def give_up() -> None:
            nonlocal late
            late = True
            task.cancel()

        limit_s = self._generations.settings.stream_stall_seconds
        timer = asyncio.get_running_loop().call_later(limit_s, give_up)
        try:
            await context.write(event)
        except asyncio.CancelledError:
            if not late or stream.error is not None:
                raise
            raise _too_slow(limit_s) from None
        finally:
            timer.cancel()
            stream.interrupt = None


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
            async with contextlib.aclosing(self._link.plan_log()) as parts:
                async for data in parts:
                    limit_s = self._generations.settings.stream_stall_seconds
                    await _write_in_time(context, operations_pb2.PlanLogPart(data=data), limit_s)
        except BaseException as error:
            await _end_call(error, context, None)


async def _write_in_time(context: grpc.aio.ServicerContext, message: Message, limit_s: float) -> None:
    try:
        await asyncio.wait_for(context.write(message), limit_s)
    except asyncio.TimeoutError:
        raise _too_slow(limit_s) from None


def _too_slow(limit_s: float) -> errors.SlowConsumerError:
    return errors.SlowConsumerError(
        f"the client read nothing for {limit_s:g} s", metadata={"stream_stall_seconds": f"{limit_s:g}"}
    )


def add_services(
    server: grpc.aio.Server,
    guard: Guard,
    inference: InferenceService,
    models: ModelsService,
    operations: OperationsService,
) -> None:
    """Registers the services. Not with the generated functions: those parse before a handler can answer for it."""
    pb, mpb, opb = inference_pb2, models_pb2, operations_pb2
    stream = grpc.unary_stream_rpc_method_handler(
        inference.generate, deserializer(pb.GenerateRequest), pb.GenerateEvent.SerializeToString
    )
    once = grpc.unary_unary_rpc_method_handler(
        inference.generate_once, deserializer(pb.GenerateRequest), pb.GenerateResult.SerializeToString
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
            "Tokenize": _unary(guard.caller, inference.tokenize, pb.TokenizeRequest),
            "Detokenize": _unary(guard.caller, inference.detokenize, pb.DetokenizeRequest),
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
            raise error
        log.error("handler_failed", exc_info=error)
        error = errors.EngineFaultError(f"the gateway failed: {type(error).__name__}")
    if generation is not None:
        # Before the status goes out: to a client that does not read, that can take for ever.
        generation.close(error)
    else:
        _refusals.tell("call_refused", reason=error.reason, field=error.metadata.get("field"))
    await rpc.abort(context, error)
