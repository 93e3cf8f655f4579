"""What a scheduler is still to be told on one stream: in order, and as few messages as may be."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import groupby

from tercet.mesh.v1 import scheduler_pb2 as pb

# Cancels in a message. The scheduler handles them in one round, 0.05 ms each, and meanwhile nothing else.
MOST_CANCELS = 64


class Outgoing:
    """One writer takes, anybody puts. Cancels go by the many once `takes_cancels`: the scheduler knows that."""

    def __init__(self) -> None:
        self.takes_cancels = False
        self._messages: list[pb.GatewayMessage] = []
        self._any = asyncio.Event()

    def __len__(self) -> int:
        return len(self._messages)

    def put(self, message: pb.GatewayMessage) -> None:
        """The last message for now."""
        self._messages.append(message)
        self._any.set()

    def take_now(self) -> list[pb.GatewayMessage]:
        """All there are."""
        taken, self._messages = self._messages, []
        self._any.clear()
        return merged(taken) if self.takes_cancels else taken

    async def take(self) -> list[pb.GatewayMessage]:
        """All there are, as soon as there is one."""
        await self._any.wait()
        return self.take_now()


def merged(messages: Sequence[pb.GatewayMessage]) -> list[pb.GatewayMessage]:
    """The same with cancels that follow each other as one message, since gRPC costs by the message."""
    out: list[pb.GatewayMessage] = []
    for is_cancel, group in groupby(messages, lambda message: message.WhichOneof("message") == "cancel"):
        some = list(group)
        if not is_cancel or len(some) == 1:
            out += some
            continue
        for first in range(0, len(some), MOST_CANCELS):
            cancels = pb.Cancels(cancels=(each.cancel for each in some[first : first + MOST_CANCELS]))
            out.append(pb.GatewayMessage(cancels=cancels))
    return out
