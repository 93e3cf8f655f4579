"""What both clients are made with."""

from __future__ import annotations

from dataclasses import dataclass, field

import grpc
import grpc.aio

from tercet import rpc, setting_check
from tercet.tls.client import ClientTls

from .asks import Ask
from .retries import Retry, Tries

DEFAULT_ADDRESS = "127.0.0.1:50051"


@dataclass(frozen=True, slots=True)
class Connection:
    """Where a gateway is, who asks, and for how long. Raises ValueError for an address that is not host:port, for a key
    that no gateway could read, and for a timeout of more than a year."""

    address: str
    api_key: str = field(repr=False)
    tls: ClientTls | None
    timeout_s: float | None
    retry: Retry | None

    def __post_init__(self) -> None:
        if (problem := setting_check.address(self.address)) is not None:
            raise ValueError(f"address {problem}")
        if not all("!" <= character <= "~" for character in self.api_key):
            raise ValueError("api_key must be printable ASCII without spaces")
        Tries(self.retry, self.timeout_s, repeatable=False)

    @property
    def metadata(self) -> tuple[tuple[str, str], ...] | None:
        """What is sent with every call."""
        return (("authorization", f"Bearer {self.api_key}"),) if self.api_key else None

    def tries(self, ask: Ask[object], timeout_s: float | None) -> Tries:
        """The attempts of a call; without a timeout of its own it has the connection's."""
        return Tries(self.retry, self.timeout_s if timeout_s is None else timeout_s, repeatable=ask.repeatable)

    def open(self) -> grpc.aio.Channel:
        """A channel for one event loop. It connects lazily and by itself."""
        return rpc.open_channel(self.address, self.tls)

    def open_blocking(self) -> grpc.Channel:
        """A channel for threads. It connects lazily and by itself."""
        if self.tls is None:
            return grpc.insecure_channel(self.address, options=rpc.CHANNEL_OPTIONS)
        options = [*rpc.CHANNEL_OPTIONS, *self.tls.options()]
        return grpc.secure_channel(self.address, self.tls.credentials(), options=options)
