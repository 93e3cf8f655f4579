"""What a client receives: of its protos, and whole answers of their pieces."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tercet.messages import (
    Accepted,
    Answer,
    Delta,
    Event,
    Finished,
    FinishReason,
    Output,
    OutputEnd,
    PromptLogprobs,
    Timings,
    TokenLogprobs,
    ToolCall,
    ToolCallDelta,
    Usage,
)
from tercet.v1 import inference_pb2 as pb


def from_event(event: pb.GenerateEvent) -> Event | None:
    """The event of a proto; None for a kind this version does not know."""
    kind = event.WhichOneof("event")
    if kind == "accepted":
        return _accepted(event.accepted)
    if kind == "delta":
        return Delta(
            event.delta.text,
            tuple(event.delta.token_ids),
            event.delta.output_index,
            from_logprobs(event.delta.logprobs),
            tuple(ToolCallDelta(call.index, call.id, call.name, call.arguments) for call in event.delta.tool_calls),
        )
    if kind == "prompt_logprobs":
        return _prompt_logprobs(event.prompt_logprobs)
    if kind == "finished":
        return _finished(event.finished.outputs, event.finished.usage, event.finished.timings)
    return None


def from_result(result: pb.GenerateResult) -> Answer:
    """The answer of GenerateOnce."""
    accepted = Accepted(
        result.request_id, result.model, result.model_revision, None, result.seed, result.usage.prompt_tokens
    )
    finished = _finished([output.end for output in result.outputs], result.usage, result.timings)
    written = [
        (
            output.text,
            tuple(output.token_ids),
            from_logprobs(output.logprobs),
            tuple(ToolCall(call.id, call.name, call.arguments) for call in output.tool_calls),
        )
        for output in result.outputs
    ] or [("", (), (), ())]
    prompt = _prompt_logprobs(result.prompt_logprobs) if result.HasField("prompt_logprobs") else None
    return to_answer(written, accepted, finished, prompt)


def joined(deltas: Iterable[ToolCallDelta]) -> tuple[ToolCall, ...]:
    """The calls of an output, of all its deltas."""
    calls: dict[int, list[ToolCallDelta]] = {}
    for delta in deltas:
        calls.setdefault(delta.index, []).append(delta)
    return tuple(
        ToolCall(parts[0].id, parts[0].name, "".join(part.arguments for part in parts)) for parts in calls.values()
    )


def from_logprobs(logprobs: Iterable[pb.TokenLogprobs]) -> tuple[TokenLogprobs, ...]:
    """The logprobs of tokens."""
    return tuple(
        TokenLogprobs(item.logprob, tuple(zip(item.top_token_ids, item.top_logprobs, strict=False)))
        for item in logprobs
    )


def to_answer(
    written: Iterable[tuple[str, tuple[int, ...], tuple[TokenLogprobs, ...], tuple[ToolCall, ...]]],
    accepted: Accepted,
    finished: Finished,
    prompt_logprobs: PromptLogprobs | None = None,
) -> Answer:
    """The answer of outputs as (text, token ids, logprobs, calls), one for each end."""
    outputs = tuple(
        Output(text, token_ids, end.finish_reason, end.stop, logprobs, calls)
        for (text, token_ids, logprobs, calls), end in zip(written, finished.outputs, strict=True)
    )
    return Answer(outputs, accepted, finished, prompt_logprobs)


def _prompt_logprobs(prompt: pb.PromptLogprobs) -> PromptLogprobs:
    return PromptLogprobs(prompt.token_offset, tuple(prompt.token_ids), from_logprobs(prompt.logprobs))


def _accepted(accepted: pb.Accepted) -> Accepted:
    return Accepted(
        request_id=accepted.request_id,
        model=accepted.model,
        model_revision=accepted.model_revision,
        queue_position=accepted.queue_position,
        seed=accepted.seed,
        prompt_tokens=accepted.prompt_tokens,
        forecast_seconds=accepted.forecast_seconds if accepted.HasField("forecast_seconds") else None,
    )


_FINISH_REASONS: Mapping[int, FinishReason] = {
    pb.FINISH_REASON_STOP: "stop",
    pb.FINISH_REASON_LENGTH: "length",
    pb.FINISH_REASON_TOOL_CALLS: "tool_calls",
}


def _output_end(end: pb.OutputEnd) -> OutputEnd:
    matched = end.WhichOneof("stop")
    return OutputEnd(_FINISH_REASONS.get(end.reason, "stop"), getattr(end, matched) if matched else None)


def _finished(ends: Iterable[pb.OutputEnd], usage: pb.Usage, timings: pb.Timings) -> Finished:
    known = not usage.incomplete
    return Finished(
        outputs=tuple(_output_end(end) for end in ends) or (_output_end(pb.OutputEnd()),),
        usage=Usage(
            prompt_tokens=usage.prompt_tokens,
            cached_tokens=usage.cached_tokens if known else None,
            completion_tokens=usage.completion_tokens,
            kv_blocks_used=usage.kv_blocks_used if known else None,
            kv_blocks_freed=usage.kv_blocks_freed if known else None,
        ),
        timings=Timings(
            admission_seconds=timings.admission_seconds,
            time_to_first_token_seconds=timings.time_to_first_token_seconds,
            total_seconds=timings.total_seconds,
            queue_seconds=timings.queue_seconds if known else None,
        ),
    )
