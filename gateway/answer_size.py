"""How large an answer in one piece has become. Pure."""

from __future__ import annotations

from tercet.errors import AnswerTooLargeError

from .prompt_logprobs import PromptPart
from .stream import Delta
from .validate import GenerationRequest

# What gRPC's clients take, unless they are told otherwise.
MAX_ANSWER_BYTES = 4 * 1024 * 1024
# Kept for what has a size of its own: ids, ends, usage.
_HEAD_BYTES = 64 * 1024
# On the wire, at most: an id, one of the likeliest ids with its float, what is around the logprobs of a token, and
# what is around a call.
_ID_BYTES, _TOP_BYTES, _LOGPROBS_BYTES, _CALL_BYTES = 4, 8, 16, 64


class AnswerSize:
    """Counts what an answer has, in bytes as tercet.v1 has them; also what several generations have together."""

    def __init__(self) -> None:
        self._size = _HEAD_BYTES

    @property
    def too_large(self) -> bool:
        """Whether it is more than fits."""
        return self._size > MAX_ANSWER_BYTES

    def add(self, delta: Delta) -> None:
        """Counts more of an output."""
        size = len(delta.text.encode()) + _ID_BYTES * len(delta.token_ids)
        size += sum(_LOGPROBS_BYTES + _TOP_BYTES * len(each.top_ids) for each in delta.logprobs)
        size += sum(_CALL_BYTES + len(call.name) + len(call.arguments.encode()) for call in delta.tool_calls)
        self._size += size

    def add_prompt(self, part: PromptPart) -> None:
        """Counts more of a prompt's logprobs."""
        self._size += len(part) * (_ID_BYTES + _LOGPROBS_BYTES) + _TOP_BYTES * len(part.top_ids)


def too_large(request: GenerationRequest) -> AnswerTooLargeError:
    """The error of a request with such an answer, on what makes it so large."""
    field = "sampling.n" if request.n > 1 else "stop.max_tokens"
    return AnswerTooLargeError(
        f"an answer in one piece has at most {MAX_ANSWER_BYTES} bytes: stream it, or ask for less",
        field="sampling.logprobs" if request.sampling.num_logprobs else field,
        metadata={"max_answer_bytes": str(MAX_ANSWER_BYTES)},
    )
