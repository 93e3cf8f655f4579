"""What can be asked of a gateway: of each call of the contract what is sent, and what its replies become. Knows no
channel, so that both clients ask the same."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from google.protobuf.message import Message

from tercet import errors
from tercet.answer_messages import from_event, from_result
from tercet.ledger.row import Cancelled
from tercet.mesh_info import FleetInfo, ModelInfo, from_cancellation, from_fleet, from_model
from tercet.messages import Answer, ChatMessage, Event, Options, Prompt
from tercet.request_messages import check_no_chat, to_chat, to_request
from tercet.traffic import TrafficInfo, from_traffic
from tercet.v1 import inference_pb2 as pb
from tercet.v1 import inference_pb2_grpc, models_pb2, models_pb2_grpc, operations_pb2, operations_pb2_grpc

Reply = TypeVar("Reply", covariant=True)


class Stubs:
    """The gateway's services on one channel, of either kind."""

    def __init__(self, channel: Any) -> None:
        self.inference = inference_pb2_grpc.InferenceStub(channel)
        self.models = models_pb2_grpc.ModelsStub(channel)
        self.operations = operations_pb2_grpc.OperationsStub(channel)


@dataclass(frozen=True, slots=True)
class Ask(Generic[Reply]):
    """One call. `reply` makes of each message what its caller gets, or raises errors.RequestError. `repeatable`: asking
    once more does no harm, whatever became of it before."""

    method: Callable[[Stubs], Any]
    request: Message
    reply: Callable[[Any], Reply]
    repeatable: bool = True


def generate(prompt: Prompt, options: Options) -> Ask[Event | None]:
    """A stream; None for an event that this version does not know. Repeatable until it has begun: what its client has
    lost a gateway cancels. Raises as `to_request`."""
    return Ask(lambda stubs: stubs.inference.Generate, to_request(prompt, options), from_event)


def generate_once(prompt: Prompt, options: Options) -> Ask[Answer]:
    """Raises as `to_request`."""
    request = to_request(prompt, options)
    return Ask(lambda stubs: stubs.inference.GenerateOnce, request, from_result, repeatable=False)


@contextlib.contextmanager
def _writing() -> Iterator[None]:
    """Raises errors.InvalidFieldError for what a proto cannot hold."""
    try:
        yield
    except ValueError as error:
        raise errors.InvalidFieldError(f"the request cannot be written: {error}") from error


def tokenize(prompt: str | Sequence[ChatMessage], options: Options) -> Ask[tuple[int, ...]]:
    """Token ids. Raises TypeError for a prompt that is neither, errors.InvalidFieldError, also for options of chats
    beside a text."""
    with _writing():
        request = pb.TokenizeRequest(model=options.model)
        if isinstance(prompt, str):
            check_no_chat(options)
            request.prompt = prompt
        else:
            request.chat.CopyFrom(to_chat(prompt, options))
    return Ask(lambda stubs: stubs.inference.Tokenize, request, lambda result: tuple(result.token_ids))


def detokenize(token_ids: Sequence[int], model: str) -> Ask[str]:
    """A text. Raises errors.InvalidFieldError."""
    with _writing():
        request = pb.DetokenizeRequest(model=model, token_ids=token_ids)
    return Ask(lambda stubs: stubs.inference.Detokenize, request, lambda result: str(result.text))


def models() -> Ask[tuple[ModelInfo, ...]]:
    """Every served model."""
    return Ask(
        lambda stubs: stubs.models.ListModels,
        models_pb2.ListModelsRequest(),
        lambda answer: tuple(map(from_model, answer.models)),
    )


def model(name: str, address: str) -> Ask[ModelInfo]:
    """One model; the first of those at `address` if `name` is empty. Raises errors.InvalidFieldError."""
    if name:
        with _writing():
            request = models_pb2.GetModelRequest(name=name)
        return Ask(lambda stubs: stubs.models.GetModel, request, from_model)

    def first(answer: models_pb2.ListModelsResponse) -> ModelInfo:
        if not answer.models:
            raise errors.ModelNotFoundError(f"{address} serves no model")
        return from_model(answer.models[0])

    return Ask(lambda stubs: stubs.models.ListModels, models_pb2.ListModelsRequest(), first)


def fleet() -> Ask[FleetInfo]:
    """The state of the mesh."""
    return Ask(lambda stubs: stubs.operations.GetFleet, operations_pb2.GetFleetRequest(), from_fleet)


def traffic(max_tenants: int) -> Ask[TrafficInfo]:
    """What classes and tenants ask for and get. Raises errors.InvalidFieldError."""
    with _writing():
        request = operations_pb2.GetTrafficRequest(max_tenants=max_tenants)
    return Ask(lambda stubs: stubs.operations.GetTraffic, request, from_traffic)


def cancel(request_id: str, tenant: str) -> Ask[bool]:
    """Whether it was running: a second time it is not. Raises errors.InvalidFieldError."""
    with _writing():
        request = operations_pb2.CancelGenerationRequest(request_id=request_id, tenant=tenant)
    return Ask(
        lambda stubs: stubs.operations.CancelGeneration, request, lambda answer: bool(answer.found), repeatable=False
    )


def cancellations(limit: int, origin: str, tenant: str) -> Ask[tuple[Cancelled, ...]]:
    """Cancels, the newest first. Raises errors.InvalidFieldError."""
    with _writing():
        request = operations_pb2.ListCancellationsRequest(max_cancellations=limit, origin=origin, tenant=tenant)
    return Ask(
        lambda stubs: stubs.operations.ListCancellations,
        request,
        lambda answer: tuple(map(from_cancellation, answer.cancellations)),
    )


def dump_plan_log() -> Ask[bytes]:
    """A stream of pieces of a file."""
    return Ask(
        lambda stubs: stubs.operations.DumpPlanLog, operations_pb2.DumpPlanLogRequest(), lambda part: bytes(part.data)
    )
