"""Sums of the ledger are sums of its rows, however they are told apart."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tercet.errors import LedgerError
from tercet.ledger.ledger import Ledger, day_of
from tercet.ledger.row import Outcome, Refusals, Row
from tercet.ledger.usage import GROUPS, SUMS, Usage, capacity, usage

from .rows import refusals, row

DAY_S = 86_400.0
START = 1_764_460_800.0  # a midnight
TOKENS = ("cached_tokens", "generated_tokens", "delivered_tokens", "wasted_tokens")

some_tokens = st.one_of(st.none(), st.integers(0, 10_000))
some_rows = st.lists(
    st.builds(
        lambda number, outcome, at, **values: row(number, outcome, arrived_at=START + at, **values),
        number=st.integers(1, 10**6),
        outcome=st.sampled_from([each for each in Outcome if each is not Outcome.REFUSED]),
        at=st.sampled_from([0.0, 1.5, DAY_S - 0.5, DAY_S, 2.5 * DAY_S]),
        tenant=st.sampled_from(["", "alice", "bob"]),
        traffic_class=st.sampled_from(["interactive", "rag"]),
        model=st.sampled_from(["small", "large"]),
        slo=st.sampled_from([None, "met", "ttft"]),
        prompt_tokens=st.integers(0, 10_000),
        # Quarters, so that the order of a sum makes no difference.
        gpu_s=st.one_of(st.none(), st.integers(0, 1000).map(lambda quarters: quarters / 4)),
        cpu_s=st.one_of(st.none(), st.integers(0, 1000).map(lambda quarters: quarters / 4)),
        cost=st.one_of(st.none(), st.integers(0, 1000).map(lambda quarters: quarters / 4)),
        **dict.fromkeys(TOKENS, some_tokens),
    ),
    max_size=25,
    unique_by=lambda each: each.number,
)
some_refusals = st.lists(
    st.builds(
        lambda count, at, **names: refusals(count, int(START + at), **names),
        st.integers(1, 1000),
        st.sampled_from([0.0, DAY_S, 2.5 * DAY_S]),
        tenant=st.sampled_from(["alice", "bob"]),
        traffic_class=st.sampled_from(["", "rag"]),
        reason=st.sampled_from(["QUEUE_FULL", "TENANT_QUOTA"]),
    ),
    max_size=8,
    unique_by=lambda each: each.key,
)


def expected(
    rows: Sequence[Row], refused: Sequence[Refusals], since: float, until: float, by: Sequence[str]
) -> list[Usage]:
    """The same by plain Python."""
    sums: dict[tuple[str, ...], dict[str, float]] = {} if by else {(): dict.fromkeys(SUMS, 0)}

    def names(item: Row | Refusals, at: float) -> tuple[str, ...]:
        told = {"day": day_of(at), "outcome": item.outcome.value if isinstance(item, Row) else "refused"}
        owner = item if isinstance(item, Row) else item.key
        return tuple(told.get(name) or getattr(owner, GROUPS[name]) for name in by)

    for each in rows:
        if since <= each.arrived_at < until:
            found = sums.setdefault(names(each, each.arrived_at), dict.fromkeys(SUMS, 0))
            found["requests"] += 1
            found[each.outcome.value] += 1
            found["qualified"] += each.outcome is Outcome.COMPLETED and each.slo == "met"
            for name in ("prompt_tokens", *TOKENS, "gpu_s", "cpu_s", "cost"):
                found[name] += getattr(each, name) or 0
    for many in refused:
        if since <= many.key.second < until:
            found = sums.setdefault(names(many, many.key.second), dict.fromkeys(SUMS, 0))
            found["requests"] += many.count
            found["refused"] += many.count
    return [Usage(group, **found) for group, found in sorted(sums.items())]  # type: ignore[arg-type]


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    some_rows,
    some_refusals,
    st.lists(st.sampled_from(list(GROUPS)), unique=True),
    st.sampled_from([(0.0, 1e12), (START, START + DAY_S), (START + 1.0, START + DAY_S + 0.5)]),
)
def test_sums_are_those_of_the_rows(
    tmp_path: Path, rows: list[Row], refused: list[Refusals], by: list[str], span: tuple[float, float]
) -> None:
    for file in tmp_path.iterdir():
        file.unlink()
    ledger = Ledger(str(tmp_path / "ledger.db"), lambda: START)
    try:
        ledger.create()
        ledger.write("one", rows, refused)
        told = usage(ledger, *span, by)
        assert told == expected(rows, refused, *span, by)
        # However they are told apart, they are all there.
        (total,) = usage(ledger, *span)
        assert all(sum(getattr(each, name) for each in told) == getattr(total, name) for name in SUMS)
    finally:
        ledger.close()


def test_both_databases_add_up_alike(ledger: Ledger) -> None:
    rng = random.Random(1)
    rows = [
        row(
            number, rng.choice([Outcome.COMPLETED, Outcome.CANCELLED]), tenant=rng.choice(["alice", "bob"]), slo="met",
            arrived_at=START + rng.random() * 3 * DAY_S, delivered_tokens=rng.randrange(100), gpu_s=number / 4,
        )
        for number in range(50)
    ]  # fmt: skip
    refused = [refusals(number + 1, int(START + number * 40_000)) for number in range(5)]
    ledger.write("one", rows, refused)
    for by in ([], ["outcome"], ["day", "tenant"], list(GROUPS)):
        assert usage(ledger, START, START + 2 * DAY_S, by) == expected(rows, refused, START, START + 2 * DAY_S, by)


def test_a_qualified_request_bears_the_cost_of_the_others(ledger: Ledger) -> None:
    done = Outcome.COMPLETED
    ledger.write("one", [row(1, done, cost=1.0, slo="met"), row(2, done, cost=2.0, slo="ttft")], [])
    ledger.write("one", [row(3, Outcome.FAILED, cost=3.0, tenant="bob")], [])
    assert [each.cost_per_qualified for each in usage(ledger, 0, 1e12, [])] == [6.0]
    assert [each.cost_per_qualified for each in usage(ledger, 0, 1e12, ["tenant"])] == [3.0, None]


def test_a_thousand_delivered_tokens_bear_the_cost_of_the_others(ledger: Ledger) -> None:
    done, failed = Outcome.COMPLETED, Outcome.FAILED
    rows = [row(1, done, cost=1.0, delivered_tokens=1500), row(2, failed, cost=2.0, delivered_tokens=500)]
    ledger.write("one", [*rows, row(3, failed, cost=3.0, model="large")], [])
    assert [each.cost_per_1000 for each in usage(ledger, 0, 1e12, ["model"])] == [None, 1.5]


def test_what_nobody_used_costs_as_much_as_what_was_used() -> None:
    rows = [Usage(("a",), gpu_s=1800.0, cost=2.0, qualified=3), Usage(("b",), gpu_s=1800.0, cost=2.0, qualified=1)]
    found = capacity(rows, workers=2, seconds=7200.0)
    assert (found.hours, found.used_hours, found.share) == (4.0, 1.0, 0.25)
    assert (found.idle_cost, found.cost_per_qualified) == (12.0, 4.0)
    nothing = capacity([Usage(())], 2, 7200.0)
    assert (nothing.share, nothing.idle_cost, nothing.cost_per_qualified) == (0.0, None, None)
    # More than can have been: somebody counted workers too few.
    assert capacity(rows, 0.1, 3600.0).idle_cost == 0.0


def test_nothing_is_a_row_of_zeros(ledger: Ledger) -> None:
    assert usage(ledger, 0, 1e12, []) == [Usage(())]
    assert usage(ledger, 0, 1e12, ["tenant"]) == []


def test_a_ledger_that_is_not_there_is_not_made(tmp_path: Path, open_ledger: Callable[[str], Ledger]) -> None:
    with pytest.raises(LedgerError, match="is not there; a gateway that starts makes it"):
        usage(open_ledger(str(tmp_path / "absent.db")), 0, 1, [])
    assert list(tmp_path.iterdir()) == []
