"""What Prometheus adds up is what the ledger adds up."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.cancel import Cancels
from gateway.metrics import METRICS
from gateway.metrics_counts import REASONS, SEVERAL, SLO_RESULTS, RequestCounts
from gateway.metrics_reading import put_counts
from gateway.stream import Stream
from tercet.ledger.row import Cancellation, Outcome, Row, StageTimes, Targets, slo_of
from tercet.metrics.labels import OTHER, TenantLabels
from tercet.metrics.metric import Kind, Reading

CLASSES = ("interactive", "batch")
seconds = st.none() | st.floats(0, 100)
tokens = st.none() | st.integers(0, 10_000)


@st.composite
def rows(draw: st.DrawFn) -> Row:
    return Row(
        number=draw(st.integers(0, 100)),
        request_id="id",
        tenant=draw(st.sampled_from(["", "alice", "bob", *map(str, range(20))])),
        traffic_class=draw(st.sampled_from([*CLASSES, ""])),
        model=draw(st.sampled_from(["one", "two"])),
        revision="r",
        outputs=1,
        arrived_at=0.0,
        outcome=draw(st.sampled_from([each for each in Outcome if each is not Outcome.OPEN])),
        reason=draw(st.sampled_from([*sorted(REASONS), "length,stop", "made up"])),
        prompt_tokens=draw(st.integers(0, 1000)),
        cached_tokens=draw(tokens),
        generated_tokens=draw(tokens),
        delivered_tokens=draw(tokens),
        wasted_tokens=draw(tokens),
        ttft_s=draw(seconds),
        tpot_s=draw(seconds),
        largest_gap_s=draw(seconds),
        total_s=draw(seconds),
        gpu_s=draw(seconds),
        cpu_s=draw(seconds),
        takeovers=draw(tokens),
        cost=draw(seconds),
        slo=draw(st.none() | st.sampled_from(SLO_RESULTS)),
        stages=StageTimes(checks_s=draw(seconds), waiting_s=draw(seconds), decode_s=draw(seconds)),
        cancellations=tuple(
            Cancellation(None, origin, 0.0, done_s=draw(seconds))
            for origin in draw(st.lists(st.sampled_from(["client", "operator"]), max_size=2))
        ),
    )


def _sums(counts: RequestCounts) -> dict[str, float]:
    reading = Reading()
    put_counts(reading, counts)
    return {
        metric.name: sum(
            value.count if metric.kind is Kind.HISTOGRAM else value for _, value in reading.samples(metric)
        )
        for metric in METRICS
    }


@given(st.lists(rows(), max_size=30), st.lists(st.sampled_from(["QUEUE_FULL", "TENANT_QUOTA"]), max_size=10))
def test_sums_are_those_of_the_rows(closed, refused):
    counts = RequestCounts(TenantLabels(["alice"], 2), CLASSES)
    for row in closed:
        counts.closed(row, None)
    for reason in refused:
        counts.refused("alice", "one", "batch", reason)
    sums = _sums(counts)
    assert sums["tercet_gateway_requests_total"] == len(closed) + len(refused)
    assert sums["tercet_gateway_tenant_requests_total"] == len(closed) + len(refused)
    for name, field in (
        ("prompt_tokens", "prompt_tokens"),
        ("cached_prompt_tokens", "cached_tokens"),
        ("generated_tokens", "generated_tokens"),
        ("delivered_tokens", "delivered_tokens"),
        ("wasted_tokens", "wasted_tokens"),
        ("gpu_seconds", "gpu_s"),
        ("cpu_seconds", "cpu_s"),
        ("takeovers", "takeovers"),
        ("cost", "cost"),
    ):
        wanted = sum(getattr(row, field) or 0 for row in closed)
        assert sums[f"tercet_gateway_{name}_total"] == pytest.approx(wanted)
    assert sums["tercet_gateway_tenant_cost_total"] == pytest.approx(sums["tercet_gateway_cost_total"])
    assert sums["tercet_gateway_slo_total"] == sum(row.slo is not None for row in closed)
    for name, field in (("time_to_first_token", "ttft_s"), ("request", "total_s"), ("largest_gap", "largest_gap_s")):
        assert sums[f"tercet_gateway_{name}_seconds"] == sum(getattr(row, field) is not None for row in closed)
    assert sums["tercet_gateway_stage_seconds"] == sum(len(list(row.stages.items())) for row in closed)


@given(st.lists(rows(), max_size=60))
def test_labels_are_few_whatever_the_rows_say(closed):
    counts = RequestCounts(TenantLabels(["alice"], 2), CLASSES)
    for row in closed:
        counts.closed(row, None)
    tenants = {tenant for tenant, _ in counts.tenant_requests}
    assert len(tenants - {"alice", OTHER}) <= 2
    assert {reason for *_, reason in counts.requests} <= {*REASONS, SEVERAL, OTHER}
    assert {name for _, name, _, _ in counts.requests} <= {*CLASSES, ""}


def test_each_combination_of_labels_is_told_once():
    counts = RequestCounts(TenantLabels((), 1), CLASSES)
    for tenant in ("a", "b", "c"):
        for reason in ("made up", "another", "stop"):
            counts.refused(tenant, "one", "batch", reason)
    reading = Reading()
    put_counts(reading, counts)
    for metric in METRICS:
        told = Counter(labels for labels, _ in reading.samples(metric))
        assert all(count == 1 for count in told.values()), metric.name


def test_promises_of_classes_that_are_there_count_from_0():
    reading = Reading()
    put_counts(reading, RequestCounts(TenantLabels((), 0), CLASSES))
    told = {labels: value for metric in METRICS if "slo" in metric.name for labels, value in reading.samples(metric)}
    assert told == {(name, result): 0 for name in CLASSES for result in SLO_RESULTS}


def test_every_word_of_a_promise_is_known():
    for outcome in Outcome:
        for ttft_s in (None, 0.1, 9.0):
            for tpot_s in (None, 0.1, 9.0):
                word = slo_of(outcome, Targets("chat", 1.0, 1.0), ttft_s, tpot_s)
                assert word is None or word in SLO_RESULTS


class _Output:
    """Takes tokens, and says nothing of them."""

    finish = None
    num_ready = 0

    def __init__(self) -> None:
        self.num_tokens = 0

    def push(self, token_id: int, logprobs: object) -> None:
        self.num_tokens += 1


def test_gaps_between_tokens_are_those_of_the_stream():
    now = [0.0]
    stream = Stream([_Output(), _Output()], max_tokens_held=10, clock=lambda: now[0], cancels=Cancels(lambda: now[0]))
    for index, at in ((0, 0.0), (1, 0.1), (0, 0.5), (0, 0.6), (1, 4.1)):
        now[0] = at
        stream.push(index, 1)
    counts = RequestCounts(TenantLabels((), 0))
    row = Row(1, "id", "", "interactive", "one", "r", 2, 0.0, Outcome.COMPLETED, "stop")
    counts.closed(row, stream)
    gaps = counts.times["interactive"].gap
    assert gaps.count == 3
    assert gaps.total == pytest.approx(0.5 + 0.1 + 4.0)
    assert stream.largest_gap_s == pytest.approx(4.0)
