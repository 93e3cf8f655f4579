"""The gateway's link without gRPC, on a clock that stands still."""

from __future__ import annotations

from gateway.cancel import CancelOrigin
from gateway.known_refusals import KnownRefusals
from gateway.link import Link
from gateway.sent_request import SentRequest
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
    """The link without gRPC: who has it carries what it sends and tells it what comes. If it `keeps` requests that its
    scheduler cannot go on with, they wait until they are handed on."""

    def __init__(self, *, keeps: bool = False) -> None:
        super().__init__(Dialer("host:1", "scheduler", None), "gateway-1", nothing, hand_over=self.keep)
        self._known = _Known()
        self._requests = SentRequests(self.send, self._known, standing_still, self.keep)
        self._keeps = keeps
        self.waiting: list[SentRequest] = []

    def keep(self, request: SentRequest) -> bool:
        if self._keeps:
            self.waiting.append(request)
        return self._keeps

    def hand_on(self) -> None:
        """All that wait go to the scheduler that there is now."""
        waiting, self.waiting = self.waiting, []
        for request in waiting:
            self.take_over(request)

    def cancel(self, key: int, origin: CancelOrigin) -> None:
        """As the one who hands requests over: what nobody has is over."""
        found = [request for request in self.waiting if request.key == key]
        self.waiting = [request for request in self.waiting if request.key != key]
        for request in found:
            request.stream.cancels.ask(origin)
            request.stream.close_account(None)
        super().cancel(key, origin)

    def send(self, message: pb.GatewayMessage) -> None:
        self._outgoing.put(message)

    def take_sent(self) -> list[bytes]:
        """What it has sent since the last call."""
        return [message.SerializeToString() for message in self._outgoing.take_now()]

    def hear(self, data: bytes) -> bool:
        """Whether it ends the stream, having heard goodbye."""
        message = pb.SchedulerMessage.FromString(data)
        if message.WhichOneof("message") == "goodbye":
            return True
        self._receive(message)
        return False

    def compare(self) -> None:
        """Says what it takes for running, as it does again and again."""
        self.send(pb.GatewayMessage(running=pb.RunningRequests(request_keys=self._requests.keys())))

    def forget(self, key: int) -> bool:
        """A bug: it loses sight of a request that its scheduler has. Whether there is one."""
        request = self._requests._by_key.get(key)
        if request is not None:
            self._requests._forget(request)
        return request is not None

    def knows(self, key: int) -> bool:
        """Whether it has that request, and has not cancelled it."""
        request = self._requests._by_key.get(key)
        return request is not None and request.cancel_origin is None

    def lose(self) -> None:
        """The stream is over; what was not sent is gone with it."""
        self.take_sent()
        self._lose()

    @property
    def num_unsent(self) -> int:
        """Messages that nobody has taken yet."""
        return len(self._outgoing)

    @property
    def num_requests(self) -> int:
        """Requests of which it still knows."""
        return len(self._requests) + len(self.waiting)
