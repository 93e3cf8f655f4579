"""The requests between their Submit and their last message: where each answer of the scheduler belongs.

Knows no stream but the requests' own; what has to be said to the scheduler it hands to `send`.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterable
from functools import partial

import structlog

from tercet import errors
from tercet.failure import failure_from_proto
from tercet.mesh.v1 import scheduler_pb2 as pb

from .cancel import CancelOrigin, CancelTrail
from .handover import end_lost, is_for_another, may_go_on, submit_of
from .known_refusals import KnownRefusals
from .mesh_messages import (
    CANCEL_REASONS,
    Submission,
    to_account,
    to_prompt_part,
    to_sequence_end,
    to_submit,
    to_targets,
    to_token_logprobs,
    to_trail,
)
from .sent_request import SentRequest, SentSequence
from .sequence_end import EndReason
from .stream import Stream
from .token_logprobs import TokenLogprobs

log = structlog.get_logger()

# A cancel that is not answered is sent again when the scheduler says that it does not know the request; at the so
# manieth time it is taken for answered.
MAX_DOUBTS = 3
# A worker frees blocks at the end of a step. A cancel that takes longer than this, in seconds, is told in the log.
UNANSWERED_S = 60.0


class ProtocolError(Exception):
    """The scheduler said what it must not; the link is of no use any more."""


def nobody(_: SentRequest) -> bool:
    """There is no other scheduler to take a request."""
    return False


def at_once(work: Callable[[], object]) -> None:
    """Nothing waits."""
    work()


class SentRequests:
    """All of one link, cancelled ones included. Every request gets its end: from the scheduler, or by `lose`.

    The methods `take_...` take the scheduler's messages. `known` learns from them what need not be asked again. A
    scheduler that cannot go on with a request loses it to whom `hand_over` gives it, if that returns True. What is to
    be done at the end of a cancelled request can wait: `do_soon` gets it.
    """

    def __init__(
        self,
        send: Callable[[pb.GatewayMessage], None],
        known: KnownRefusals,
        clock: Callable[[], float],
        hand_over: Callable[[SentRequest], bool] = nobody,
        do_soon: Callable[[Callable[[], object]], None] = at_once,
    ) -> None:
        self._send = send
        self._known = known
        self._clock = clock
        self._hand_over = hand_over
        self._do_soon = do_soon
        self._by_key: dict[int, SentRequest] = {}
        self._by_sequence: dict[int, SentSequence] = {}

    def __len__(self) -> int:
        return len(self._by_key)

    def submit(self, key: int, submission: Submission, stream: Stream) -> None:
        """Sends a request; its answers go to `stream`."""
        now, left_ms = self._clock(), submission.deadline_ms
        deadline_at = None if left_ms is None else now + left_ms / 1e3
        request = SentRequest(key, to_submit(key, submission), stream, now, deadline_at)
        self._enter(request)
        self._send(pb.GatewayMessage(submit=request.submit))

    def take_over(self, request: SentRequest) -> None:
        """Sends a request that another scheduler had, to go on from where it is."""
        request.sent_at = self._clock()
        submit = submit_of(request)
        for output in request.outputs:
            output.parted = False
        request.stream.takeovers += 1
        self._enter(request)
        self._send(pb.GatewayMessage(submit=submit))
        if request.stream.behind:
            self._send(pb.GatewayMessage(pause=pb.Pause(request_key=request.key)))
        log.info("request_taken_over", request_id=request.request_id, tokens=request.stream.num_tokens)

    def _enter(self, request: SentRequest) -> None:
        self._by_key[request.key] = request
        # By its key: by the request, stream and request would wait for the garbage collector.
        request.stream.on_reader = partial(self._tell_reader, request.key)

    def cancel(self, key: int, origin: CancelOrigin) -> None:
        """Tells the scheduler to stop, once; nothing if the request has ended."""
        request = self._by_key.get(key)
        if request is None or request.ended or request.cancel_origin is not None:
            return
        request.cancel_origin, request.cancelled_at = origin, self._clock()
        request.stream.cancels.ask(origin)
        # It may be gone before the answer comes, and its client may know that it has left.
        self._stops_running(request)
        self._send_cancel(request, origin)
        log.info("cancel_sent", request_id=request.request_id, origin=origin.value)

    def _send_cancel(self, request: SentRequest, origin: CancelOrigin) -> None:
        self._send(pb.GatewayMessage(cancel=pb.Cancel(request_key=request.key, reason=CANCEL_REASONS[origin])))

    def lose(self, why: Callable[[], errors.RequestError]) -> None:
        """The scheduler is gone: ends all requests with `why`."""
        lost = list(self._by_key.values())
        self._by_key.clear()
        self._by_sequence.clear()
        for request in lost:
            self._stops_running(request)
            if not (may_go_on(request) and self._hand_over(request)):
                end_lost(request, why())

    def take_goodbye(self, goodbye: pb.Goodbye) -> None:
        """What the sequences have cost that the scheduler leaves; `lose` comes next."""
        for output in self.take_costs(goodbye.parted):
            output.parted = True

    def take_costs(self, costs: Iterable[pb.Parted]) -> list[SentSequence]:
        """What sequences that have not ended have cost so far; returns those that are known."""
        known = []
        for each in costs:
            output = self._by_sequence.get(each.sequence_id)
            if output is not None:
                output.before = each.account
                known.append(output)
        return known

    def take_accepted(self, accepted: pb.RequestAccepted) -> None:
        request = self._by_key.get(accepted.request_key)
        if request is None:
            return
        outputs = request.outputs or [SentSequence(request, index) for index in range(request.stream.num_outputs)]
        live = [output for output in outputs if not output.ended]
        if len(accepted.sequence_ids) != len(live):
            # Its outputs would never all end; a scheduler that knows no n makes one.
            error = f"the scheduler made {len(accepted.sequence_ids)} sequences for {len(live)} outputs"
            request.stream.fail(errors.EngineFaultError(error))
            self.cancel(request.key, CancelOrigin.FAULT)
            return
        request.outputs = outputs
        for output, sequence_id in zip(live, accepted.sequence_ids, strict=True):
            output.sequence_id = sequence_id
            self._by_sequence[sequence_id] = output
        request.sequence_ids.update(accepted.sequence_ids)
        if request.cancel_origin is None:
            request.running = True
            self._known.accepted(request.tenant)
        forecast_s = accepted.forecast_us / 1e6 if accepted.HasField("forecast_us") else None
        request.stream.accept(accepted.queue_position, forecast_s, to_targets(accepted))

    def take_refused(self, refused: pb.RequestRefused) -> None:
        request = self._by_key.get(refused.request_key)
        if request is None:
            return
        error = failure_from_proto(refused.failure)
        if is_for_another(error, request) and may_go_on(request) and self._hand_over(request):
            del self._by_key[request.key]
            return
        self._known.note(request.tenant, request.traffic_class, error, request.sent_at, self._clock())
        request.stream.fail(error)
        request.stream.close_account(None)
        request.ended = True
        # A Cancel that crossed the refusal still gets its answer; the entry waits for it.
        if request.cancel_origin is None:
            self._forget(request)

    def take_tokens(self, batch: pb.TokenBatch) -> None:
        if len(batch.sequence_ids) != len(batch.token_ids):
            raise ProtocolError("the columns of a token batch differ in length")
        by_sequence = self._by_sequence
        logprobs: defaultdict[int, deque[TokenLogprobs]] = defaultdict(deque)
        for item in batch.logprobs:
            logprobs[item.sequence_id].append(to_token_logprobs(item))
        stopped: list[tuple[SentSequence, CancelOrigin]] = []
        for part in batch.prompt_logprobs:
            sequence = by_sequence.get(part.sequence_id)
            if sequence is None:
                continue
            try:
                sequence.request.stream.push_prompt(to_prompt_part(part))
            except Exception:
                _fault(sequence.request)
                stopped.append((sequence, CancelOrigin.FAULT))
        for sequence_id, token_id in zip(batch.sequence_ids, batch.token_ids, strict=False):
            sequence = by_sequence.get(sequence_id)
            if sequence is None:
                continue
            sequence.token_ids.append(token_id)
            try:
                of_token = logprobs[sequence_id].popleft() if sequence_id in logprobs else None
                origin = sequence.request.stream.push(sequence.output_index, token_id, of_token)
            except Exception:
                _fault(sequence.request)
                origin = CancelOrigin.FAULT
            if origin is not None:
                stopped.append((sequence, origin))
        failed = [found for end in batch.ends if (found := self._take_end(end)) is not None]
        # Last, so that a sequence which ended with the same token is not stopped as well.
        for sequence, origin in stopped:
            if origin is CancelOrigin.STOP_STRING:
                self._stop(sequence)
            else:
                self.cancel(sequence.request.key, origin)
        for request in failed:
            self.cancel(request.key, CancelOrigin.FAULT)

    def _take_end(self, end: pb.SequenceEnd) -> SentRequest | None:
        """The last word on a sequence. Returns its request if that failed by it, so that its others go on for nothing.
        Not after CANCELLED: who cancels inside the mesh cancels all of a request."""
        sequence = self._by_sequence.pop(end.sequence_id, None)
        if sequence is None:
            return None
        request = sequence.request
        sequence.ended = True
        had_failed = request.stream.error is not None
        last = to_sequence_end(end)
        if last.trail is not None:
            _note_cancel(sequence, last.trail, last.account.blocks_freed)
        try:
            request.stream.end(sequence.output_index, last)
        except Exception:
            _fault(request)
        if sequence.stopped:
            log.debug(
                "stop_done",
                request_id=request.request_id,
                output_index=sequence.output_index,
                blocks_used=last.account.blocks_used,
                blocks_freed=last.account.blocks_freed,
            )
        request.sequence_ids.discard(end.sequence_id)
        if not request.sequence_ids:
            request.ended = True
            self._stops_running(request)
            if request.cancel_origin is None:
                self._forget(request)
        failed = request.stream.error is not None and not had_failed
        return request if failed and last.reason is not EndReason.CANCELLED else None

    def _tell_reader(self, key: int) -> None:
        """A request's client has fallen behind, or caught up; nothing if it has ended or is cancelled."""
        request = self._by_key.get(key)
        if request is None or request.ended or request.cancel_origin is not None:
            return
        if request.stream.behind:
            self._send(pb.GatewayMessage(pause=pb.Pause(request_key=key)))
        else:
            self._send(pb.GatewayMessage(unpause=pb.Unpause(request_key=key)))
        log.info("reader_behind" if request.stream.behind else "reader_caught_up", request_id=request.request_id)

    def _stop(self, sequence: SentSequence) -> None:
        """Tells the scheduler to end one sequence, whose text is complete; nothing if it, or the request, has ended or
        is cancelled."""
        request = sequence.request
        if request.cancel_origin is not None or sequence.sequence_id not in request.sequence_ids:
            return
        sequence.stopped = True
        request.stream.cancels.ask(CancelOrigin.STOP_STRING, sequence.output_index)
        reason = CANCEL_REASONS[CancelOrigin.STOP_STRING]
        self._send(pb.GatewayMessage(stop_sequence=pb.StopSequence(sequence_id=sequence.sequence_id, reason=reason)))
        log.debug("stop_sent", request_id=request.request_id, output_index=sequence.output_index)

    def take_cancel_done(self, done: pb.CancelDone) -> None:
        request = self._by_key.get(done.request_key)
        if request is None:
            return
        self._forget(request)
        self._do_soon(partial(_close_cancelled, request, done))

    def keys(self) -> list[int]:
        """Of those whose last message has not come."""
        return list(self._by_key)

    def take_unknown(self, unknown: pb.UnknownRequests) -> None:
        """Ends requests of which the scheduler knows nothing. What it had said of them before has come before."""
        for key in unknown.request_keys:
            request = self._by_key.get(key)
            if request is None:
                continue
            if request.cancel_origin is not None:
                request.doubts += 1
                if request.doubts < MAX_DOUBTS:
                    # The answer may be on its way; then a second one is of no harm.
                    self._send_cancel(request, request.cancel_origin)
                    log.info("cancel_sent_again", request_id=request.request_id, origin=request.cancel_origin.value)
                    continue
            log.error("orphan_found", request_id=request.request_id)
            self._forget(request)
            self._stops_running(request)
            request.stream.cancels.ask(CancelOrigin.ORPHAN)
            request.stream.fail(errors.SchedulerLostError("the scheduler does not know the request any more"))
            request.stream.close_account(None)

    def tell_unanswered(self) -> None:
        """Tells the log, once, of each cancel that both sides know and that does not come to an end."""
        before = self._clock() - UNANSWERED_S
        for request in self._by_key.values():
            if request.cancel_origin is not None and request.cancelled_at < before and not request.told:
                request.told = True
                log.warning("cancel_unanswered", request_id=request.request_id, origin=request.cancel_origin.value)

    def _stops_running(self, request: SentRequest) -> None:
        if request.running:
            request.running = False
            self._known.over(request.tenant)

    def _forget(self, request: SentRequest) -> None:
        """Nothing more is to come of it."""
        del self._by_key[request.key]
        for sequence_id in request.sequence_ids:
            self._by_sequence.pop(sequence_id, None)
        request.clear()


