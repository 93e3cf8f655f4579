"""The client for threads. What it asks, and when it asks again, is said elsewhere; this waits."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

import grpc

from tercet import errors
from tercet.ledger.row import Cancelled
from tercet.mesh_info import FleetInfo, ModelInfo
from tercet.messages import Answer, ChatMessage, Delta, Event, Finished, Options, Prompt
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
    """A wait that another thread can end."""

    def __init__(self) -> None:
        self._over = threading.Event()

    @property
    def cancelled(self) -> bool:
        return self._over.is_set()

    def cancel(self) -> None:
        self._over.set()

    def rest(self, seconds: float) -> None:
        """Raises errors.RequestCancelledError once it is cancelled."""
        if self._over.wait(seconds):
            raise errors.RequestCancelledError("cancelled by its client")


class Generation:
    """One running request: an iterator of events, and a scope.

    The call starts when the object is made. It is cancelled when the scope is left, when iteration is left early, or by
    `cancel`, also of another thread; after its end all three do nothing. Can be iterated once, by one thread.
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

    def __enter__(self) -> Generation:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.cancel()

    def __iter__(self) -> Iterator[Event]:
        """Accepted, PromptLogprobs if asked for, any number of Delta, Finished. Raises errors.RequestError, but not
        behind Finished."""
        try:
            while (event := self._next()) is not None:
                yield event
        finally:
            self.cancel()

    def texts(self) -> Iterator[str]:
        """The first output's text, piece by piece. Raises errors.RequestError."""
        for event in self:
            if isinstance(event, Delta) and event.output_index == 0 and event.text:
                yield event.text

    def answer(self, on_text: Callable[[str], None] | None = None) -> Answer:
        """Reads to the end, calling `on_text` with each piece of the first output's text as it comes.

        Raises errors.RequestError.
        """
        collector = Collector()
        for event in self:
            collector.take(event)
            if on_text is not None and isinstance(event, Delta) and event.output_index == 0:
                on_text(event.text)
        return collector.answer(self._address)

    def _next(self) -> Event | None:
        """The next event, None at the end."""
        while True:
            try:
                message = _typed(self._call, self._address, lambda: next(self._call, None))
            except errors.RequestError as error:
                # A connection that breaks behind the end takes nothing with it that anybody could want.
                if self._finished:
                    return None
                self._ask_again(error)
                continue
            if message is None:
                return None
            self._tries.note_begun()
            event = self._ask.reply(message)
            if event is not None:
                self._finished = isinstance(event, Finished)
                return event

    def _ask_again(self, error: errors.RequestError) -> None:
        """Raises `error` if that is not to be."""
        self._pause.rest(self._tries.wait_s(error))
        self._call = self._start(self._tries.begin())
        if self._pause.cancelled:
            # By another thread, which knew the call before this one.
            self._call.cancel()


