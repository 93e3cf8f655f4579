"""A workload that cannot be names its wrong field."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tercet.load.principals import Principals, Tenant
from tercet.load.slo import Slo, parse_duration, parse_slo, slo_of
from tercet.load.workload import SharedPrefix, Workload
from tercet.load.workload_error import WorkloadError


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"input": "huge"}, "input"),
        ({"output": "uniform:1"}, "output"),
        ({"arrivals": "never"}, "arrivals"),
        ({"rates": ()}, "rates"),
        ({"rates": (0.0,)}, "rates"),
        ({"rates": (float("nan"),)}, "rates"),
        ({"rates": (1.0, 2.0), "arrivals": "closed:2"}, "rates"),
        ({"arrivals": "at-once", "requests": 0, "duration_s": 5.0}, "requests"),
        ({"requests": 0}, "duration_s"),
        ({"duration_s": 5.0, "warm_up_s": 5.0}, "warm_up_s"),
        ({"warm_up_s": -1.0}, "warm_up_s"),
        ({"cancel_ratio": 1.5}, "cancel_ratio"),
        ({"slow_reader_ratio": float("nan")}, "slow_reader_ratio"),
        ({"slow_reader_tokens_per_s": 0.0}, "slow_reader_tokens_per_s"),
        ({"temperature": float("inf")}, "temperature"),
        ({"prompts": "q.jsonl", "shared_prefix": SharedPrefix(0.5, 9)}, "shared_prefix"),
    ],
)
def test_a_wrong_field_is_named(options: dict[str, Any], field: str) -> None:
    with pytest.raises(WorkloadError) as raised:
        Workload(**{"requests": 5, **options})
    assert raised.value.field == field


def test_its_data_are_json_without_keys() -> None:
    workload = Workload(
        requests=5,
        principals=Principals((Tenant("alice", "secret", 2.0),), {"batch": 1.0}, {-5: 1.0}),
        slo={"": Slo(ttft_s=0.5)},
        shared_prefix=SharedPrefix(0.5, 9),
    )
    text = json.dumps(workload.to_data(), allow_nan=False)
    assert "secret" not in text + repr(workload)
    data = json.loads(text)
    assert data["principals"]["tenants"] == [{"name": "alice", "weight": 2.0, "class": None, "priority": None}]
    assert data["principals"]["priorities"] == {"-5": 1.0}
    assert data["shared_prefix"] == {"part": 0.5, "tokens": 9, "groups": 1}
    assert data["slo"][""]["ttft_s"] == 0.5


def test_limits_are_read_and_found_by_class() -> None:
    assert parse_slo("ttft=500ms,gap=0.1s") == ("", Slo(ttft_s=0.5, gap_s=0.1))
    assert parse_slo("batch:e2e=2min,largest-gap=3s") == ("batch", Slo(e2e_s=120.0, largest_gap_s=3.0))
    assert parse_duration("slo", "250ms") == 0.25
    limits = dict(map(parse_slo, ["ttft=1s", "batch:ttft=9s"]))
    assert slo_of(limits, "batch").ttft_s == 9.0
    assert slo_of(limits, "rag").ttft_s == slo_of(limits, "").ttft_s == 1.0
    assert slo_of({}, "batch") == Slo()


@pytest.mark.parametrize("text", ["", "ttft", "ttft=5", "ttft=fast", "ttft=-1s", "speed=1s", "batch:", "ttft=nans"])
def test_what_is_no_limit_is_told(text: str) -> None:
    with pytest.raises(WorkloadError, match="slo: "):
        parse_slo(text)
