"""The events of a stream as one answer."""

from __future__ import annotations

from collections import defaultdict

from tercet import errors
from tercet.answer_messages import joined, to_answer
from tercet.messages import (
    Accepted,
    Answer,
    Delta,
    Event,
    Finished,
    PromptLogprobs,
    TokenLogprobs,
    ToolCallDelta,
)


class Collector:
    """Takes the events of one request in their order."""

    def __init__(self) -> None:
        self._accepted: Accepted | None = None
        self._finished: Finished | None = None
        self._prompt: list[PromptLogprobs] = []
        self._texts: defaultdict[int, list[str]] = defaultdict(list)
        self._token_ids: defaultdict[int, list[int]] = defaultdict(list)
        self._logprobs: defaultdict[int, list[TokenLogprobs]] = defaultdict(list)
        self._calls: defaultdict[int, list[ToolCallDelta]] = defaultdict(list)

    def take(self, event: Event) -> None:
        """One more."""
        if isinstance(event, Accepted):
            self._accepted = event
        elif isinstance(event, Finished):
            self._finished = event
        elif isinstance(event, PromptLogprobs):
            self._prompt.append(event)
        else:
            self._add(event)

    def _add(self, delta: Delta) -> None:
        index = delta.output_index
        self._texts[index].append(delta.text)
        self._token_ids[index].extend(delta.token_ids)
        self._logprobs[index].extend(delta.logprobs)
        self._calls[index].extend(delta.tool_calls)

    def answer(self, address: str) -> Answer:
        """All of it. Raises errors.GatewayLostError if the stream from `address` had no end."""
        if self._accepted is None or self._finished is None:
            raise errors.GatewayLostError(f"the stream from {address} ended without its last event")
        written = [
            (
                "".join(self._texts[index]),
                tuple(self._token_ids[index]),
                tuple(self._logprobs[index]),
                joined(self._calls[index]),
            )
            for index in range(len(self._finished.outputs))
        ]
        return to_answer(written, self._accepted, self._finished, self._joined_prompt())

    def _joined_prompt(self) -> PromptLogprobs | None:
        if not self._prompt:
            return None
        return PromptLogprobs(
            self._prompt[0].token_offset,
            tuple(token for part in self._prompt for token in part.token_ids),
            tuple(item for part in self._prompt for item in part.logprobs),
        )
