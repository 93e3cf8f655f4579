"""A request that goes from a scheduler that cannot go on with it to the next one, or to its end.

Knows no stream but the request's own.
"""

from __future__ import annotations

from tercet import errors
from tercet.mesh.v1 import scheduler_pb2 as pb

from .cancel import CancelOrigin
from .sent_request import SentRequest, SentSequence
from .sequence_end import Account, EndReason, SequenceEnd


def may_go_on(request: SentRequest) -> bool:
    """Whether another scheduler may go on with a request, of which this one says nothing more. The last word on
    outputs that are complete is made up for."""
    if request.cancel_origin is not None:
        return False
    for output in request.outputs:
        # Of a request whose outputs are all complete it is told only what the scheduler has said at its end.
        if output.stopped and not output.ended and (output.parted or not request.stream.ended):
            # Its text is complete. Nobody is left to say when its blocks were free.
            output.ended = True
            request.stream.cancels.answer(None, None, output.output_index)
            request.stream.end(output.output_index, _unsaid(output))
    if request.stream.ended:
        return False
    request.sequence_ids.clear()
    return True


def submit_of(request: SentRequest) -> pb.Submit:
    """What the next scheduler is told of a request that is sent at `sent_at`: with how far it has come."""
    submit = pb.Submit()
    submit.CopyFrom(request.submit)
    if request.deadline_at is not None:
        submit.deadline_ms = max(1, int((request.deadline_at - request.sent_at) * 1e3))
    submit.begun.extend(
        pb.Begun(token_ids=output.token_ids, ended=output.ended, account=output.before) for output in request.outputs
    )
    return submit


def end_lost(request: SentRequest, error: errors.RequestError) -> None:
    """Ends a request that no scheduler has."""
    stream = request.stream
    if not stream.ended:
        stream.cancels.ask(CancelOrigin.SCHEDULER_LOST)
        # Nobody will say how much more it was.
        if any(output.before is not None for output in request.outputs):
            stream.add_accounts({each.output_index: _cost_so_far(each) for each in request.outputs if not each.ended})
    stream.fail(error)
    stream.close_account(None)
    request.clear()


def is_for_another(error: errors.RequestError, request: SentRequest) -> bool:
    """Whether a refusal is about the scheduler, and not about the request. One that runs has been found good before."""
    if request.cancel_origin is not None:
        return False
    return isinstance(error, errors.DrainingError) or (
        isinstance(error, errors.NoWorkerError) and bool(request.outputs)
    )


def _unsaid(output: SentSequence) -> SequenceEnd:
    """The last word on a sequence of a scheduler that is gone."""
    return SequenceEnd(EndReason.CANCELLED, _cost_so_far(output))


def _cost_so_far(output: SentSequence) -> Account:
    before = output.before or pb.Account()
    return Account(
        cached_tokens=before.cached_tokens,
        blocks_used=0,
        blocks_freed=0,
        queue_s=before.queue_us / 1e6,
        generated_tokens=len(output.token_ids),
        gpu_s=before.gpu_us / 1e6,
        cpu_s=before.cpu_us / 1e6,
    )
