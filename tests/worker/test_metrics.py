"""What a worker tells Prometheus, with a real executor on the CPU."""

from __future__ import annotations

import time
from typing import Any

import pytest

from tests.worker.stepped_executor import SteppedExecutor
from worker.messages import Chunk, NewSequence, Release, ReleaseCause
from worker.metrics import METRICS, read


def _told(stepped: SteppedExecutor) -> dict[str, dict[tuple[str, ...], Any]]:
    reading = read(stepped.executor, {"": (), "live": ()}, 1.5, time.perf_counter)
    return {metric.name: dict(reading.samples(metric)) for metric in METRICS}


@pytest.mark.parametrize("captured", [None, 1])
def test_what_it_did_is_what_it_was_asked_for(captured: int | None) -> None:
    stepped = SteppedExecutor(captured=captured)
    prompt = tuple(range(1, 11))
    stepped.run(NewSequence(1, prompt, 15), stepped.plan(1, chunks=(Chunk(1, 6),)))
    told = _told(stepped)
    assert told["tercet_worker_prompt_tokens_total"] == {(): 6}
    assert told["tercet_worker_generated_tokens_total"] == {(): 0}
    assert told["tercet_worker_sequences"] == {(): 1}
    assert told["tercet_worker_kv_blocks"] == {("used",): 2, ("cached",): 0, ("free",): 62}
    stepped.run(stepped.plan(1, chunks=(Chunk(1, 4),), join=(1,)))
    stepped.run(stepped.plan(4))
    told = _told(stepped)
    # It has got all that its length allows.
    assert told["tercet_worker_generated_tokens_total"] == {(): 5}
    assert told["tercet_worker_prompt_tokens_total"] == {(): 10}
    steps = told["tercet_worker_step_seconds"]
    assert (steps["prompt",].count, steps["decode",].count) == (2, 4)
    assert told["tercet_worker_plans_total"] == {("run",): 3, ("revoked",): 0}
    assert told["tercet_worker_sequences_ended_total"] == {("stop",): 0, ("length",): 1, ("failed",): 0}
    assert told["tercet_worker_sequences"] == told["tercet_worker_commands_waiting"] == {(): 0}
    # What the prefix cache may keep of it is cached.
    blocks = told["tercet_worker_kv_blocks"]
    assert blocks["used",] == 0
    assert blocks["cached",] + blocks["free",] == 64
    assert told["tercet_worker_still_seconds"] == {(): 1.5}


def test_a_prompt_that_is_cached_is_not_computed() -> None:
    stepped = SteppedExecutor()
    prompt = tuple(range(1, 14))
    for number in (1, 2):
        stepped.run(NewSequence(number, prompt, 14), stepped.plan(1, chunks=(Chunk(number, 13),), join=(number,)))
    # Three blocks of four were there.
    assert _told(stepped)["tercet_worker_prompt_tokens_total"] == {(): 13 + 1}


def test_what_is_let_go_is_free() -> None:
    stepped = SteppedExecutor(caching=False)
    stepped.run(NewSequence(1, (1, 2, 3, 4, 5), 40), stepped.plan(1, chunks=(Chunk(1, 5),)))
    assert _told(stepped)["tercet_worker_kv_blocks"]["used",] == 2
    stepped.obey(Release((1,), ReleaseCause.CANCEL))
    assert _told(stepped)["tercet_worker_kv_blocks"] == {("used",): 0, ("cached",): 0, ("free",): 64}


def test_one_that_loads_says_so() -> None:
    reading = read(None, {"live": (), "ready": ("it loads the model",)}, 0.0, time.perf_counter)
    told = {metric.name: dict(reading.samples(metric)) for metric in METRICS}
    assert told.pop("tercet_worker_loaded") == {(): False}
    assert told.pop("tercet_health") == {("live",): True, ("ready",): False}
    assert not any(told.values())
