"""What happened per second between two looks."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from looks import a_class, counts, moment, tenant, worker

from tercet.cli.top_rates import rates_between, rates_to_data
from tercet.cli.top_words import amount, duration, percent


def test_rates_are_differences_over_the_time_between() -> None:
    before = moment(10.0, (a_class(counts=counts(5, 100, {"QUEUE_FULL": 2})),), (tenant("acme", 5, tokens=100),))
    after = moment(
        12.0,
        (a_class(counts=counts(9, 300, {"QUEUE_FULL": 3, "TENANT_QUOTA": 4})), a_class("rag", counts=counts(2, 50))),
        (tenant("acme", 9, tokens=300), tenant("new", 2)),
    )
    rates = rates_between(before, after)
    assert rates is not None
    assert rates.seconds == 2.0
    chat, rag = rates.classes["interactive"], rates.classes["rag"]
    assert (chat.accepted, chat.tokens, chat.refused) == (2.0, 100.0, {"QUEUE_FULL": 0.5, "TENANT_QUOTA": 2.0})
    # What was not there before has begun since.
    assert (rag.accepted, rag.tokens, rag.refused) == (1.0, 25.0, {})
    assert rates.tokens == 125.0
    # A tenant that was not told of may have been there all the time.
    assert set(rates.tenants) == {("acme", "interactive")}
    assert rates.tenants["acme", "interactive"].tokens == 100.0
    assert rates_to_data(rates)["tenants"] == [
        {"tenant": "acme", "traffic_class": "interactive", "accepted": 2.0, "tokens": 100.0, "refused": {}}
    ]


def test_steps_go_on_where_a_worker_begins_anew() -> None:
    before = moment(10.0, workers=(worker("a", steps=100), worker("b", steps=900), worker("d", steps=5)))
    after = moment(11.0, workers=(worker("a", steps=150), worker("b", steps=30), worker("c", steps=700)))
    rates = rates_between(before, after)
    assert rates is not None
    assert rates.steps == 50 + 30


def test_there_are_no_rates_over_a_start_or_over_no_time() -> None:
    assert rates_between(moment(10.0, epoch=1), moment(2.0, epoch=2)) is None
    assert rates_between(moment(10.0, epoch=1), moment(20.0, epoch=2)) is None
    assert rates_between(moment(10.0), moment(10.0)) is None


def test_tenants_that_went_and_came_begin_anew_and_those_that_are_gone_are_no_flow() -> None:
    before = moment(10.0, tenants=(tenant("acme", 50, tokens=900), tenant(None, 3)))
    after = moment(11.0, tenants=(tenant("acme", 2, tokens=10), tenant(None, 53)))
    rates = rates_between(before, after)
    assert rates is not None
    assert set(rates.tenants) == {("acme", "interactive")}
    assert (rates.tenants["acme", "interactive"].accepted, rates.tenants["acme", "interactive"].tokens) == (0, 0)


@pytest.mark.parametrize(
    ("number", "text"),
    [(0, "0"), (0.25, "0.2"), (3.0, "3"), (9.9, "9.9"), (12.4, "12"), (99_999, "99,999"), (123_456, "123k"),
     (2.5e8, "250M")],
)  # fmt: skip
def test_amounts(number: float, text: str) -> None:
    assert amount(number) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(None, "-"), (0.0, "0 ms"), (0.21, "210 ms"), (0.9996, "1.0 s"), (2.25, "2.2 s"), (42.4, "42 s"), (600, "10 min"),
     (7320, "2 h 02 min"), (200_000, "2 d 7 h")],
)  # fmt: skip
def test_durations(seconds: float | None, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("part", "text"),
    [(None, "-"), (0.0, "0 %"), (0.954, "95 %"), (0.9962, "99.6 %"), (0.99999, "99.9 %"), (1, "100 %")],
)
def test_percents(part: float | None, text: str) -> None:
    assert percent(part) == text


@given(st.floats(0, 1e12))
def test_words_stay_short(number: float) -> None:
    assert len(amount(number)) <= 10
    assert len(duration(number / 1e4)) <= 13
