"""What a request's client is told, as messages of tercet.v1."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

from tercet.v1 import inference_pb2 as pb

from .admission import Admission
from .output import Finish
from .prompt_logprobs import PromptPart
from .sequence_end import EndReason
from .stream import Delta
from .summary import Summary
from .token_logprobs import TokenLogprobs


def to_accepted(admission: Admission) -> pb.Accepted:
    """The request was admitted."""
    return pb.Accepted(
        request_id=admission.request_id,
        model=admission.model.name,
        model_revision=admission.model.revision,
        queue_position=admission.queue_position,
        seed=admission.seed,
        prompt_tokens=admission.prompt_tokens,
        forecast_seconds=admission.forecast_s,
    )


def to_prompt_logprobs(admission: Admission, parts: Sequence[PromptPart]) -> pb.PromptLogprobs:
    """Logprobs of tokens of the prompt, of parts that follow each other, at least one."""
    first, count = parts[0].first, sum(map(len, parts))
    return pb.PromptLogprobs(
        token_offset=first,
        token_ids=admission.prompt[first : first + count],
        logprobs=map(_token_logprobs, chain.from_iterable(parts)),
    )


def to_delta(delta: Delta) -> pb.Delta:
    """More text of one output."""
    return pb.Delta(
        seq=delta.seq,
        token_offset=delta.token_offset,
        output_index=delta.output_index,
        text=delta.text,
        token_ids=delta.token_ids,
        logprobs=[_token_logprobs(item) for item in delta.logprobs],
        tool_calls=[
            pb.ToolCallDelta(index=call.index, id=call.id, name=call.name, arguments=call.arguments)
            for call in delta.tool_calls
        ],
    )


def to_finished(summary: Summary) -> pb.Finished:
    """The end of the request."""
    account = summary.account
    return pb.Finished(
        outputs=[_output_end(index, finish) for index, finish in enumerate(summary.finishes)],
        usage=pb.Usage(
            prompt_tokens=summary.prompt_tokens,
            cached_tokens=account.cached_tokens if account else None,
            completion_tokens=summary.completion_tokens,
            kv_blocks_used=account.blocks_used if account else None,
            kv_blocks_freed=account.blocks_freed if account else None,
            incomplete=account is None,
        ),
        timings=pb.Timings(
            admission_seconds=summary.admission_s,
            time_to_first_token_seconds=summary.first_token_s,
            total_seconds=summary.total_s,
            queue_seconds=account.queue_s if account else None,
        ),
    )


def to_result(
    admission: Admission, parts: Sequence[PromptPart], deltas: Sequence[Delta], summary: Summary
) -> pb.GenerateResult:
    """The answer at once: all parts of the prompt's logprobs, and all deltas of all outputs, joined."""
    finished = to_finished(summary)
    texts: list[list[str]] = [[] for _ in finished.outputs]
    token_ids: list[list[int]] = [[] for _ in finished.outputs]
    logprobs: list[list[pb.TokenLogprobs]] = [[] for _ in finished.outputs]
    calls: list[list[pb.ToolCall]] = [[] for _ in finished.outputs]
    for delta in deltas:
        texts[delta.output_index].append(delta.text)
        token_ids[delta.output_index] += delta.token_ids
        logprobs[delta.output_index] += map(_token_logprobs, delta.logprobs)
        for call in delta.tool_calls:
            if call.name:
                calls[delta.output_index].append(pb.ToolCall(id=call.id, name=call.name))
            calls[delta.output_index][call.index].arguments += call.arguments
    return pb.GenerateResult(
        request_id=admission.request_id,
        model=admission.model.name,
        model_revision=admission.model.revision,
        seed=admission.seed,
        outputs=[
            pb.Output(
                text="".join(texts[end.output_index]),
                token_ids=token_ids[end.output_index],
                end=end,
                logprobs=logprobs[end.output_index],
                tool_calls=calls[end.output_index],
            )
            for end in finished.outputs
        ],
        usage=finished.usage,
        timings=finished.timings,
        prompt_logprobs=to_prompt_logprobs(admission, parts) if parts else None,
    )


def _token_logprobs(item: TokenLogprobs) -> pb.TokenLogprobs:
    return pb.TokenLogprobs(logprob=item.logprob, top_token_ids=item.top_ids, top_logprobs=item.top_logprobs)


def _output_end(index: int, finish: Finish) -> pb.OutputEnd:
    stopped = pb.FINISH_REASON_TOOL_CALLS if finish.called else pb.FINISH_REASON_STOP
    reason = stopped if finish.reason is EndReason.STOP else pb.FINISH_REASON_LENGTH
    end = pb.OutputEnd(output_index=index, reason=reason)
    if finish.stop_string is not None:
        end.stop_string = finish.stop_string
    elif finish.stop_token_id is not None:
        end.stop_token_id = finish.stop_token_id
    return end
