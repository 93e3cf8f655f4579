"""The requests of a workload: the same for the same seed, whoever sends them."""

from __future__ import annotations

import itertools
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tercet.load.ask import Ask
from tercet.load.asks import Share, asks, check_fits
from tercet.load.principals import Principals, Tenant
from tercet.load.prompts import RandomTokens
from tercet.load.workload import SharedPrefix, Workload
from tercet.load.workload_error import WorkloadError

SOURCE = RandomTokens(range(100, 900))


def drawn(*, share: Share | None = None, point: int = 0, limit: int | None = None, **options: Any) -> list[Ask]:
    return list(asks(Workload(**{"requests": 40, **options}), point, SOURCE, limit, share))


@settings(max_examples=25)
@given(
    st.integers(0, 1000),
    st.sampled_from(["poisson", "burst:3", "ramp", "at-once"]),
    st.integers(1, 5),
    st.floats(0, 1),
    st.floats(0, 1),
)
def test_processes_send_together_what_one_would(
    seed: int, arrivals: str, parts: int, cancelled: float, slow: float
) -> None:
    options = {
        "seed": seed, "arrivals": arrivals, "rates": (7.0,), "input": "short", "cancel_ratio": cancelled,
        "slow_reader_ratio": slow, "principals": Principals(classes={"a": 1.0, "b": 2.0}),
        "shared_prefix": SharedPrefix(0.5, 20, 2),
    }  # fmt: skip
    whole = drawn(**options)
    shares = [drawn(share=Share(part, parts), **options) for part in range(parts)]
    assert sorted(itertools.chain(*shares), key=lambda ask: ask.index) == whole
    assert [ask.index for ask in whole] == list(range(len(whole)))
    assert whole != drawn(**{**options, "seed": seed + 1})


def test_ratios_are_parts_of_all_and_change_nothing_else() -> None:
    plain = drawn(requests=1000, input="short")
    some = drawn(requests=1000, input="short", cancel_ratio=0.3, slow_reader_ratio=0.2)
    assert [(ask.prompt, ask.max_tokens, ask.due_s) for ask in plain] == [
        (ask.prompt, ask.max_tokens, ask.due_s) for ask in some
    ]
    assert sum(ask.cancel is not None for ask in some) == pytest.approx(300, abs=60)
    assert sum(ask.read_tokens_per_s is not None for ask in some) == pytest.approx(200, abs=50)
    for ask in some:
        assert ask.cancel is None or 0 <= ask.cancel.after_tokens < max(2, ask.max_tokens)


def test_groups_share_a_beginning_each() -> None:
    found = drawn(requests=600, input="constant:50", shared_prefix=SharedPrefix(0.5, 20, 3))
    beginnings = Counter(ask.prompt[:20] for ask in found)
    common = [count for count in beginnings.values() if count > 1]
    assert len(common) == 3
    assert sum(common) == pytest.approx(300, abs=70)
    # Another point of the sweep finds none of it in a cache.
    others = drawn(requests=600, input="constant:50", shared_prefix=SharedPrefix(0.5, 20, 3), rates=(1, 2), point=1)
    assert not beginnings.keys() & {ask.prompt[:20] for ask in others}


def test_what_is_too_long_for_the_model_is_cut_or_told() -> None:
    found = drawn(input="uniform:10-5000", output="uniform:10-2000", limit=1024, requests=200)
    assert all(len(ask.prompt) >= 1 and len(ask.prompt) + ask.max_tokens <= 1024 for ask in found)
    with pytest.raises(WorkloadError, match="2,048 tokens and an output of 128 do not fit a context of 2,048 tokens"):
        check_fits(Workload(input="long", requests=1), 2048)
    check_fits(Workload(input="long", requests=1), 4096)
    check_fits(Workload(input="long", requests=1), None)


def test_a_load_ends_with_its_time_or_its_count() -> None:
    assert len(drawn(arrivals="constant", rates=(10.0,), duration_s=2.0, requests=0)) == 20
    assert len(drawn(arrivals="constant", rates=(10.0,), duration_s=2.0, requests=7)) == 7
    # A ramp to a count: twice as long as at the full rate.
    ramp = drawn(arrivals="ramp", rates=(10.0,), requests=50)
    assert len(ramp) == 50
    assert ramp[-1].due_s == pytest.approx(10.0, abs=0.2)


def test_a_trace_is_asked_as_it_was_only_faster(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("at_s,prompt_tokens,max_tokens,tenant,priority\n1,10,3,alice,\n3,20,5,bob,-4\n")
    principals = Principals((Tenant("alice", "key-a"), Tenant("bob", "key-b")))
    found = drawn(trace=str(path), rates=(2.0,), requests=0, principals=principals)
    assert [(ask.due_s, ask.prompt_tokens, ask.max_tokens) for ask in found] == [(0.0, 10, 3), (1.0, 20, 5)]
    assert [(ask.principal.tenant, ask.principal.api_key) for ask in found] == [("alice", "key-a"), ("bob", "key-b")]
    assert found[1].principal.priority == -4
    assert len(drawn(trace=str(path), requests=0, duration_s=0.5)) == 1
