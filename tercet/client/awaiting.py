"""The client for an event loop. What it asks, and when it asks again, is said elsewhere; this awaits."""

from __future__ import annotations

import asyncio
import contextlib
import weakref
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

import grpc
import grpc.aio

from tercet import errors
from tercet.ledger.row import Cancelled
from tercet.mesh_info import FleetInfo, ModelInfo
from tercet.messages import Answer, ChatMessage, Delta, Event, Finished, Options, Prompt
from tercet.patience import apart
from tercet.tls.client import ClientTls
from tercet.traffic import TrafficInfo

from . import asks
from .asks import Ask, Stubs
from .collector import Collector
from .connection import DEFAULT_ADDRESS, Connection
from .conversation import Conversation
from .option_names import OptionNames, options_of
from .retries import Retry, Tries
from .status import to_error

if TYPE_CHECKING:
    from typing_extensions import Unpack

Reply = TypeVar("Reply")
Message = TypeVar("Message")


class _Pause:
    """A wait that another task can end."""

    def __init__(self) -> None:
        self._over = asyncio.Event()

    @property
    def cancelled(self) -> bool:
        return self._over.is_set()

    def cancel(self) -> None:
        self._over.set()

    async def rest(self, seconds: float) -> None:
        """Raises errors.RequestCancelledError once it is cancelled."""
        with contextlib.suppress(asyncio.TimeoutError):
            await apart(self._over.wait(), seconds)
            raise errors.RequestCancelledError("cancelled by its client")


class AsyncGeneration:
    """One running request: an asynchronous iterator of events, and a scope.

    The call starts when the object is made. It is cancelled when the scope is left, when iteration is left early, or by
    `cancel`; after its end all three do nothing. Can be iterated once.
    """

    def __init__(
        self, start: Callable[[float | None], Any], ask: Ask[Event | None], tries: Tries, address: str
    ) -> None:
        self._start = start
        self._ask = ask
        self._tries = tries
        self._address = address
        self._pause = _Pause()
        self._finished = False
        self._call = start(tries.begin())

    def cancel(self) -> None:
        """Ends the request on the server. Idempotent. An iteration that waits raises errors.RequestCancelledError."""
        self._pause.cancel()
        self._call.cancel()

    def __del__(self) -> None:
        # gRPC lets a call of an event loop run on that nobody has. The loop itself may be gone.
        call = getattr(self, "_call", None)
        if call is not None and not call.done():
            with contextlib.suppress(RuntimeError):
                call.cancel()

    async def __aenter__(self) -> AsyncGeneration:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.cancel()

    async def __aiter__(self) -> AsyncGenerator[Event, None]:
        """Accepted, PromptLogprobs if asked for, any number of Delta, Finished. Raises errors.RequestError, but not
        behind Finished."""
        try:
            while (event := await self._next()) is not None:
                yield event
        finally:
            self.cancel()

    async def texts(self) -> AsyncGenerator[str, None]:
        """The first output's text, piece by piece. Raises errors.RequestError."""
        async with contextlib.aclosing(self.__aiter__()) as events:
            async for event in events:
                if isinstance(event, Delta) and event.output_index == 0 and event.text:
                    yield event.text

    async def answer(self, on_text: Callable[[str], None] | None = None) -> Answer:
        """Reads to the end, calling `on_text` with each piece of the first output's text as it comes.

        Raises errors.RequestError.
        """
        collector = Collector()
        # An iteration that `on_text` breaks off ends here, not whenever the event loop finds it.
        async with contextlib.aclosing(self.__aiter__()) as events:
            async for event in events:
                collector.take(event)
                if on_text is not None and isinstance(event, Delta) and event.output_index == 0:
                    on_text(event.text)
        return collector.answer(self._address)

    async def _next(self) -> Event | None:
        """The next event, None at the end."""
        while True:
            try:
                message = await _typed(self._call.read(), self._address, lambda: self._pause.cancelled)
            except errors.RequestError as error:
                # A connection that breaks behind the end takes nothing with it that anybody could want.
                if self._finished:
                    return None
                await self._pause.rest(self._tries.wait_s(error))
                self._call = self._start(self._tries.begin())
                continue
            if message is grpc.aio.EOF:
                return None
            self._tries.note_begun()
            event = self._ask.reply(message)
            if event is not None:
                self._finished = isinstance(event, Finished)
                return event


