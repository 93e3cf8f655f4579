"""What is known of a request between its Submit and its last message, and of each of its outputs."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field

from tercet.mesh.v1 import scheduler_pb2 as pb

from .cancel import CancelOrigin
from .stream import Stream


@dataclass(slots=True, eq=False)
class SentRequest:
    """A request between Submit and its last message, at whatever scheduler. `sequence_ids` are those that have not
    ended."""

    key: int
    submit: pb.Submit
    stream: Stream
    sent_at: float
    # None: no deadline.
    deadline_at: float | None
    sequence_ids: set[int] = field(default_factory=set)
    # By output; empty until it was accepted.
    outputs: list[SentSequence] = field(default_factory=list)
    # Accepted, and neither ended nor cancelled.
    running: bool = False
    ended: bool = False
    cancel_origin: CancelOrigin | None = None
    # When that was, on the clock of `sent_at`; and whether it was told that there is no answer for long.
    cancelled_at: float = 0.0
    told: bool = False
    # How often the scheduler has said since then that it does not know it.
    doubts: int = 0

    def clear(self) -> None:
        """Lets go of its outputs, which know it: else all that it has would wait for the garbage collector."""
        self.sequence_ids.clear()
        self.outputs = []

    @property
    def request_id(self) -> str:
        return self.submit.request_id

    @property
    def tenant(self) -> str:
        return self.submit.tenant_id

    @property
    def traffic_class(self) -> str:
        return self.submit.traffic_class


@dataclass(slots=True, eq=False)
class SentSequence:
    """A sequence of a request that was accepted. `stopped`: its StopSequence has been sent."""

    request: SentRequest
    output_index: int
    # At the scheduler that has it now.
    sequence_id: int = 0
    # All that came of it.
    token_ids: array[int] = field(default_factory=lambda: array("I"))
    stopped: bool = False
    ended: bool = False
    # What it had cost when the scheduler told that last, and whether that was its goodbye.
    before: pb.Account | None = None
    parted: bool = False
