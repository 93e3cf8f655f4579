from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from tercet.tracing.redactor import BEYOND_CHARS, REDACTED, Redactor
from tercet.tracing.span import Message

# Words, and secrets of digits, each shorter than what is searched beyond the cut.
parts = st.lists(st.tuples(st.integers(0, 3000), st.integers(0, BEYOND_CHARS)), max_size=8)


@given(parts, st.integers(1, 6000))
def test_no_part_of_a_secret_is_left_wherever_the_text_is_cut(parts: list[tuple[int, int]], max_chars: int) -> None:
    # Secrets that touch are one, and may be longer.
    parts = [(letters, digits) for letters, digits in parts if letters]
    text = "".join("a" * letters + "7" * digits for letters, digits in parts)
    redactor = Redactor(["[0-9]+"], max_chars)
    for given_text in (text, text[: max_chars + BEYOND_CHARS]):
        shown = redactor.text(given_text)
        assert "7" not in shown
        assert len(shown) <= max_chars
    whole = "".join("a" * letters + (REDACTED if digits else "") for letters, digits in parts)
    assert whole.startswith(redactor.text(text))
    if len(text) < max_chars + BEYOND_CHARS:
        assert redactor.text(text) == whole[:max_chars]


def test_patterns_are_tried_one_after_the_other() -> None:
    redactor = Redactor(["[A-Z]+", "b"], 100)
    assert redactor.text("abC") == f"a{REDACTED * 2}"
    messages = json.loads(redactor.messages([Message("user", "é b"), Message("tool", "")]))
    assert messages == [
        {"role": "user", "parts": [{"type": "text", "content": f"é {REDACTED}"}]},
        {"role": "tool", "parts": [{"type": "text", "content": ""}]},
    ]