class Client:
    """A connection to one gateway, for any number of threads. Closed by `close`, or use it as ``with``.

    `address` is host:port; `tls` says by what its certificate is known, None is plain text. `api_key` is sent with
    every call; without `tls` all on the way can read it. `timeout_s` is for calls that give none of their own; it
    includes all attempts of `retry`, without which there is one. Nothing is dialled before the first call. Every method
    raises errors.RequestError: the gateway's own, GatewayLostError if there is no gateway, DeadlineError after
    `timeout_s` seconds. Raises ValueError for an address that is not host:port, for a key that no gateway could read,
    and for a timeout of more than a year; None is no limit. A process that was forked needs a client of its own.
    """

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
        self._channel = self._connection.open_blocking()
        self._stubs = Stubs(self._channel)
        # What `close` ends. Whoever drops one of them has it ended, too: gRPC sees to that.
        self._open: weakref.WeakSet[Any] = weakref.WeakSet()
        self._lock = threading.Lock()
        self._closed = False

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Cancels what is open, and disconnects. Idempotent. Whoever waits for a reply gets RequestCancelledError."""
        with self._lock:
            self._closed = True
            running = tuple(self._open)
        for each in running:
            each.cancel()
        self._channel.close()

    def generate(
        self,
        prompt: Prompt,
        options: Options | None = None,
        *,
        timeout_s: float | None = None,
        **more: Unpack[OptionNames],
    ) -> Generation:
        """Starts a request: text, token ids, or chat messages. Options as one object, or by name (see Options).

        Raises TypeError for a prompt that is none of these or a name that is no option.
        """
        ask = asks.generate(prompt, options_of(options, more))
        tries = self._connection.tries(ask, timeout_s)
        generation = Generation(lambda left_s: self._start(ask, left_s), ask, tries, self.address)
        self._hold(generation)
        return generation

    def generate_once(
        self,
        prompt: Prompt,
        options: Options | None = None,
        *,
        timeout_s: float | None = None,
        **more: Unpack[OptionNames],
    ) -> Answer:
        """The same as `generate`, answered at once when all is done."""
        return self._answer(asks.generate_once(prompt, options_of(options, more)), timeout_s)

    def chat(
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
        neither if it fails. `on_text` as of Generation.answer."""
        chosen = options_of(options, more)
        with self.generate(conversation.asking(text), chosen, timeout_s=timeout_s) as generation:
            answer = generation.answer(on_text)
        conversation.take(text, answer, continues=chosen.continue_final_message)
        return answer

    def tokenize(
        self,
        prompt: str | Sequence[ChatMessage],
        options: Options | None = None,
        *,
        timeout_s: float | None = None,
        **more: Unpack[OptionNames],
    ) -> tuple[int, ...]:
        """Token ids of a text or a chat, as `generate` would see them with the same options; those that no prompt
        depends on, such as `temperature`, change nothing."""
        return self._answer(asks.tokenize(prompt, options_of(options, more)), timeout_s)

    def detokenize(self, token_ids: Sequence[int], *, model: str = "", timeout_s: float | None = None) -> str:
        """The text of token ids, without special tokens."""
        return self._answer(asks.detokenize(token_ids, model), timeout_s)

    def models(self, *, timeout_s: float | None = None) -> tuple[ModelInfo, ...]:
        """Every served model."""
        return self._answer(asks.models(), timeout_s)

    def model(self, name: str = "", *, timeout_s: float | None = None) -> ModelInfo:
        """One model by any of its names; the first if `name` is empty. Raises ModelNotFoundError."""
        return self._answer(asks.model(name, self.address), timeout_s)

    def fleet(self, *, timeout_s: float | None = None) -> FleetInfo:
        """The state of the mesh now."""
        return self._answer(asks.fleet(), timeout_s)

    def traffic(self, *, max_tenants: int = 100, timeout_s: float | None = None) -> TrafficInfo:
        """What classes and tenants ask for and get; of tenants at most so many, first those that have most running and
        waiting. 0 is 100, too."""
        return self._answer(asks.traffic(max_tenants), timeout_s)

    def cancel(self, request_id: str, *, tenant: str = "", timeout_s: float | None = None) -> bool:
        """Cancels a request by its id; with the key of an operator that of `tenant`, or, if that is empty, whoever's.
        Whether it was running."""
        return self._answer(asks.cancel(request_id, tenant), timeout_s)

    def cancellations(
        self, *, limit: int = 100, origin: str = "", tenant: str = "", timeout_s: float | None = None
    ) -> tuple[Cancelled, ...]:
        """The latest cancels of the gateway's requests, the newest first; of one origin, or one tenant, if given."""
        return self._answer(asks.cancellations(limit, origin, tenant), timeout_s)

    def dump_plan_log(self, *, timeout_s: float | None = None) -> Iterator[bytes]:
        """The scheduler's plan log: the file for `tercet replay-plans`, piece by piece."""
        ask = asks.dump_plan_log()
        call = self._start(ask, self._connection.tries(ask, timeout_s).begin())
        try:
            while (part := _typed(call, self.address, lambda: next(call, None))) is not None:
                yield ask.reply(part)
        finally:
            call.cancel()

    def _answer(self, ask: Ask[Reply], timeout_s: float | None) -> Reply:
        tries, pause = self._connection.tries(ask, timeout_s), _Pause()
        while True:
            call = self._start(ask, tries.begin())
            try:
                return ask.reply(_typed(call, self.address, call.result))
            except errors.RequestError as error:
                wait_s = tries.wait_s(error)
            finally:
                # A wait that is broken off, as by Ctrl-C, ends the call.
                call.cancel()
            self._hold(pause)
            pause.rest(wait_s)

    def _start(self, ask: Ask[object], left_s: float | None) -> Any:
        """A call, held. Raises RuntimeError if the client is closed."""
        method = ask.method(self._stubs)
        begin = method if isinstance(method, grpc.UnaryStreamMultiCallable) else method.future
        with self._lock:
            if self._closed:
                raise RuntimeError("the client is closed")
            call = begin(ask.request, timeout=left_s, metadata=self._connection.metadata)
            self._open.add(call)
        return call

    def _hold(self, held: Generation | _Pause) -> None:
        """Has it ended with the client."""
        with self._lock:
            self._open.add(held)
            closed = self._closed
        if closed:
            held.cancel()


def _typed(call: Any, address: str, read: Callable[[], Message]) -> Message:
    """What `read` gets of a call, its status turned into a typed error."""
    try:
        return read()
    except (grpc.RpcError, grpc.FutureCancelledError):
        if call.cancelled():
            raise errors.RequestCancelledError("cancelled by its client") from None
        raise to_error(call, address) from None
