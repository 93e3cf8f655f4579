"""The gateway's link without gRPC, on a clock that stands still."""

from __future__ import annotations

from gateway.known_refusals import KnownRefusals
from gateway.link import Link
from gateway.sent_requests import SentRequests
from tercet.dialer import Dialer
from tercet.mesh.v1 import scheduler_pb2 as pb


def standing_still() -> float:
    """A clock: two orders of the same moves must not differ in their times."""
    return 0.0


def nothing() -> None:
    """Nobody wants to know of changes of the link."""


class _Known(KnownRefusals):
    """By the same clock."""

    def forget(self, now: float) -> None:
        super().forget(standing_still())


class WiredLink(Link):
    """The link without gRPC: who has it carries what it sends and tells it what comes."""

    def __init__(self) -> None:
        super().__init__(Dialer("host:1", "scheduler", None), "gateway-1", nothing)
        self._known = _Known()
        self._requests = SentRequests(self.send, self._known, standing_still)

    def send(self, message: pb.GatewayMessage) -> None:
        self._outgoing.put_nowait(message)

    def take_sent(self) -> list[bytes]:
        """What it has sent since the last call."""
        return [self._outgoing.get_nowait().SerializeToString() for _ in range(self.num_unsent)]

    def hear(self, data: bytes) -> bool:
        """Whether it ends the stream, having heard goodbye."""
        message = pb.SchedulerMessage.FromString(data)
        if message.WhichOneof("message") == "goodbye":
            return True
        self._receive(message)
        return False

    def lose(self) -> None:
        """The stream is over; what was not sent is gone with it."""
        self.take_sent()
        self._lose()

    @property
    def num_unsent(self) -> int:
        """Messages that nobody has taken yet."""
        return self._outgoing.qsize()

    @property
    def num_requests(self) -> int:
        """Requests of which it still knows."""
        return len(self._requests)
