"""What else is known of a request, as lines of a name and a text."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timezone

from tercet.ledger.row import Cancellation, Row

from .amounts import number, seconds_text
from .explanation import Explanation
from .story import Gap, OutputStory, Place, Story

Line = tuple[str, str]


def details(explanation: Explanation) -> Iterator[Line]:
    """Whose it is, how it ended, what it took, and what the scheduler did with it."""
    row, stories = explanation.row, explanation.stories
    told = stories[-1] if stories else None
    if row is not None:
        yield "request", _request(row.request_id, row.tenant, row.traffic_class, row.model, row.outputs)
        yield "arrived", _moment(row.arrived_at)
        yield from _of_row(explanation, row)
    elif told is not None:
        first = stories[0]
        yield "request", _request(told.request_id, told.tenant, told.traffic_class, told.model, len(told.outputs))
        yield "arrived", f"{_moment(first.arrived_at)} at the scheduler"
        ended = "runs" if told.ended_at is None else f"{told.outcome.lower()} {told.reason}".strip()
        yield "outcome", f"{ended}, {seconds_text(told.gpu_s)} of steps"
    for story in stories:
        yield from _of_story(story)


def _request(request_id: str, tenant: str, traffic_class: str, model: str, outputs: int) -> str:
    parts = [request_id, tenant and f"of {tenant}", traffic_class, model]
    return ", ".join(filter(None, (*parts, f"{outputs} outputs" if outputs > 1 else "")))


def _moment(at: float) -> str:
    return datetime.fromtimestamp(at, timezone.utc).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3] + " UTC"


def _of_row(explanation: Explanation, row: Row) -> Iterator[Line]:
    outcome = "runs" if explanation.running else row.outcome.value + (f" ({row.reason})" if row.reason else "")
    promise = f"; promise: {row.slo}" if row.slo else ""
    yield "outcome", f"{outcome}{promise}"
    tokens = number(row.prompt_tokens, "prompt token")
    if row.cached_tokens is not None:
        tokens += f" ({row.cached_tokens:,} cached)"
    if row.generated_tokens is not None:
        tokens += f", {row.generated_tokens:,} generated, {row.delivered_tokens or 0:,} delivered"
    yield "tokens", tokens
    if row.ttft_s is not None:
        pace = "" if row.tpot_s is None else f", then one in {seconds_text(row.tpot_s)}"
        gap = "" if row.largest_gap_s is None else f", longest gap {seconds_text(row.largest_gap_s)}"
        yield "pace", f"first token after {seconds_text(row.ttft_s)}{pace}{gap}"
    if row.gpu_s is not None:
        yield "cost", f"{seconds_text(row.gpu_s)} of steps" + (f", {row.cost:,.4g}" if row.cost else "")
    if row.takeovers:
        yield "moved", f"{number(row.takeovers, 'time')} to another scheduler"
    for cancel in row.cancellations:
        yield "cancel", _cancel(cancel, row.arrived_at)


def _cancel(cancel: Cancellation, arrived_at: float) -> str:
    what = "" if cancel.output_index is None else f" of output {cancel.output_index}"
    words = [f"{cancel.origin}{what}, {seconds_text(max(0.0, cancel.cancelled_at - arrived_at))} after its arrival"]
    if cancel.states:
        words.append(f"found in {', '.join(cancel.states).lower()}")
    if cancel.release_s is not None:
        words.append(f"its worker was told after {seconds_text(cancel.release_s)}")
    if cancel.freed_s is not None:
        words.append(f"its blocks were free after {seconds_text(cancel.freed_s)}")
    if cancel.wasted_tokens:
        words.append(f"{number(cancel.wasted_tokens, 'token')} for nobody")
    return "; ".join(words)


def _of_story(story: Story) -> Iterator[Line]:
    if story.taken_over:
        yield "taken over", f"by another scheduler, {_moment(story.arrived_at)}"
    queue = [] if story.queue_position is None else [f"{number(story.queue_position, 'request')} ahead in its line"]
    if story.running_at_arrival:
        queue.append(f"{number(story.running_at_arrival, 'sequence')} running")
    queue += [
        f"{number(each.count, 'request')} of {each.traffic_class} started first"
        + (f", {each.later:,} of them came later" if each.later else "")
        for each in story.served
    ]
    if queue:
        yield "queue", "; ".join(queue)
    came_at = min((each.first_token_at for each in story.outputs if each.first_token_at is not None), default=None)
    if story.forecast_s is not None:
        came = "none came" if came_at is None else f"it came after {seconds_text(came_at - story.arrived_at)}"
        yield "forecast", f"first token after {seconds_text(story.forecast_s)}; {came}"
    if story.pauses:
        yield "pauses", f"{number(story.pauses, 'time')}, {seconds_text(story.paused_s)}"
    several = len(story.outputs) > 1
    for output in story.outputs:
        for name, text in _of_output(output):
            yield (f"{name} {output.index}" if several else name), text
    if story.problem:
        yield "plan log", story.problem


def _of_output(output: OutputStory) -> Iterator[Line]:
    workers = list(dict.fromkeys(stretch.worker for stretch in output.stretches if stretch.worker))
    changes = [
        f"{number(count, 'time')} {words}"
        for count, words in (
            (output.preemptions, f"preempted, {output.swaps:,} of them to host memory"),
            (output.losses, "its worker was lost"),
            (output.moves, "moved away from a worker that stopped"),
        )
        if count
    ]
    if workers or changes:
        yield "worker", "; ".join([", ".join(workers), *changes])
    if output.chunks:
        again = f"; {number(output.again_tokens, 'token')} computed again" if output.again_tokens else ""
        yield "prompt", f"{number(output.chunk_tokens, 'token')} in {number(output.chunks, 'chunk')}{again}"
    if output.plans:
        mean = output.planned_steps / output.plans
        revoked = f", {output.revoked:,} revoked" if output.revoked else ""
        step = "" if output.median_step_s is None else f"; a step takes {seconds_text(output.median_step_s)}"
        yield "plans", f"{number(output.plans, 'plan')} of {mean:.3g} steps{revoked}{step}"
    if output.gap is not None:
        yield "gap", _gap(output.gap)
    paused = [stretch for stretch in output.stretches if stretch.place is Place.PAUSED]
    if paused:
        yield "paused", ", ".join(f"{_moment(each.began_at)} for {seconds_text(each.seconds)}" for each in paused[:3])


def _gap(gap: Gap) -> str:
    words = f"{seconds_text(gap.seconds)} between two tokens, at most, from {_moment(gap.began_at)}"
    steps = [
        f"{seconds_text(step.seconds)} with {number(step.tokens, 'token')}"
        + (f", {step.prompt_tokens:,} of prompts" if step.prompt_tokens else "")
        for step in gap.steps
    ]
    rest = f" and {gap.num_steps - len(gap.steps):,} others" if gap.num_steps > len(gap.steps) else ""
    return f"{words}; {number(gap.num_steps, 'step')}: {'; '.join(steps)}{rest}" if steps else f"{words}; no step"
