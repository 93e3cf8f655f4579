"""What passes has the meaning that Python's own regular expressions give it, and the rest is refused by name."""

from __future__ import annotations

import contextlib
import random
import re

import numpy as np
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


def sentence(regex: str, seed: int) -> str | None:
    """What the library takes for all of a match; None if it has not ended soon."""
    matcher = FOLLOWER.compile(read_structure(pb.StructuredOutput(regex=regex))).matcher([END])
    rng, text = random.Random(seed), ""
    for _ in range(12):
        mask = np.zeros((1, 9), np.int32)
        matcher.fill(mask)
        token_id = int(rng.choice(np.unpackbits(mask.view(np.uint8), bitorder="little")[: END + 1].nonzero()[0]))
        assert matcher.accept(token_id)
        if token_id == END:
            return text
        text += chr(token_id)
    return None


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


PARTS = st.sampled_from(["a", "b", "^", "$", "|", "(", ")", "(?:", "[ab]", r"\d", r"\Z", r"\h", r"\$", r"\^", "+", "?"])


@settings(max_examples=300, deadline=None)
@given(parts=st.lists(PARTS, min_size=1, max_size=6), seed=st.integers(0, 99))
def test_what_passes_matches_as_in_python(parts: list[str], seed: int) -> None:
    regex = "".join(parts)
    try:
        text = sentence(regex, seed)
    except (InvalidFieldError, ValueError):
        return
    with contextlib.suppress(re.error):
        assert text is None or re.fullmatch(regex, text), text
