"""What an answer is counted as against what it takes on the wire."""

from __future__ import annotations

from array import array
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.answer_size import MAX_ANSWER_BYTES, AnswerSize
from gateway.output import Finish, ToolCallDelta
from gateway.prompt_logprobs import MAX_PROMPT_LOGPROBS, PromptPart
from gateway.public_messages import to_result
from gateway.sequence_end import EndReason
from gateway.stream import Delta
from gateway.summary import Summary
from gateway.token_logprobs import TokenLogprobs

TOKEN = st.integers(0, 2**21 - 1)


@st.composite
def deltas(draw: Any) -> Delta:
    ids = tuple(draw(st.lists(TOKEN, min_size=1, max_size=4)))
    width = draw(st.integers(0, 20))
    logprobs = (
        [TokenLogprobs(-0.5, (draw(TOKEN),) * width, (-1.5,) * width) for _ in ids] if draw(st.booleans()) else []
    )
    calls = (ToolCallDelta(0, "123456789", draw(st.text(min_size=1, max_size=64)), draw(st.text(max_size=9))),)
    return Delta(0, 0, 0, draw(st.text(max_size=20)), ids, tuple(logprobs), calls if draw(st.booleans()) else ())


def part(num_tokens: int, width: int) -> PromptPart:
    tops = num_tokens * width
    return PromptPart(1, array("f", [-0.5] * num_tokens), array("I", [2**21 - 1] * tops), array("f", [-9.5] * tops))


def wire_size(parts: list[PromptPart], made: list[Delta], num_prompt: int) -> int:
    model = SimpleNamespace(name="m", revision="r" * 16)
    admission: Any = SimpleNamespace(request_id="i" * 128, model=model, seed=1, prompt=(2**21 - 1,) * num_prompt)
    summary = Summary((Finish(EndReason.STOP, stop_string="s" * 256),), None, 9, 9, 1.0, 1.0, 1.0)
    return to_result(admission, parts, made, summary).ByteSize()


@settings(max_examples=100, deadline=None)
@given(made=st.lists(deltas(), max_size=6), num_tokens=st.integers(1, 70), width=st.integers(0, 20))
def test_no_answer_is_larger_than_it_was_counted(made: list[Delta], num_tokens: int, width: int) -> None:
    calls, numbered = 0, []
    for delta in made:
        # Each call that is begun is the next one.
        numbered.append(
            Delta(
                0, 0, 0, delta.text, delta.token_ids, delta.logprobs,
                tuple(ToolCallDelta(calls, each.id, each.name, each.arguments) for each in delta.tool_calls),
            )
        )  # fmt: skip
        calls += len(delta.tool_calls)
    size, parts = AnswerSize(), [part(num_tokens, width)]
    size.add_prompt(parts[0])
    for delta in numbered:
        size.add(delta)
    assert wire_size(parts, numbered, num_tokens + 1) <= size._size


@pytest.mark.parametrize("width", [0, 1, 20])
def test_the_longest_prompt_leaves_room_for_an_answer(width: int) -> None:
    size = AnswerSize()
    size.add_prompt(part(MAX_PROMPT_LOGPROBS // (1 + width), width))
    assert size._size < MAX_ANSWER_BYTES * 3 // 4
