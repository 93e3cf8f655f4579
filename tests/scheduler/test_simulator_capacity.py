"""Capacity runs: exactly one end each, the same for the same seed, and nothing is kept."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from scheduler.admission import QueueBounds
from scheduler.policy import Policy
from scheduler.simulator.capacity import CapacityMesh, Fleet, simulated_info
from scheduler.simulator.cost import StepCost
from scheduler.simulator.study import Study
from scheduler.simulator.workload import Arrivals, Flow, Lengths, Workload
from tercet.errors import ConfigError

ROOT = Path(__file__).resolve().parents[2]


def fleet(workers: int, **changes: int) -> Fleet:
    values = {"block_size": 16, "num_blocks": 200, "max_num_seqs": 32, "max_num_batched_tokens": 512}
    info = simulated_info(**{**values, "max_model_len": 1024, **changes})
    return Fleet(workers, info, StepCost(0.005, 20e-6, 20e-9), 0.2, 0.0002, caching=True)


def workload(requests: int, rate: float, **changes: object) -> Workload:
    values: dict[str, object] = {
        "prompt": Lengths(60, 0.8, 400),
        "output": Lengths(16, 0.8, 60),
        "max_tokens": 60,
        "prefix_ratio": 0.3,
        "prefix_tokens": 48,
        "prefixes": 3,
    }
    flow = Flow("", **{**values, **changes})  # type: ignore[arg-type]
    shares = (("interactive", 2.0), ("rag", 1.0), ("batch", 1.0))
    flows = tuple(replace(flow, name=name, traffic_class=name, share=share) for name, share in shares)
    return Workload(requests, rate, flows, 0.005)


def assert_nothing_left(mesh: CapacityMesh) -> None:
    assert mesh.core.idle
    assert mesh.core.check() == []
    assert not mesh.clients.asks
    for worker in mesh.workers.values():
        assert worker.empty
        assert worker.pool.counts.used == worker.memory.swap_blocks_used == 0
        assert worker.pool.check() == []


def test_four_thousand_requests_of_which_three_in_ten_are_cancelled() -> None:
    # Many outputs grow at a time, in pools that hold some.
    output = Lengths(24, 1.0, 150)
    load = workload(4000, 800.0, cancel_ratio=0.3, prompt=Lengths(16), output=output, max_tokens=150, prefix_ratio=0.0)
    kind = fleet(4, block_size=4, num_blocks=160, num_swap_blocks=24)
    mesh = CapacityMesh(kind, load, Policy(0, 0), QueueBounds(2000, 4_000_000), 1)
    mesh.run()
    tally = mesh.result().tally
    assert tally.completed + tally.cancelled + tally.refused.total() == 4000
    assert tally.failed.total() == 0
    assert tally.cancelled > 800
    assert tally.preemptions > tally.swaps > 0
    assert_nothing_left(mesh)
    view = mesh.core.view()
    assert view.requests_finished == tally.completed + tally.cancelled
    # Some that were told to go had ended or been cancelled before.
    assert 0 < view.preemptions <= tally.preemptions
    assert view.swaps == tally.swaps


@pytest.mark.parametrize("arrivals", list(Arrivals))
def test_all_at_once_is_refused_beyond_the_queue_and_the_rest_is_done(arrivals: Arrivals) -> None:
    load = workload(600, float("inf"), arrivals=arrivals, n=2)
    mesh = CapacityMesh(fleet(2), load, Policy(0, 0), QueueBounds(100, 4_000_000), 3)
    mesh.run()
    tally = mesh.result().tally
    assert tally.refused["QUEUE_FULL"] == 600 - tally.completed
    assert 100 <= tally.completed < 300
    assert_nothing_left(mesh)


def test_a_request_of_which_one_output_failed_has_failed() -> None:
    load = workload(20, 200.0, n=3)
    mesh = CapacityMesh(fleet(1), load, Policy(0, 0), QueueBounds(100, 4_000_000), 3)
    (worker,) = mesh.workers.values()
    mesh.at(0.05, lambda: worker.failing.add(next(iter(worker.sequences))))
    mesh.run()
    tally = mesh.result().tally
    assert (tally.completed, dict(tally.failed)) == (19, {"ENGINE_FAULT": 1})
    assert_nothing_left(mesh)


def test_memory_does_not_grow_with_what_is_over() -> None:
    load = workload(12_000, 4000.0, prompt=Lengths(20), output=Lengths(2), max_tokens=4, cancel_ratio=0.1)
    mesh = CapacityMesh(fleet(4), load, Policy(0, 0), QueueBounds(1000, 4_000_000), 1)
    sizes = []
    for second in (0.5, 2.5):
        mesh.run(until=second)
        gc.collect()
        sizes.append(len(gc.get_objects()))
    over = mesh.tally.over
    assert over > 8_000
    # Whatever is kept per request would be thousands more.
    assert sizes[1] - sizes[0] < 1000
    mesh.run()
    assert_nothing_left(mesh)


SMALL = Study(workers=3, requests=300, seed=7, num_blocks=60, cancel_ratio=0.2, shared_prefix="0.5:200:2",
              prompt_tokens="300:0.6", output_tokens="40:0.9:300", classes="interactive=2,batch=1", swap_blocks=50,
              rate=40.0, n=2)  # fmt: skip


FLOWS = replace(
    SMALL,
    flow=(
        "chat:class=interactive,tenant=a,share=3,prompt=60:0.8,deadline=2,n=1,prefix=0.5:30:2",
        "summaries:tenant=b,output=60,cancel=0,arrivals=burst,burst=20,priority=4",
    ),
    tenant=("a:weight=2,max_concurrent=30", "b:classes=batch+rag,default_class=batch,kv_share=0.5"),
)


@pytest.mark.parametrize("study", [SMALL, FLOWS], ids=["options", "flows"])
def test_the_same_seed_gives_the_same_answer_in_any_process(study: Study) -> None:
    report = study.run()
    assert report == study.run()
    options = [f"--{name.replace('_', '-')}={value}" for name, value in report["study"].items()
               if name != "prefix_caching" and value is not None and not isinstance(value, list)]  # fmt: skip
    options += [f"--{name}={each}" for name in ("flow", "tenant") for each in report["study"][name]]
    outputs = set()
    for hash_seed in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-m", "tercet", "simulate", "--json", *options],
            capture_output=True,
            check=True,
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
        )
        outputs.add(done.stdout)
    assert [json.loads(output) for output in outputs] == [report]


def test_the_report_adds_up() -> None:
    report = SMALL.run()
    requests = report["requests"]
    ended = requests["completed"] + requests["cancelled"]
    assert ended + sum(requests["refused"].values()) + sum(requests["failed"].values()) == 300
    assert report["swaps"] <= report["preemptions"]
    assert 0.2 < report["prefix_hit_ratio"] < 0.6
    assert 0 < report["worker_busy_ratio"] <= 1
    assert 0 < report["kv_used_ratio"]["mean"] < report["kv_used_ratio"]["max"] <= 1
    for name in ("ttft_ms", "gap_ms", "queue_ms", "total_ms"):
        spread = report[name]
        assert spread["p50"] <= spread["p95"] <= spread["p99"] <= spread["max"]
    assert report["ttft_ms"]["p50"] < report["total_ms"]["p50"]
    assert set(report["flows"]) == {"interactive", "batch"}
    for key in ("completed", "cancelled"):
        assert sum(flow[key] for flow in report["flows"].values()) == requests[key]
    for flow in report["flows"].values():
        assert flow["qualified"] <= flow["completed"] <= flow["accepted"] <= flow["offered"]


def test_a_flow_says_what_is_its_own_and_the_options_say_the_rest() -> None:
    report = FLOWS.run()
    chat, summaries = report["flows"].values()
    assert list(report["flows"]) == ["chat", "summaries"]
    assert (chat["traffic_class"], summaries["traffic_class"]) == ("interactive", "batch")
    assert chat["offered"] == pytest.approx(225, abs=30)
    assert chat["offered"] + summaries["offered"] == 300
    assert chat["cancelled"] > 0
    assert summaries["cancelled"] == 0
    # No promise: what was completed was good.
    assert summaries["qualified"] == summaries["completed"] > 0


def test_a_promise_that_is_not_kept_does_not_qualify() -> None:
    # Steps of 300 ms: the first token comes in time, the others do not.
    slow = Study(requests=20, rate=0.5, prompt_tokens="10", output_tokens="5", step_base_ms=300.0)
    (flow,) = slow.run()["flows"].values()
    assert (flow["completed"], flow["qualified"]) == (20, 0)
    # A single token has no gap.
    single = replace(slow, output_tokens="1").run()["flows"]["interactive"]
    assert (single["completed"], single["qualified"]) == (20, 20)
    assert single["qualified_per_second"] == pytest.approx(0.5, rel=0.4)


def test_without_a_prefix_cache_nothing_is_found_and_first_tokens_are_later() -> None:
    study = Study(requests=200, seed=1, shared_prefix="0.9:900:2", prompt_tokens="1000", output_tokens="20", rate=15.0)
    with_cache = study.run()
    without = Study(**{**{name: getattr(study, name) for name in study.__slots__}, "prefix_caching": False}).run()
    assert without["prefix_hit_ratio"] == 0.0
    assert with_cache["prefix_hit_ratio"] > 0.6
    assert with_cache["ttft_ms"]["p50"] < 0.6 * without["ttft_ms"]["p50"]


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"workers": 0}, "--workers"),
        ({"rate": -1.0}, "--rate"),
        ({"rate": float("nan")}, "--rate"),
        ({"step_base_ms": float("inf")}, "--step-base-ms"),
        ({"step_base_ms": 0.0, "step_token_us": 0.0, "step_context_ns": 0.0}, "--step-base-ms"),
        ({"arrivals": "sometimes"}, "--arrivals"),
        ({"prompt_tokens": "0"}, "--prompt-tokens"),
        ({"prompt_tokens": "5:1:4"}, "--prompt-tokens"),
        ({"output_tokens": "5:nan"}, "--output-tokens"),
        ({"output_tokens": ""}, "--output-tokens"),
        ({"shared_prefix": "1.5"}, "--shared-prefix"),
        ({"shared_prefix": "0.5:1:2:3"}, "--shared-prefix"),
        ({"classes": "gold=1"}, "--classes"),
        ({"classes": "batch=0"}, "--classes"),
        ({"cancel_ratio": 1.1}, "--cancel-ratio"),
        ({"speed_spread": 1.0}, "--speed-spread"),
        ({"max_model_len": 100}, "--max-model-len"),
        ({"seed": -1}, "--seed"),
        ({"workers": 100_000}, "--workers"),
        ({"rate": 1e-20}, "--rate"),
        ({"rate": 5e-324}, "--rate"),
        ({"rate": 1e300}, "--rate"),
        ({"num_blocks": 99999999999999}, "--num-blocks"),
        ({"workers": 1000, "num_blocks": 1_000_000}, "--num-blocks"),
        ({"shared_prefix": "0.5:400:999999999"}, "--shared-prefix"),
        ({"shared_prefix": "0.5:0:1000000000000"}, "--shared-prefix"),
        ({"message_delay_ms": 1e9}, "--message-delay-ms"),
        ({"step_base_ms": 1e308, "step_token_us": 1e308}, "--step-base-ms"),
        ({"step_base_ms": 1e-300, "step_token_us": 0.0, "step_context_ns": 0.0}, "--step-base-ms"),
        # Each could be alone; the longest step could not.
        ({"step_token_us": 700_000.0}, "--step-token-us"),
        ({"step_base_ms": 299_900.0}, "--step-base-ms"),
        ({"step_context_ns": 80_000.0, "prompt_tokens": "30000"}, "--step-context-ns"),
        ({"swap_blocks": 1000, "swap_block_us": 200_000.0}, "--swap-block-us"),
        ({"step_base_ms": 200_000.0, "speed_spread": 0.6}, "--step-base-ms"),
        ({"classes": "batch=1e308,rag=1e308"}, "--classes"),
        ({"prompt_tokens": "5:1:99999999999"}, "--prompt-tokens"),
        ({"classes": "batch,batch"}, "--classes"),
        ({"flow": ("[]",)}, "--flow"),
        ({"flow": ("chat:color=blue",)}, "--flow"),
        ({"flow": ("chat:share",)}, "--flow"),
        ({"flow": ("chat:share=0",)}, "--flow"),
        ({"flow": ("chat:deadline=nan",)}, "--flow"),
        ({"flow": ("chat:n=1.5",)}, "--flow"),
        ({"flow": ("chat:prompt=x",)}, "--flow"),
        ({"flow": ("chat:prefix=2",)}, "--flow"),
        ({"flow": ("chat:arrivals=sometimes",)}, "--flow"),
        ({"flow": ("chat:class=gold",)}, "--flow"),
        ({"flow": ("chat", "chat")}, "--flow"),
        ({"flow": ("chat:prompt=40000",)}, "--max-model-len"),
        ({"tenant": ("a:weight=0",)}, "--tenant"),
        ({"tenant": ("a:classes=rag+gold",)}, "--tenant"),
        ({"tenant": ("a", "a")}, "--tenant"),
    ],
)
def test_an_option_that_makes_no_sense_is_named(changes: dict[str, object], named: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Study(**changes).run()  # type: ignore[arg-type]
    assert caught.value.key == named


def test_the_longest_step_that_is_allowed_is_no_bug() -> None:
    steps = {"step_base_ms": 110_000.0, "step_token_us": 1.0, "step_context_ns": 1.0}
    study = Study(requests=3, output_tokens="4", admission_mode="off", **steps)
    assert study.run()["requests"]["completed"] == 3


def test_the_first_that_was_refused_says_why() -> None:
    report = Study(requests=5, n=1000).run()
    (reason,) = report["requests"]["refused"]
    assert report["requests"]["refused"][reason] == 5
    assert "1000" in report["problems"][reason]
