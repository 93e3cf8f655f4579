"""Traces of Tercet's own form, Azure's and Mooncake's."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tercet.load.trace import Recorded, read_trace
from tercet.load.workload_error import WorkloadError


@given(st.lists(st.tuples(st.floats(0, 1e6), st.integers(1, 9999), st.integers(1, 999)), min_size=1, max_size=30))
def test_a_trace_is_asked_in_order_from_its_first_moment(
    tmp_path_factory: pytest.TempPathFactory, requests: list[tuple[float, int, int]]
) -> None:
    path = tmp_path_factory.mktemp("trace") / "trace.jsonl"
    lines = [json.dumps({"at_s": at, "prompt_tokens": one, "max_tokens": two}) for at, one, two in requests]
    random.Random(1).shuffle(lines)
    path.write_text("\n".join(lines))
    found = read_trace(path)
    assert found[0].at == 0.0
    start = min(at for at, _, _ in requests)
    assert [each.at for each in found] == pytest.approx([at - start for at in sorted(at for at, _, _ in requests)])
    assert sorted((each.prompt_tokens, each.max_tokens) for each in found) == sorted(
        (one, two) for _, one, two in requests
    )


def test_all_three_kinds_of_columns_are_known(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    path.write_text("at_s,prompt_tokens,max_tokens,tenant,traffic_class,priority\n5,10,3,alice,batch,-2\n7.5,,,,,\n")
    assert read_trace(path) == (
        Recorded(0.0, 10, 3, "alice", "batch", -2),
        Recorded(2.5, None, None, "", "", None),
    )
    path.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9799600,4808,10\n"
        "2023-11-16 18:17:04.2319600,110,0\n"
    )
    first, second = read_trace(path)
    assert (first.prompt_tokens, first.max_tokens) == (4808, 10)
    assert second.at == pytest.approx(0.252)
    # A request of nothing cannot be asked.
    assert second.max_tokens == 1
    path.write_text('{"timestamp": 27482, "input_length": 6955, "output_length": 52, "hash_ids": [46]}\n')
    assert read_trace(path) == (Recorded(0.0, 6955, 52, None, None, None),)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "has no requests"),
        ("at_s,prompt_tokens\nsoon,3\n", "request 1: 'soon' is no time"),
        ("at_s\n1\nnan\n", "request 2: 'nan' is no time"),
        ("at_s\ninf\n", "request 1: 'inf' is no time"),
        ('{"at_s": -Infinity}', "-inf is no time"),
        ("when\n3\n", "request 1 has none of at_s, TIMESTAMP, timestamp"),
        ('{"at_s": 1, "prompt_tokens": "x"}', "'x' is not a number"),
        ('{"at_s": 1, "max_tokens": -2}', "-2 tokens"),
        ('{"at_s": 1}\n[1]', "is not an object"),
        ('{"at_s": 1}\n{', "is not JSON"),
    ],
)
def test_what_is_no_trace_is_told(tmp_path: Path, text: str, problem: str) -> None:
    path = tmp_path / "trace"
    path.write_text(text)
    with pytest.raises(WorkloadError, match=f"trace: .*{problem}"):
        read_trace(path)


def test_a_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(WorkloadError, match=r"cannot read .*: No such file"):
        read_trace(tmp_path / "none")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(WorkloadError, match="neither CSV nor JSON"):
        read_trace(tmp_path / "binary")
