"""Requests from one seed, lengths by their distribution, numbers in bins."""

from __future__ import annotations

import random
from dataclasses import replace
from statistics import mean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.simulator.spread import Spread
from scheduler.simulator.workload import Arrival, Arrivals, Flow, Lengths, Requests, Workload

FLOW = Flow(
    "all",
    prompt=Lengths(60, 0.5),
    output=Lengths(20, 0.8, 100),
    max_tokens=80,
    prefix_ratio=0.25,
    prefix_tokens=30,
    prefixes=2,
    cancel_ratio=0.3,
    n=2,
)
WORKLOAD = Workload(requests=2000, rate=100.0, flows=(FLOW,), token_s=0.01)


def with_flows(*flows: Flow, **changes: float) -> Workload:
    return replace(WORKLOAD, flows=flows, **changes)


def arrivals_of(workload: Workload, seed: int = 1) -> list[Arrival]:
    return list(Requests(workload, seed, model="m", max_model_len=128))


def test_the_same_seed_gives_the_same_requests_and_another_one_others() -> None:
    assert arrivals_of(WORKLOAD) == arrivals_of(WORKLOAD)
    assert arrivals_of(WORKLOAD) != arrivals_of(WORKLOAD, seed=2)


def test_requests_are_what_was_asked_for() -> None:
    arrivals = arrivals_of(WORKLOAD)
    count = len(arrivals)
    assert arrivals[-1].at == pytest.approx(count / 100.0, rel=0.1)
    submissions = [arrival.submission for arrival in arrivals]
    prompts = [submitted.prompt_token_ids for submitted in submissions]
    assert mean(map(len, prompts)) == pytest.approx(60, rel=0.1)
    assert all(1 <= len(submitted.prompt_token_ids) <= 128 - submitted.max_tokens for submitted in submissions)
    beginnings = [prompt[:8] for prompt in prompts if len(prompt) > 30]
    common = [each for each in set(beginnings) if beginnings.count(each) > 1]
    assert len(common) == 2
    assert sum(each in common for each in beginnings) / len(beginnings) == pytest.approx(0.25, abs=0.04)
    assert sum(arrival.cancel_after_s is not None for arrival in arrivals) / count == pytest.approx(0.3, abs=0.04)


def test_flows_come_in_proportion_to_their_shares_and_ask_for_what_is_theirs() -> None:
    chat = replace(FLOW, name="chat", share=3.0, traffic_class="interactive", tenant="a", n=1, priority=-5)
    batch = Flow("batch", Lengths(9), Lengths(4), traffic_class="batch", tenant="b", deadline_s=7.0)
    arrivals = arrivals_of(with_flows(chat, batch))
    assert [arrival.at for arrival in arrivals] == sorted(arrival.at for arrival in arrivals)
    of_batch = [arrival for arrival in arrivals if arrival.flow is batch]
    assert len(of_batch) / len(arrivals) == pytest.approx(0.25, abs=0.04)
    assert {arrival.submission.request_key for arrival in arrivals} == set(range(1, 2001))
    for arrival in arrivals:
        asked = arrival.submission
        if arrival.flow is batch:
            assert (asked.traffic_class, asked.tenant, asked.priority, asked.n) == ("batch", "b", 0, 1)
            assert (len(asked.prompt_token_ids), asked.max_tokens, asked.deadline_s) == (9, 8, 7.0)
        else:
            assert (asked.traffic_class, asked.tenant, asked.priority, asked.n) == ("interactive", "a", -5, 1)
            assert asked.deadline_s is None
    assert len({arrival.submission.prefix_salt for arrival in arrivals}) == 2


def test_what_a_flow_asks_for_is_the_same_whatever_the_others_do() -> None:
    flood = replace(FLOW, name="flood", share=9.0)
    alone = arrivals_of(with_flows(FLOW, requests=100, rate=10.0))
    among = [each for each in arrivals_of(with_flows(flood, FLOW, rate=100.0)) if each.flow is FLOW][:100]
    assert [each.at for each in among] == pytest.approx([each.at for each in alone])
    assert [each.submission.prompt_token_ids for each in among] == [each.submission.prompt_token_ids for each in alone]


def test_only_the_workers_know_where_outputs_end() -> None:
    requests = Requests(WORKLOAD, 1, model="m", max_model_len=128)
    for arrival in requests:
        submitted = arrival.submission
        ends = [
            requests.lengths[submitted.sampling.seed + index] - len(submitted.prompt_token_ids) for index in range(2)
        ]
        assert all(1 <= end <= submitted.max_tokens for end in ends)
        requests.forget(submitted)
    assert requests.lengths == {}


def test_bursts_and_equal_distances() -> None:
    every = [arrival.at for arrival in arrivals_of(with_flows(replace(FLOW, arrivals=Arrivals.CONSTANT), requests=5))]
    assert every == pytest.approx([0.0, 0.01, 0.02, 0.03, 0.04])
    bursts = [arrival.at for arrival in arrivals_of(with_flows(replace(FLOW, arrivals=Arrivals.BURST), requests=101))]
    assert bursts == pytest.approx([0.0] * 50 + [0.5] * 50 + [1.0])


@pytest.mark.parametrize("arrivals", list(Arrivals))
def test_an_infinite_rate_is_all_at_once(arrivals: Arrivals) -> None:
    workload = with_flows(replace(FLOW, arrivals=arrivals), rate=float("inf"), requests=120)
    assert {arrival.at for arrival in arrivals_of(workload)} == {0.0}


def test_lengths_keep_their_mean_and_their_bounds() -> None:
    rng = random.Random(1)
    assert {Lengths(7).draw(rng) for _ in range(10)} == {7}
    drawn = [Lengths(200, 1.0, 3000).draw(rng) for _ in range(20_000)]
    assert mean(drawn) == pytest.approx(200, rel=0.05)
    assert min(drawn) >= 1
    assert max(drawn) <= 3000


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=200), st.sampled_from([0, 50, 95, 99, 100]))
def test_percentiles_are_right_up_to_the_width_of_a_bin(numbers: list[float], percent: int) -> None:
    spread = Spread()
    for number in numbers:
        spread.add(number)
    ordered = sorted(numbers)
    exact = ordered[max(0, -(-len(ordered) * percent // 100) - 1)]
    assert exact <= spread.percentile(percent) <= max(exact * (1 + 1 / 128), exact)
    assert (spread.count, spread.largest) == (len(numbers), max(numbers))
    assert spread.mean == pytest.approx(mean(numbers))


def test_many_of_one_number_are_added_at_once() -> None:
    one_by_one, at_once = Spread(), Spread()
    for _ in range(5):
        one_by_one.add(0.25)
    at_once.add(0.25, 5)
    assert at_once.percentile(50) == one_by_one.percentile(50)
    assert (at_once.count, at_once.mean) == (5, 0.25)
    assert Spread().percentile(50) == Spread().mean == 0.0
