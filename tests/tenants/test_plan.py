"""What a plan may be."""

from __future__ import annotations

import math

import pytest

from tercet.tenants.plan import NAME, PlanError, TenantPlan


def test_the_default_limits_nothing():
    plan = TenantPlan()
    assert (plan.classes, plan.default_class, plan.weight, plan.min_priority) == ((), "", 1.0, -100)
    assert not any((plan.requests_per_minute, plan.tokens_per_minute, plan.max_concurrent, plan.kv_share))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("classes", ("rag", "")), ("classes", ("a b",)), ("default_class", "x/y"), ("weight", 0.0), ("weight", -1.0),
        ("weight", math.nan), ("weight", math.inf), ("weight", 1001.0), ("kv_share", 1.01), ("kv_share", -0.1),
        ("kv_share", math.nan), ("min_priority", -101), ("min_priority", 101), ("requests_per_minute", -1),
        ("requests_per_minute", 2**32), ("tokens_per_minute", 2**53 + 1), ("max_concurrent", -1),
        ("max_context", 2**32),
    ],
)  # fmt: skip
def test_a_value_that_makes_no_sense_is_named(field, value):
    with pytest.raises(PlanError) as caught:
        TenantPlan(**{field: value})
    assert caught.value.field == field
    assert str(caught.value).startswith(f"{field} must be ")


def test_the_default_class_is_one_of_the_classes():
    assert TenantPlan(classes=("rag", "batch"), default_class="batch").default_class == "batch"
    assert TenantPlan(default_class="batch").default_class == "batch"
    with pytest.raises(PlanError, match="interactive, which is not among rag, batch") as caught:
        TenantPlan(classes=("rag", "batch"), default_class="interactive")
    assert caught.value.field == "default_class"


def test_the_largest_values_are_allowed():
    TenantPlan(
        weight=1000.0, requests_per_minute=2**32 - 1, tokens_per_minute=2**53, max_concurrent=2**32 - 1, kv_share=1.0,
        max_context=2**32 - 1, min_priority=100,
    )  # fmt: skip


@pytest.mark.parametrize("name", ["a", "team-7", "A.b_c", "x" * 64])
def test_names(name):
    assert NAME.fullmatch(name)


@pytest.mark.parametrize("name", ["", "-a", ".a", "a b", "a/b", "ä", "a\n", "x" * 65])
def test_no_names(name):
    assert not NAME.fullmatch(name)
