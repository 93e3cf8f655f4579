"""Tenants, classes and priorities come as often as they weigh."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tercet.load.principals import Principal, Principals, Tenant, parse_classes, parse_priorities, parse_tenant
from tercet.load.workload_error import WorkloadError


@settings(max_examples=20)
@given(st.lists(st.floats(0.1, 10.0), min_size=1, max_size=5), st.integers())
def test_each_comes_as_often_as_it_weighs(weights: list[float], seed: int) -> None:
    names = [f"t{index}" for index in range(len(weights))]
    principals = Principals(
        tuple(Tenant(name, weight=weight) for name, weight in zip(names, weights, strict=True)),
        dict(zip(names, weights, strict=True)),
    )
    rng = random.Random(seed)
    drawn = [principals.draw(rng) for _ in range(4000)]
    for counts in (Counter(each.tenant for each in drawn), Counter(each.traffic_class for each in drawn)):
        for name, weight in zip(names, weights, strict=True):
            assert counts[name] / 4000 == pytest.approx(weight / sum(weights), abs=0.05)


def test_without_any_there_is_one_without_a_name_and_draws_cost_the_same() -> None:
    rng, other = random.Random(1), random.Random(1)
    assert Principals().draw(rng) == Principal()
    Principals((Tenant("a"), Tenant("b")), {"x": 1.0, "y": 1.0}, {-5: 1.0, 5: 1.0}).draw(other)
    assert rng.random() == other.random()


def test_a_tenant_has_its_own_class_and_priority() -> None:
    tenant = parse_tenant("alice:weight=2,class=batch,priority=-5,key=secret")
    assert tenant == Tenant("alice", "secret", 2.0, "batch", -5)
    drawn = Principals((tenant,), parse_classes("interactive=3,rag"), parse_priorities("1,2=4")).draw(random.Random(1))
    assert drawn == Principal("alice", "secret", "batch", -5)
    assert "secret" not in repr(tenant) + repr(drawn)
    assert parse_classes("interactive=3,rag") == {"interactive": 3.0, "rag": 1.0}
    assert parse_priorities("-10,0=8") == {-10: 1.0, 0: 8.0}


def test_keys_come_from_files(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_text("tct_1\n")
    assert parse_tenant(f"alice:key=@{path}").api_key == "tct_1"
    path.write_text("\n")
    with pytest.raises(WorkloadError, match="is an empty file"):
        parse_tenant(f"alice:key=@{path}")
    with pytest.raises(WorkloadError, match="cannot read the key of alice"):
        parse_tenant(f"alice:key=@{path}s")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (":weight=2", "has no name"),
        ("a:color=red", "a has no color"),
        ("a:weight", "weight has no value"),
        ("a:weight=0", "0 is not between"),
        ("a:priority=200", "priority 200 is not between"),
        ("a:key=ä", "the key of a is none"),
    ],
)
def test_what_is_no_tenant_is_told(text: str, problem: str) -> None:
    with pytest.raises(WorkloadError, match=problem):
        parse_tenant(text)


def test_what_is_no_weight_is_told() -> None:
    with pytest.raises(WorkloadError, match=r"classes: .*has an empty name"):
        parse_classes("a,,b")
    with pytest.raises(WorkloadError, match="classes: 'x' is not a number"):
        parse_classes("a=x")
    with pytest.raises(WorkloadError, match="priorities: 'x' is not a number"):
        parse_priorities("x=1")
