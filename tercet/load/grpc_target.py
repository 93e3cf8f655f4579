"""A Tercet gateway, asked over gRPC."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack
from types import TracebackType

from tercet import errors
from tercet.client import Accepted, AsyncClient, ClientTls, Delta, Finished, Options
from tercet.mesh_info import FleetInfo
from tercet.traffic import TrafficInfo

from .ask import Ask
from .record import ServerSample
from .server_look import FleetRates, limits_of
from .slo import Slo
from .target import DEADLINE, AnswerError, Begun, Described, Ended, Event, Piece

# Of calls that no model takes part in.
_CONTROL_S = 10.0
_LOOK_S = 2.0
# Errors that are no refusal, though nothing had begun: nobody has said no.
_LOST = frozenset({DEADLINE, "GATEWAY_LOST", "SCHEDULER_LOST", "WORKER_LOST", "ENGINE_FAULT", "REQUEST_CANCELLED"})
# Whoever is not told something today will not be told it in a second.
_NEVER = (errors.PermissionDeniedError, errors.UnauthenticatedError)


class GrpcTarget:
    """A scope. `connections` share the requests of each key: gateways that share a port share their clients by them."""

    def __init__(
        self,
        address: str,
        *,
        api_key: str = "",
        tls: ClientTls | None = None,
        model: str = "",
        connections: int = 1,
        cache_salt: str = "",
    ) -> None:
        self._address = address
        self._api_key = api_key
        self._tls = tls
        self._model = model
        self._connections = connections
        self._cache_salt = cache_salt
        self._scope = AsyncExitStack()
        self._clients: dict[str, list[AsyncClient]] = {}
        self._turn = 0
        self._rates = FleetRates()
        self._tells = True

    @property
    def name(self) -> str:
        return f"the gateway at {self._address}"

    async def __aenter__(self) -> GrpcTarget:
        await self._scope.__aenter__()
        self._own = await self._client(self._api_key)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._scope.__aexit__(kind, error, trace)

    async def describe(self) -> Described:
        try:
            model = await self._own.model(self._model, timeout_s=_CONTROL_S)
        except errors.RequestError as error:
            raise errors.LoadError(f"{self.name} does not say what it serves: {error}") from error
        fleet = await self._fleet(_CONTROL_S)
        traffic = await self._traffic()
        more = {
            "served_names": list(model.served_names),
            "workers": None
            if fleet is None
            else [
                {"address": each.address, "model": each.model, "device": each.device, "kv_blocks": each.blocks_total}
                for each in fleet.workers
            ],
        }
        return Described(
            model.name,
            model.revision,
            model.max_model_len,
            model.vocab_size,
            takes_tokens=True,
            classes=() if traffic is None else tuple(each.name for each in traffic.classes if each.name),
            more=more,
        )

    async def stream(self, ask: Ask) -> AsyncGenerator[Event, None]:
        principal = ask.principal
        options = Options(
            model=self._model,
            temperature=ask.temperature,
            seed=ask.seed,
            max_tokens=ask.max_tokens,
            ignore_eos=ask.ignore_eos,
            priority=principal.priority or None,
            traffic_class=principal.traffic_class,
            cache_salt=self._cache_salt,
        )
        client = await self._client(principal.api_key or self._api_key)
        begun = False
        try:
            async with client.generate(ask.prompt, options, timeout_s=ask.timeout_s) as generation:
                async for event in generation:
                    if isinstance(event, Delta):
                        if event.token_ids:
                            yield Piece(len(event.token_ids))
                    elif isinstance(event, Accepted):
                        begun = True
                        yield Begun(event.request_id, event.prompt_tokens)
                    elif isinstance(event, Finished):
                        yield _ended(event)
        except errors.RequestError as error:
            refused = not begun and error.reason not in _LOST
            raise AnswerError(
                error.reason, error.message, refused=refused, retry_after_s=error.retry_after_s
            ) from error

    async def tokenize(self, text: str) -> tuple[int, ...] | None:
        try:
            return await self._own.tokenize(text, model=self._model, timeout_s=60.0)
        except errors.RequestError as error:
            raise errors.LoadError(f"{self.name} does not tokenize the text: {error}") from error

    async def limits(self) -> Mapping[str, Slo]:
        traffic = await self._traffic()
        return {} if traffic is None else limits_of(traffic)

    async def look(self) -> ServerSample | None:
        fleet = await self._fleet(_LOOK_S)
        return None if fleet is None else self._rates.sample(fleet, time.monotonic())

    async def _fleet(self, timeout_s: float) -> FleetInfo | None:
        if not self._tells:
            return None
        try:
            return await self._own.fleet(timeout_s=timeout_s)
        except _NEVER:
            self._tells = False
        except errors.RequestError:
            pass
        return None

    async def _traffic(self) -> TrafficInfo | None:
        try:
            return await self._own.traffic(timeout_s=_CONTROL_S)
        except errors.RequestError:
            return None

    async def _client(self, api_key: str) -> AsyncClient:
        """One of those of a key, in turn."""
        clients = self._clients.get(api_key)
        if clients is None:
            clients = self._clients[api_key] = [
                AsyncClient(self._address, api_key=api_key, tls=self._tls) for _ in range(self._connections)
            ]
            for client in clients:
                await self._scope.enter_async_context(client)
        self._turn += 1
        return clients[self._turn % len(clients)]


def _ended(event: Finished) -> Ended:
    usage = event.usage
    return Ended(
        event.finish_reason,
        prompt_tokens=usage.prompt_tokens,
        output_tokens=usage.completion_tokens,
        cached_tokens=usage.cached_tokens,
        queue_s=event.timings.queue_seconds,
    )
