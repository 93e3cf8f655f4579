"""tercet.v1.Inference over gRPC: translation between it and the rest, one method per call."""

from __future__ import annotations

import asyncio
import contextlib

import grpc
import grpc.aio
from google.protobuf.message import Message

from tercet import errors
from tercet.slow_reader import write
from tercet.tracing.context import context_of
from tercet.v1 import inference_pb2

from .answer_size import AnswerSize
from .call_end import end_call
from .generation import Generation
from .generations import Generations
from .guard import Guard
from .public_messages import to_accepted, to_delta, to_finished, to_prompt_logprobs, to_result
from .served_model import Catalogue
from .validate import validate_detokenize, validate_generate, validate_tokenize
from .wire import Malformed, checked

# How long a request that has failed waits for its client to take the first message.
HEARD_SECONDS = 0.5


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
            await end_call(error, context, generation)
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
            await end_call(error, context, generation)
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
                await end_call(error, context, None)

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
                await end_call(error, context, None)

    def _start(
        self, received: inference_pb2.GenerateRequest | Malformed, context: grpc.aio.ServicerContext
    ) -> Generation:
        caller = self._guard.caller(context)
        parent = context_of(context.invocation_metadata() or ())
        try:
            self._generations.refuse_if_draining()
            message = checked(received)
            max_bytes = self._generations.settings.max_prompt_bytes
            request = validate_generate(message, self._catalogue, max_prompt_bytes=max_bytes)
            return self._generations.start(request, caller, context.time_remaining(), parent)
        except errors.RequestError as error:
            traffic_class = "" if isinstance(received, Malformed) else received.traffic_class
            self._generations.note_refusal(caller.tenant, traffic_class, error, parent)
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