def _close_cancelled(request: SentRequest, done: pb.CancelDone) -> None:
    """The scheduler has nothing more to say of a request."""
    account = to_account(done.account) if done.HasField("account") else None
    log.info(
        "cancel_done",
        request_id=request.request_id,
        origin=request.cancel_origin.value if request.cancel_origin else None,
        found=done.found,
        blocks_used=account.blocks_used if account else None,
        blocks_freed=account.blocks_freed if account else None,
    )
    trail = to_trail(done.trail) if done.HasField("trail") else None
    request.stream.cancels.answer(trail, account.blocks_freed if account else None)
    request.stream.close_account(account)
    # Nothing more will come for it; a stream that waits for more must not wait for ever.
    request.stream.fail(errors.RequestCancelledError("the request was cancelled"))


def _note_cancel(sequence: SentSequence, trail: CancelTrail, blocks_freed: int) -> None:
    cancels = sequence.request.stream.cancels
    if sequence.stopped:
        cancels.answer(trail, blocks_freed, sequence.output_index)
    else:
        cancels.note(trail, blocks_freed)


def _fault(request: SentRequest) -> None:
    """A bug met one request's output: that request fails, the others on the link go on."""
    log.exception("output_failed", request_id=request.request_id)
    request.stream.fail(errors.EngineFaultError("the gateway failed to turn the output into text"))
