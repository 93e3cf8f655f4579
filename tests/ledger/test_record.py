"""Lines of a journal say what they were given, or that they are not whole."""

from __future__ import annotations

import json
import string
import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tercet.ledger.record import from_line, refusals_to_line, row_to_line
from tercet.ledger.row import Cancellation, Outcome, RefusalKey, Refusals, Row, StageTimes

from .rows import refusals, row

_texts = st.text(max_size=20)
_seconds = st.none() | st.floats(0, 1e10, allow_nan=False)
_counts = st.none() | st.integers(0, 2**62)
_cancellations = st.builds(
    Cancellation, output_index=_counts, origin=_texts, cancelled_at=st.floats(0, 1e10), release_s=_seconds,
    states=st.lists(st.sampled_from(["DECODE", "QUEUED"])).map(tuple), blocks_freed=_counts, wasted_gpu_s=_seconds,
)  # fmt: skip
_stages = st.builds(StageTimes, checks_s=_seconds, waiting_s=_seconds, paused_s=_seconds, stream_s=_seconds)
_rows = st.builds(
    Row, number=st.integers(1, 2**62), request_id=_texts, tenant=_texts, traffic_class=_texts, model=_texts,
    revision=_texts, outputs=st.integers(1, 64), arrived_at=st.floats(0, 1e10), outcome=st.sampled_from(Outcome),
    reason=_texts, prompt_tokens=st.integers(0, 2**40), generated_tokens=_counts, ttft_s=_seconds, cost=_seconds,
    slo=st.none() | st.sampled_from(["met", "ttft"]), stages=_stages,
    cancellations=st.lists(_cancellations, max_size=3).map(tuple),
)  # fmt: skip
_refusals = st.builds(
    Refusals,
    st.builds(RefusalKey, st.integers(0, 2**40), _texts, _texts, _texts, _texts),
    st.integers(1, 2**40),
    _texts,
)


@settings(max_examples=60)
@given(_rows)
def test_a_row_comes_back_as_it_was(given_row: Row) -> None:
    line = row_to_line(given_row)
    assert line.count(b"\n") == 1
    assert from_line(line[:-1]) == given_row


@settings(max_examples=30)
@given(_refusals)
def test_refusals_come_back_as_they_were(given_refusals: Refusals) -> None:
    line = refusals_to_line(given_refusals)
    assert line.count(b"\n") == 1
    assert from_line(line[:-1]) == given_refusals


def test_what_is_torn_or_changed_says_nothing() -> None:
    for line in (row_to_line(row(7, Outcome.COMPLETED))[:-1], refusals_to_line(refusals(3))[:-1]):
        assert all(from_line(line[:end]) is None for end in range(len(line)))
        for index in range(len(line)):
            broken = bytes([*line[:index], line[index] ^ 1, *line[index + 1 :]])
            # The sum is written in hexadecimal, of which small letters are as good as large ones.
            assert from_line(broken) is None or broken[:8].lower() == line[:8].lower()
    assert from_line(b"\0" * 100) is None


@pytest.mark.parametrize(
    "body",
    ["[]", "7", '["request",{}]', '["request",{"number":1}]', '["another",{}]', '["refusals",{"key":{}}]', "{"],
)
def test_what_is_whole_and_not_known_says_nothing(body: str) -> None:
    data = body.encode()
    assert from_line(b"%08x %b" % (zlib.crc32(data), data)) is None


def test_fields_of_another_version_are_left_out() -> None:
    _, values = json.loads(row_to_line(row(1))[9:])
    body = json.dumps(["request", {**values, "colour": "red"}]).encode()
    assert from_line(b"%08x %b" % (zlib.crc32(body), body)) == row(1)


def test_an_open_row_is_short() -> None:
    line = row_to_line(row(1))
    assert len(line) < 300
    assert set(line.decode()) <= set(string.printable)
