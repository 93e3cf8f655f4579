"""One sentence that says what a request's time went into, and how it ended if that was not well."""

from __future__ import annotations

from tercet.ledger.row import Outcome, Row

from .amounts import seconds_text
from .explanation import Explanation
from .story import Story

_ENDS = {
    Outcome.CANCELLED: "cancelled",
    Outcome.EXPIRED: "expired",
    Outcome.FAILED: "failed",
    Outcome.LOST: "lost with its gateway",
    Outcome.REFUSED: "given up before it was accepted",
}

_STATES = {"QUEUED": "the queue"}


def headline(explanation: Explanation) -> str:
    """For example: 2.1 s of 2.6 s: waited for KV blocks behind 14 requests of its class."""
    if explanation.refused:
        return f"refused: {explanation.refused}: {explanation.stories[-1].refusal}"
    part, total = explanation.longest, seconds_text(explanation.total_s)
    so_far = " so far" if explanation.running else ""
    time = f"{seconds_text(part.seconds)} of {total}{so_far}: {part.words}" if part is not None else ""
    end = _end(explanation)
    # How long one had run that went down with its gateway nobody has written.
    if end and explanation.total_s:
        end = f"{end} after {total}"
    elif explanation.running and not time:
        end = f"runs for {total}"
    return "; ".join(filter(None, (end, time))) or "nothing is known of its time"


def _end(explanation: Explanation) -> str:
    """Empty for one that was served, or runs."""
    if explanation.row is not None:
        return _end_of_row(explanation.row)
    return _end_of_story(explanation.stories[-1]) if explanation.stories else ""


def _end_of_row(row: Row) -> str:
    word = _ENDS.get(row.outcome, "")
    if row.outcome is Outcome.LOST or not word:
        return word
    states = [state for cancel in row.cancellations if cancel.output_index is None for state in cancel.states]
    return _with(word, row.reason, states)


def _end_of_story(story: Story) -> str:
    if story.ended_at is None or story.outcome in ("STOP", "LENGTH"):
        return ""
    if story.outcome == "CANCELLED" and story.cancel is not None:
        return _with("cancelled", story.cancel.reason, story.cancel.states)
    return _with(story.outcome.lower(), story.reason)


def _with(word: str, reason: str, states: list[str] | tuple[str, ...] = ()) -> str:
    where = ", ".join(sorted({_STATES.get(state, state.lower()) for state in states} - {"finished"}))
    return f"{word} ({', '.join(filter(None, (reason, where and f'in {where}')))})" if reason or where else word
