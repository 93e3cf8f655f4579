"""The channel to one service of the mesh, opened anew when the certificates have changed."""

from __future__ import annotations

import asyncio
import contextlib

import grpc.aio

from tercet.patience import apart
from tercet.rpc import open_channel
from tercet.tls.client import ClientTls
from tercet.tls.mesh import MeshIdentity

# How often one that waits for a connection looks for new certificates: with old ones none may ever come.
LOOK_SECONDS = 2.0


class Dialer:
    """One channel at a time. gRPC connects it again and again, but for ever with the certificates it was made with."""

    def __init__(self, address: str, service: str, identity: MeshIdentity | None) -> None:
        """`address` is that of a `service`; `identity` is the dialling service's, None without TLS."""
        self.address = address
        self._service = service
        self._identity = identity
        self._tls: ClientTls | None = None
        self._channel: grpc.aio.Channel | None = None

    @property
    def channel(self) -> grpc.aio.Channel:
        """The channel, connected or not."""
        if self._channel is None:
            self._tls = self._newest()
            self._channel = open_channel(self.address, self._tls)
        return self._channel

    async def renew(self) -> None:
        """Ends the channel, and the calls on it, if its certificates have been replaced; for when no stream lives."""
        if self._tls != self._newest():
            await self.close()

    async def connected(self) -> grpc.aio.Channel:
        """The channel once it is connected, however long that takes; renews it on the way."""
        while True:
            await self.renew()
            channel = self.channel
            with contextlib.suppress(asyncio.TimeoutError):
                await apart(channel.channel_ready(), LOOK_SECONDS)
                return channel

    async def close(self) -> None:
        """Ends the channel, and the calls on it."""
        if self._channel is not None:
            await self._channel.close()
            self._channel = None

    def _newest(self) -> ClientTls | None:
        return None if self._identity is None else self._identity.dialling(self._service)
