"""The requests between their Submit and their last message: where each answer of the scheduler belongs.

Knows no stream but the requests' own; what has to be said to the scheduler it hands to `send`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import structlog

from tercet import errors
from tercet.failure import failure_from_proto
from tercet.mesh.v1 import scheduler_pb2 as pb

from .cancel import CancelCause
from .mesh_messages import CANCEL_REASONS, Submission, to_account, to_sequence_end, to_submit
from .stream import Stream

log = structlog.get_logger()


class ProtocolError(Exception):
    """The scheduler said what it must not; the link is of no use any more."""


@dataclass(slots=True)
class SentRequest:
    """A request between Submit and its last message."""

    key: int
    request_id: str
    stream: Stream
    sequence_ids: list[int] = field(default_factory=list)
    ended: bool = False
    cause: CancelCause | None = None


class SentRequests:
    """All of one link, cancelled ones included. Every request gets its end: from the scheduler, or by `lose`.

    The methods `take_...` take the scheduler's messages.
    """

    def __init__(self, send: Callable[[pb.GatewayMessage], None]) -> None:
        self._send = send
        self._by_key: dict[int, SentRequest] = {}
        self._by_sequence: dict[int, SentRequest] = {}
        self._next_key = 1

    def __len__(self) -> int:
        return len(self._by_key)

    def submit(self, submission: Submission, stream: Stream) -> int:
        """Sends a request; its answers go to `stream`. Returns its key."""
        key = self._next_key
        self._next_key += 1
        self._by_key[key] = SentRequest(key, submission.request_id, stream)
        self._send(pb.GatewayMessage(submit=to_submit(key, submission)))
        return key

    def cancel(self, key: int, cause: CancelCause) -> None:
        """Tells the scheduler to stop, once; nothing if the request has ended."""
        request = self._by_key.get(key)
        if request is None or request.ended or request.cause is not None:
            return
        request.cause = cause
        self._send(pb.GatewayMessage(cancel=pb.Cancel(request_key=key, reason=CANCEL_REASONS[cause])))
        log.info("cancel_sent", request_id=request.request_id, cause=cause.value)

    def lose(self, why: Callable[[], errors.RequestError]) -> None:
        """The scheduler is gone: ends all requests with `why`."""
        lost = list(self._by_key.values())
        self._by_key.clear()
        self._by_sequence.clear()
        for request in lost:
            request.stream.fail(why())
            request.stream.close_account(None)

    def take_accepted(self, accepted: pb.RequestAccepted) -> None:
        request = self._by_key.get(accepted.request_key)
        if request is None:
            return
        request.sequence_ids = list(accepted.sequence_ids)
        for sequence_id in request.sequence_ids:
            self._by_sequence[sequence_id] = request
        request.stream.accept(accepted.queue_position)

    def take_refused(self, refused: pb.RequestRefused) -> None:
        request = self._by_key.get(refused.request_key)
        if request is None:
            return
        request.stream.fail(failure_from_proto(refused.failure))
        request.ended = True
        # A Cancel that crossed the refusal still gets its answer; the entry waits for it.
        if request.cause is None:
            del self._by_key[request.key]

    def take_tokens(self, batch: pb.TokenBatch) -> None:
        if len(batch.sequence_ids) != len(batch.token_ids):
            raise ProtocolError("the columns of a token batch differ in length")
        by_sequence = self._by_sequence
        stopped: list[tuple[SentRequest, CancelCause]] = []
        for sequence_id, token_id in zip(batch.sequence_ids, batch.token_ids, strict=False):
            request = by_sequence.get(sequence_id)
            if request is None:
                continue
            try:
                cause = request.stream.push(token_id)
            except Exception:
                _fault(request)
                cause = CancelCause.FAULT
            if cause is not None:
                stopped.append((request, cause))
        for end in batch.ends:
            request = by_sequence.get(end.sequence_id)
            if request is not None:
                try:
                    request.stream.end(to_sequence_end(end))
                except Exception:
                    _fault(request)
                self._forget_sequences(request)
                request.ended = True
                if request.cause is None:
                    del self._by_key[request.key]
        # Last, so that a sequence which ended with the same token is not cancelled as well.
        for request, cause in stopped:
            self.cancel(request.key, cause)

    def take_cancel_done(self, done: pb.CancelDone) -> None:
        request = self._by_key.pop(done.request_key, None)
        if request is None:
            return
        self._forget_sequences(request)
        account = to_account(done.account) if done.HasField("account") else None
        log.info(
            "cancel_done",
            request_id=request.request_id,
            cause=request.cause.value if request.cause else None,
            found=done.found,
            blocks_used=account.blocks_used if account else None,
            blocks_freed=account.blocks_freed if account else None,
        )
        request.stream.close_account(account)
        # Nothing more will come for it; a stream that waits for more must not wait for ever.
        request.stream.fail(errors.RequestCancelledError("the request was cancelled"))

    def _forget_sequences(self, request: SentRequest) -> None:
        for sequence_id in request.sequence_ids:
            self._by_sequence.pop(sequence_id, None)


def _fault(request: SentRequest) -> None:
    """A bug met one request's output: that request fails, the others on the link go on."""
    log.exception("output_failed", request_id=request.request_id)
    request.stream.fail(errors.EngineFaultError("the gateway failed to turn the output into text"))
