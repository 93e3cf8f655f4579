"""More than the workers can do, on the virtual clock: who is served, who waits, and who is told to come again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from scheduler.simulator.study import Study

# A worker whose steps take about as long whatever is in them: a wait is a wait for others, not for a longer step.
EVEN = Study(
    prompt_tokens="200:0.5",
    output_tokens="20:0.5",
    max_num_seqs=32,
    num_blocks=2000,
    block_size=16,
    max_model_len=2048,
    step_base_ms=20.0,
    step_token_us=5.0,
    step_context_ns=1.0,
)
MIXED = replace(
    EVEN,
    flow=(
        "chat:class=interactive,share=6,prompt=60:0.6:400,output=40:0.6:160",
        "retrieval:class=rag,share=3,prompt=400:0.4:1500,output=8:0.4:32",
        "summaries:class=batch,share=1,prompt=400:0.4:1500,output=64:0.4:200",
    ),
    # Patience has an end within the minute that a test lasts.
    traffic_class=("batch:patience_seconds=10",),
    step_token_us=100.0,
    max_num_batched_tokens=512,
)
# Requests a second that it does of these.
CAPACITY = 19.0


@cache
def mixed(load: float, mode: str = "enforce") -> Mapping[str, Any]:
    """The flows at a part of the capacity, for a minute."""
    rate = load * CAPACITY
    return replace(MIXED, rate=rate, requests=round(60 * rate), admission_mode=mode).run()["flows"]


def qualified(flows: Mapping[str, Any], what: str = "") -> float:
    return sum(flow[f"qualified_{what}per_second"] for flow in flows.values())


def test_beyond_its_capacity_the_mesh_keeps_what_it_does() -> None:
    below, full = mixed(0.5), mixed(1.0)
    assert all(flow["qualified"] > 0.95 * flow["offered"] for flow in below.values())
    assert qualified(full) > 1.8 * qualified(below)
    for load in (2.0, 4.0):
        assert qualified(mixed(load)) >= 1.2 * qualified(full)
        # 95 % are asked, and 94 are reached: chats, which are served first, have fewer tokens for each slot and step
        # than the retrievals that give way to them.
        assert qualified(mixed(load), "tokens_") >= 0.93 * qualified(full, "tokens_")


@pytest.mark.parametrize("load", [2.0, 4.0])
def test_who_is_let_in_has_what_was_promised_and_who_is_not_knows_when_to_come_again(load: float) -> None:
    chat, retrieval, summaries = mixed(load).values()
    assert chat["ttft_ms"]["p95"] <= 1000
    assert chat["qualified"] >= 0.95 * chat["accepted"]
    # 95 % are promised, and 90 to 92 are kept: what may wait for 5 s is passed by chats of which nobody knows yet when
    # it is let in, and a minute is a few waves of misses. docs/overload.md has longer runs.
    assert retrieval["qualified"] >= 0.88 * retrieval["accepted"]
    refused = {flow["traffic_class"]: flow["refused"] for flow in mixed(load).values()}
    assert set(refused["interactive"]) | set(refused["rag"]) == {"SLO_UNREACHABLE"}
    # It promises nothing, so nothing is unreachable.
    assert refused["batch"] == {}
    for flow in (chat, retrieval, summaries):
        assert flow["refused_with_retry"] == sum(flow["refused"].values())
        assert flow["failed"] == {}


def test_without_admission_everyone_is_late() -> None:
    for load in (2.0, 4.0):
        flows = mixed(load, "off")
        assert qualified(flows) < 0.1 * qualified(mixed(load))
        assert flows["chat"]["ttft_ms"]["p95"] > 5000


def test_batch_goes_on_beside_a_flood_of_promises_and_takes_little_from_them() -> None:
    for load in (2.0, 4.0):
        flows = mixed(load)
        # Twelve of thirteen parts are others'.
        tokens = flows["summaries"]["qualified_tokens_per_second"]
        assert 0.03 <= tokens / qualified(flows, "tokens_") <= 0.2


@pytest.mark.parametrize("traffic_class", ["interactive", "batch"])
def test_a_flood_costs_a_small_tenant_some_steps_and_no_refusal(traffic_class: str) -> None:
    """The neighbour has the same weight and asks for three times what there is: all slots are taken at any time."""
    study = replace(EVEN, tenant=("small", "large"))
    own, capacity = "small:tenant=small,share=0.3", 73.5
    flood = f"large:tenant=large,share=3,class={traffic_class}"
    (alone,) = replace(study, rate=0.3 * capacity, requests=400, flow=(own,)).run()["flows"].values()
    beside, neighbour = replace(study, rate=3.3 * capacity, requests=4400, flow=(own, flood)).run()["flows"].values()
    assert beside["refused"] == {}
    assert beside["qualified"] == beside["offered"]
    # The step that runs, a slot that becomes free, and its own step with the one that was planned before.
    assert alone["ttft_ms"]["p50"] <= 2 * EVEN.step_base_ms
    assert beside["ttft_ms"]["p50"] <= 4 * EVEN.step_base_ms
    assert beside["ttft_ms"]["p95"] <= 8 * EVEN.step_base_ms
    assert neighbour["ttft_ms"]["p50"] >= 5 * beside["ttft_ms"]["p50"]


def test_what_a_flood_misses_is_not_taken_from_its_neighbour() -> None:
    """As many slots as the flood has taken, and first tokens that nobody can be sure of."""
    study = Study(
        seed=1,
        requests=1500,
        rate=90.0,
        max_num_seqs=64,
        flow=(
            "flood:tenant=a,share=85,prompt=300,output=150",
            "small:tenant=b,share=5,prompt=300,output=50",
        ),
        tenant=("a:weight=1", "b:weight=1"),
    )
    flows = study.run()["flows"]
    assert flows["flood"]["refused"]["SLO_UNREACHABLE"] > 300
    assert flows["small"]["offered"] > 50
    assert not flows["small"]["refused"]
