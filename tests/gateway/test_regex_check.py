"""What passes has the meaning that Python's own regular expressions give it, and the rest is refused by name."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.regex_check import check_regex
from gateway.structure import read_structure
from tercet.errors import InvalidFieldError
from tercet.grammar.follower import Follower
from tercet.v1 import inference_pb2 as pb

END = 256
FOLLOWER = Follower(lambda _: [*(bytes([byte]) for byte in range(256)), b""], 1 << 20)


def follows(regex: str, text: str) -> bool:
    """Whether the library takes `text` for all of a match."""
    matcher = FOLLOWER.compile(read_structure(pb.StructuredOutput(regex=regex))).matcher([END])
    return all(matcher.accept(byte) for byte in text.encode()) and matcher.accept(END)


@pytest.mark.parametrize(
    ("regex", "named"),
    [
        (r"\A1\Z", r"\A"), (r"[\p{L}]", r"\p"), (r"[ab\1]", r"\1"), (r"a\h", r"\h"), ("x$y", "$"), ("x^y", "^"),
        ("(^a)", "^"), ("(a$|b)", "$"), (r"a\|^b", "^"), ("a^|b", "^"), ("a$+", "$"),
    ],
)  # fmt: skip
def test_what_would_be_taken_for_something_else_is_refused_by_name(regex: str, named: str) -> None:
    with pytest.raises(InvalidFieldError, match=re.escape(f"regex has {named}")) as caught:
        read_structure(pb.StructuredOutput(regex=regex))
    assert caught.value.metadata["field"] == "structured_output.regex"


@pytest.mark.parametrize(
    "regex", [r"^a|b$", r"^a$|^b$", "^$", r"[$^]+", r"[^\]^$]", r"\^\$", r"\\A", r"[\b]", r"a\-\_"]
)
def test_what_is_clear_passes(regex: str) -> None:
    check_regex(regex)


PARTS = st.sampled_from(
    ["a", "b", "^", "$", "|", "(", ")", "(?:", "[ab]", "[^a]", r"\d", r"\Z", r"\$", r"\^", "+", "?", "A", "$"]
)


@settings(max_examples=300, deadline=None)
@given(parts=st.lists(PARTS, min_size=1, max_size=7), text=st.text("abAZ$^1", max_size=4))
def test_what_passes_matches_as_in_python(parts: list[str], text: str) -> None:
    regex = "".join(parts)
    try:
        read_structure(pb.StructuredOutput(regex=regex))
        followed = follows(regex, text)
    except (InvalidFieldError, ValueError):
        return
    try:
        matched = re.fullmatch(regex, text, re.DOTALL) is not None
    except re.error:
        return
    assert followed == matched, regex
