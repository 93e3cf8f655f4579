"""The gateway's services on a gRPC server: each method with who may call it, and how its message is read."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import grpc
from google.protobuf.message import Message

from tercet.v1 import inference_pb2, models_pb2, operations_pb2

from .call_end import end_call
from .caller import Caller
from .guard import Guard
from .models_service import ModelsService
from .operations_service import OperationsService
from .service import InferenceService
from .wire import Malformed, checked, deserializer

Request = TypeVar("Request", bound=Message)


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
            await end_call(error, context, None)

    return grpc.unary_unary_rpc_method_handler(handle, deserializer(cls), _serialize)


def _serialize(message: Any) -> bytes:
    data: bytes = message.SerializeToString()
    return data
