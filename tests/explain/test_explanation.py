"""Where the time of a request went, by its row, by what schedulers tell, and by both."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from tercet.explain.explanation import Explanation, explain
from tercet.explain.headline import headline
from tercet.explain.parts import Kind, Part, fit
from tercet.explain.picture import detail_table, stage_table, to_json
from tercet.explain.story import (
    Cancelled,
    Cause,
    Gap,
    Limit,
    OutputStory,
    Place,
    Served,
    Step,
    Story,
    Stretch,
)
from tercet.ledger.row import Cancellation, Outcome, Row, StageTimes

AT = 1_764_500_000.0
ROW = Row(
    7, "req-7", "alice", "interactive", "small", "r1", 1, AT, Outcome.COMPLETED, "length", prompt_tokens=100,
    cached_tokens=64, generated_tokens=40, delivered_tokens=40, wasted_tokens=0, queue_s=2.0, ttft_s=2.2, tpot_s=0.01,
    largest_gap_s=0.02, total_s=2.7, gpu_s=0.5, cost=0.001, slo="ttft",
    stages=StageTimes(0.01, 0.02, 0.01, 0.06, 2.0, 0.1, 0.4, 0.0, 0.1),
)  # fmt: skip


def output(*stretches: Stretch, **changes: Any) -> OutputStory:
    values: dict[str, Any] = {
        "index": 0, "stretches": stretches, "first_token_at": AT + 2.2, "tokens": 40, "chunks": 2, "chunk_tokens": 36,
        "cached_tokens": 64, "again_tokens": 0, "plans": 5, "planned_steps": 40, "revoked": 1,
        "median_step_s": 0.01, "mean_step_s": 0.01,
        "gap": None, "preemptions": 0, "swaps": 0, "losses": 0, "moves": 0,
    }  # fmt: skip
    return OutputStory(**{**values, **changes})


QUEUED = Stretch(Place.QUEUED, AT + 0.1, AT + 2.1, "", Cause.ARRIVED, ((Limit.BLOCKS, 1.9), (Limit.BUDGET, 0.1)))
PREFILL = Stretch(Place.PREFILL, AT + 2.1, AT + 2.2, "host:1")
DECODE = Stretch(Place.DECODE, AT + 2.2, AT + 2.6, "host:1")


def story(*outputs: OutputStory, **changes: Any) -> Story:
    told = Story(
        "req-7", "alice", "interactive", "small", 100, AT + 0.1, AT - 5, AT + 10, whole=True,
        outputs=outputs or (output(QUEUED, PREFILL, DECODE),), served=(Served("interactive", 14, 0, mine=True),),
        running_at_arrival=8, queue_position=14, forecast_s=1.8, ended_at=AT + 2.6, outcome="LENGTH", gpu_s=0.5,
    )  # fmt: skip
    return dataclasses.replace(told, **changes)


def text_of(explanation: Explanation) -> str:
    console = Console(width=200, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(stage_table(explanation, 200))
    console.print(detail_table(explanation))
    return console.export_text()


def test_by_both_the_sentence_says_what_it_waited_for() -> None:
    explanation = explain("req-7", ROW, [story()], AT + 10)
    assert headline(explanation) == "1.9 s of 2.7 s: waited for KV blocks behind 14 requests of its class"
    assert sum(stage.seconds for stage in explanation.stages) == pytest.approx(explanation.total_s)
    waiting = next(stage for stage in explanation.stages if stage.name == "waiting")
    assert [(part.kind, part.seconds) for part in waiting.parts] == [(Kind.BLOCKS, 1.9), (Kind.BUDGET, 0.1)]
    text = text_of(explanation)
    for words in (
        "completed (length); promise: ttft", "100 prompt tokens (64 cached), 40 generated, 40 delivered",
        "14 requests ahead in its line; 8 sequences running; 14 requests of interactive started first",
        "first token after 1.8 s; it came after 2.1 s", "5 plans of 8 steps, 1 revoked; a step takes 10 ms",
        "36 tokens in 2 chunks",
    ):  # fmt: skip
        assert words in text


def test_by_its_row_alone() -> None:
    explanation = explain("req-7", ROW, [], AT + 10)
    assert headline(explanation) == "2 s of 2.7 s: waited in the scheduler's queue"
    assert [stage.name for stage in explanation.stages][:3] == ["checks", "tokenize", "prepare"]
    assert not explanation.at_scheduler


def test_by_the_plan_log_alone() -> None:
    explanation = explain("req-7", None, [story()], AT + 10)
    assert explanation.at_scheduler
    assert headline(explanation) == "1.9 s of 2.5 s: waited for KV blocks behind 14 requests of its class"
    assert [(stage.name, round(stage.seconds, 6)) for stage in explanation.stages] == [
        ("waiting", 2.0), ("prefill", 0.1), ("decode", 0.4),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("stages", "changes", "expected"),
    [
        (StageTimes(0.0, 2.0, 0.0, 0.1, 0.2, 0.1, 0.3, 0.0, 0.0), {}, "its text became 100 tokens"),
        (StageTimes(0.0, 0.0, 2.0, 0.1, 0.2, 0.1, 0.3, 0.0, 0.0), {}, "its grammar, bad words and quotas"),
        (StageTimes(0.0, 0.0, 0.0, 2.0, 0.2, 0.2, 0.3, 0.0, 0.0), {}, "the scheduler did not answer yet"),
        (StageTimes(0.0, 0.0, 0.0, 0.0, 0.2, 2.0, 0.5, 0.0, 0.0), {}, "its prompt of 100 tokens was computed"),
        (StageTimes(0.0, 0.0, 0.0, 0.0, 0.2, 0.2, 2.3, 0.0, 0.0), {}, "40 tokens were generated"),
        (StageTimes(0.0, 0.0, 0.0, 0.0, 0.2, 0.2, 2.3, 0.0, 0.0), {"largest_gap_s": 2.0}, "no token came, once"),
        (StageTimes(0.0, 0.0, 0.0, 0.0, 0.2, 0.2, 0.3, 2.0, 0.0), {}, "its client was far behind with reading"),
        (StageTimes(0.0, 0.0, 0.0, 0.0, 0.2, 0.2, 0.3, 0.0, 2.0), {}, "the last of its text was on its way"),
        (StageTimes(2.7), {}, "it was looked whether anything could serve it"),
    ],
)
def test_each_stage_can_be_what_took_the_time(stages: StageTimes, changes: dict[str, Any], expected: str) -> None:
    row = dataclasses.replace(ROW, stages=stages, **changes)
    assert headline(explain("req-7", row, [], AT + 10)).startswith("2")
    assert expected in headline(explain("req-7", row, [], AT + 10))


def test_a_slow_step_is_named_with_what_ran_in_it() -> None:
    step = Step(AT + 3.2, 0.95, "host:1", 520, 500, 3, 1)
    slow = output(
        PREFILL, Stretch(Place.DECODE, AT + 2.2, AT + 3.4, "host:1"), gap=Gap(AT + 2.25, AT + 3.2, True, (step,), 1)
    )
    explanation = explain("req-7", None, [story(slow, ended_at=AT + 3.4)], AT + 10)
    assert headline(explanation) == (
        "950 ms of 1.3 s: one step of host:1 took 950 ms: it computed 520 tokens, 500 of them of 3 prompts"
    )
    assert "950 ms with 520 tokens, 500 of prompts" in text_of(explanation)


def test_steps_of_which_many_were_long_are_told_by_their_mean() -> None:
    uneven = output(QUEUED, PREFILL, Stretch(Place.DECODE, AT + 2.2, AT + 9.0, "host:1"), mean_step_s=0.17)
    explanation = explain("req-7", None, [story(uneven, ended_at=AT + 9.0)], AT + 10)
    assert "40 tokens were generated in steps of 10 ms, on the mean 170 ms" in headline(explanation)


def test_a_worker_that_says_nothing_is_named() -> None:
    silent = output(
        PREFILL, Stretch(Place.DECODE, AT + 2.2, AT + 3.4, "host:1"), gap=Gap(AT + 2.25, AT + 3.2, True, (), 0)
    )
    explanation = explain("req-7", None, [story(silent, ended_at=AT + 3.4)], AT + 10)
    assert "its worker reported no step" in headline(explanation)


def test_one_that_its_client_cancelled() -> None:
    cancel = Cancellation(None, "client", AT + 2.5, ("DECODE",), 0.001, 0.02, 0.03, 5, 3, 0.01)
    row = dataclasses.replace(ROW, outcome=Outcome.CANCELLED, reason="client", slo=None, cancellations=(cancel,))
    explanation = explain("req-7", row, [story(cancel=Cancelled(AT + 2.5, "client", ("DECODE",), AT + 2.52))], AT + 9)
    assert headline(explanation).startswith("cancelled (client, in decode) after 2.7 s; 1.9 s of 2.7 s: waited for KV")
    assert (
        "client, 2.5 s after its arrival; found in decode; its worker was told after 1 ms; its blocks were free after "
        "20 ms; 3 tokens for nobody"
    ) in text_of(explanation)


@pytest.mark.parametrize(
    ("outcome", "reason", "start"),
    [
        (Outcome.FAILED, "WORKER_LOST", "failed (WORKER_LOST) after 2.7 s; "),
        (Outcome.EXPIRED, "DEADLINE_EXCEEDED", "expired (DEADLINE_EXCEEDED) after 2.7 s; "),
        (Outcome.LOST, "GATEWAY_LOST", "lost with its gateway after 2.7 s; "),
    ],
)
def test_an_end_that_was_not_well_stands_first(outcome: Outcome, reason: str, start: str) -> None:
    row = dataclasses.replace(ROW, outcome=outcome, reason=reason)
    assert headline(explain("req-7", row, [], AT)).startswith(start)


def test_of_one_that_was_lost_with_its_gateway_no_length_is_made_up() -> None:
    row = dataclasses.replace(ROW, outcome=Outcome.LOST, total_s=None, stages=StageTimes())
    assert headline(explain("req-7", row, [], AT)) == "lost with its gateway"
    assert headline(explain("req-7", row, [story()], AT)).startswith("lost with its gateway after 2.5 s; 1.9 s of ")


def test_one_that_was_refused() -> None:
    told = story(outputs=(), refused="QUEUE_FULL", refusal="1,024 requests wait", outcome="REFUSED", served=())
    assert headline(explain("req-7", None, [told], AT)) == "refused: QUEUE_FULL: 1,024 requests wait"


def test_one_that_runs() -> None:
    row = Row(7, "req-7", "alice", "interactive", "small", "r1", 1, AT, prompt_tokens=100)
    told = story(output(QUEUED, first_token_at=None), ended_at=None, log_ended_at=AT + 2.1, outcome="")
    explanation = explain("req-7", row, [told], AT + 2.2)
    assert explanation.running
    assert headline(explanation).startswith("1.9 s of 2.2 s so far: waited for KV blocks")
    # Of one of which nothing but its row is there.
    assert headline(explain("req-7", row, [], AT + 2.2)) == "runs for 2.2 s"


def test_a_row_of_an_older_version_has_no_stages() -> None:
    explanation = explain("req-7", dataclasses.replace(ROW, stages=StageTimes()), [], AT)
    assert headline(explanation) == "nothing is known of its time"
    assert "completed" in text_of(explanation)


def test_one_that_another_scheduler_took_over() -> None:
    before = story(output(PREFILL, DECODE), ended_at=None, log_ended_at=AT + 2.6, outcome="")
    queued = Stretch(Place.QUEUED, AT + 5.6, AT + 5.7, "", Cause.TAKEN_OVER, ((Limit.SLOTS, 0.1),))
    after = story(
        output(queued, Stretch(Place.PREFILL, AT + 5.7, AT + 5.8, "host:2"), first_token_at=AT + 5.8),
        arrived_at=AT + 5.6, ended_at=AT + 5.8, taken_over=True, served=(),
    )  # fmt: skip
    explanation = explain("req-7", None, [after, before], AT + 10)
    assert headline(explanation) == "3.1 s of 3.7 s: no scheduler had it"
    assert "by another scheduler" in text_of(explanation)


def test_of_several_outputs_the_last_one_counts() -> None:
    short = output(QUEUED, PREFILL)
    long = output(QUEUED, PREFILL, Stretch(Place.DECODE, AT + 2.2, AT + 9.0, "host:1"), index=1, tokens=600)
    explanation = explain("req-7", None, [story(short, long, ended_at=AT + 9.0)], AT + 10)
    assert headline(explanation).startswith("6.8 s of 8.9 s: 600 tokens were generated")
    assert "plans 1" in text_of(explanation)


def test_json_has_everything() -> None:
    data = json.loads(json.dumps(to_json(explain("req-7", ROW, [story()], AT, ["the rest"]))))
    assert data["headline"].startswith("1.9 s of 2.7 s")
    assert data["missing"] == ["the rest"]
    assert data["stages"][4]["parts"][0] == {
        "kind": "blocks", "seconds": 1.9, "words": "waited for KV blocks behind 14 requests of its class",
    }  # fmt: skip
    assert data["row"]["stages"]["waiting_s"] == 2.0
    assert data["stories"][0]["outputs"][0]["stretches"][0]["limits"] == [["blocks", 1.9], ["tokens of a step", 0.1]]


def test_what_comes_from_outside_is_no_markup() -> None:
    row = dataclasses.replace(ROW, request_id="[bold]x[/bold]", tenant="[red]", reason="[/]")
    assert "[bold]x[/bold], of [red]" in text_of(explain("[bold]", row, [], AT))


@settings(max_examples=60)
@given(st.lists(st.floats(0.001, 100), min_size=1, max_size=5), st.floats(0.001, 300))
def test_parts_fill_their_stage(seconds: list[float], stage_s: float) -> None:
    parts = fit([Part(Kind.TOKENS, each, "") for each in seconds], stage_s)
    assert sum(part.seconds for part in parts) == pytest.approx(stage_s, rel=0.021)
    assert all(part.seconds >= 0 for part in parts)