class AsyncClient:
    """The same as Client for one event loop. Use as ``async with``; every method that waits is to be awaited."""

    def __init__(
        self,
        address: str = DEFAULT_ADDRESS,
        *,
        api_key: str = "",
        tls: ClientTls | None = None,
        timeout_s: float | None = None,
        retry: Retry | None = None,
    ) -> None:
        self.address = address
        self._connection = Connection(address, api_key, tls, timeout_s, retry)
        self._channel: grpc.aio.Channel | None = None
        self._stubs: Stubs | None = None
        # What the end of the scope ends. Whoever drops one of them has it ended, too.
        self._open: weakref.WeakSet[Any] = weakref.WeakSet()

    async def __aenter__(self) -> AsyncClient:
        self._channel = self._connection.open()
        self._stubs = Stubs(self._channel)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        channel, self._channel, self._stubs = self._channel, None, None
        for each in tuple(self._open):
            each.cancel()
        if channel is not None:
            await channel.close()

    def generate(
        self,
        prompt: Prompt,
        options: Options | None = None,
        *,
        timeout_s: float | None = None,
        **more: Unpack[OptionNames],
    ) -> AsyncGeneration:
        """Starts a request: text, token ids, or chat messages. Options as one object, or by name (see Options).

        Raises TypeError for a prompt that is none of these or a name that is no option.
        """
        ask = asks.generate(prompt, options_of(options, more))
        tries = self._connection.tries(ask, timeout_s)
        generation = AsyncGeneration(lambda left_s: self._start(ask, left_s), ask, tries, self.address)
        self._open.add(generation)
        return generation

    async def generate_once(
        self,
        prompt: Prompt,
        options: Options | None = None,
        *,
        timeout_s: float | None = None,
        **more: Unpack[OptionNames],
    ) -> Answer:
        """The same as `generate`, answered at once when all is done."""
        return await self._answer(asks.generate_once(prompt, options_of(options, more)), timeout_s)

    async def chat(
        self,
        conversation: Conversation,
        text: str | None = None,
        options: Options | None = None,
        *,
        on_text: Callable[[str], None] | None = None,
        timeout_s: float | None = None,
        **more: Unpack[OptionNames],
    ) -> Answer:
        """The assistant's turn, behind the user's if `text` is one. Both are in the conversation when it has ended, and
        neither if it fails. `on_text` as of AsyncGeneration.answer."""
        chosen = options_of(options, more)
        async with self.generate(conversation.asking(text), chosen, timeout_s=timeout_s) as generation:
            answer = await generation.answer(on_text)
        conversation.take(text, answer, continues=chosen.continue_final_message)
        return answer

    async def tokenize(
        self,
        prompt: str | Sequence[ChatMessage],
        options: Options | None = None,
        *,
        timeout_s: float | None = None,
        **more: Unpack[OptionNames],
    ) -> tuple[int, ...]:
        """Token ids of a text or a chat, as `generate` would see them with the same options; those that no prompt
        depends on, such as `temperature`, change nothing."""
        return await self._answer(asks.tokenize(prompt, options_of(options, more)), timeout_s)

    async def detokenize(self, token_ids: Sequence[int], *, model: str = "", timeout_s: float | None = None) -> str:
        """The text of token ids, without special tokens."""
        return await self._answer(asks.detokenize(token_ids, model), timeout_s)

    async def models(self, *, timeout_s: float | None = None) -> tuple[ModelInfo, ...]:
        """Every served model."""
        return await self._answer(asks.models(), timeout_s)

    async def model(self, name: str = "", *, timeout_s: float | None = None) -> ModelInfo:
        """One model by any of its names; the first if `name` is empty. Raises ModelNotFoundError."""
        return await self._answer(asks.model(name, self.address), timeout_s)

    async def fleet(self, *, timeout_s: float | None = None) -> FleetInfo:
        """The state of the mesh now."""
        return await self._answer(asks.fleet(), timeout_s)

    async def traffic(self, *, max_tenants: int = 100, timeout_s: float | None = None) -> TrafficInfo:
        """What classes and tenants ask for and get; of tenants at most so many, first those that have most running and
        waiting. 0 is 100, too."""
        return await self._answer(asks.traffic(max_tenants), timeout_s)

    async def cancel(self, request_id: str, *, tenant: str = "", timeout_s: float | None = None) -> bool:
        """Cancels a request by its id; with the key of an operator that of `tenant`, or, if that is empty, whoever's.
        Whether it was running."""
        return await self._answer(asks.cancel(request_id, tenant), timeout_s)

    async def cancellations(
        self, *, limit: int = 100, origin: str = "", tenant: str = "", timeout_s: float | None = None
    ) -> tuple[Cancelled, ...]:
        """The latest cancels of the gateway's requests, the newest first; of one origin, or one tenant, if given."""
        return await self._answer(asks.cancellations(limit, origin, tenant), timeout_s)

    async def dump_plan_log(self, *, timeout_s: float | None = None) -> AsyncGenerator[bytes, None]:
        """The scheduler's plan log: the file for `tercet replay-plans`, piece by piece."""
        ask = asks.dump_plan_log()
        call = self._start(ask, self._connection.tries(ask, timeout_s).begin())
        try:
            while (part := await _typed(call.read(), self.address, lambda: self._stubs is None)) is not grpc.aio.EOF:
                yield ask.reply(part)
        finally:
            call.cancel()

    async def _answer(self, ask: Ask[Reply], timeout_s: float | None) -> Reply:
        tries, pause = self._connection.tries(ask, timeout_s), _Pause()
        self._open.add(pause)
        while True:
            call = self._start(ask, tries.begin())
            try:
                return ask.reply(await _typed(call, self.address, lambda: pause.cancelled))
            except errors.RequestError as error:
                wait_s = tries.wait_s(error)
            await pause.rest(wait_s)

    def _start(self, ask: Ask[object], left_s: float | None) -> Any:
        """A call, held. Raises RuntimeError outside of the client's scope."""
        if self._stubs is None:
            raise RuntimeError("use AsyncClient as `async with AsyncClient(address) as client`")
        call = ask.method(self._stubs)(ask.request, timeout=left_s, metadata=self._connection.metadata)
        self._open.add(call)
        return call


async def _typed(reply: Awaitable[Message], address: str, is_cancelled: Callable[[], bool]) -> Message:
    """The reply of a call, its status turned into a typed error."""
    try:
        return await reply
    except grpc.aio.AioRpcError as failed:
        raise to_error(failed, address) from None
    except asyncio.CancelledError:
        # gRPC raises the same for a cancelled call and a cancelled task; only the latter may pass as such.
        if is_cancelled():
            raise errors.RequestCancelledError("cancelled by its client") from None
        raise
