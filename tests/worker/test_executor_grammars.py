"""Texts that keep to grammars: whatever the plans, they are what they would be alone, and valid."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tercet.grammar.grammar import Grammar, Syntax
from tests.mesh.models import HashModel
from tests.worker.grammar_process import END, PIECES, LocalGrammars
from tests.worker.recall_model import continuation
from tests.worker.stepped_executor import SteppedExecutor, ended_of, steps_of, tokens_of
from worker.messages import (
    Chunk,
    Ended,
    EndReason,
    Event,
    Fork,
    NewSequence,
    Penalties,
    PlanDone,
    Release,
    ReleaseCause,
    Resume,
    Sampling,
    Structure,
)

PROMPT = (3, 1, 4, 1, 5, 9, 2, 6)

SCHEMAS: list[dict[str, Any]] = [
    {"type": "object", "properties": {"a": {"type": "integer"}, "é": {"enum": ["x", 1, None]}}, "required": ["é"]},
    {"type": "array", "items": {"type": "boolean"}, "minItems": 1, "maxItems": 4},
    {"type": "string", "minLength": 1, "maxLength": 9},
    {"anyOf": [{"type": "null"}, {"type": "integer", "minimum": 7, "maximum": 131}]},
]
REGEXES = [r"[a-c]{2,4}(é|-\d+)?", r"(x|yz)*end", r"[^a-z]{3}", r"\d{3}-\w+\.?"]
grammars = st.sampled_from(
    [Grammar(Syntax.JSON_SCHEMA, json.dumps(each)) for each in SCHEMAS]
    + [Grammar(Syntax.REGEX, each) for each in REGEXES]
    + [Grammar(Syntax.EBNF, 'root ::= "a" root "b" | "c"')]
)
chances = st.builds(Sampling, st.sampled_from([0.0, 0.7, 3.0]), seed=st.integers(0, 99))


def sequence(grammar: Grammar, sampling: Sampling, count: int, key: int = 1, **fields: Any) -> NewSequence:
    structure = Structure(grammar, len(PROMPT), (END,))
    sampling = Sampling(sampling.temperature, seed=sampling.seed, penalties=sampling.penalties, structure=structure)
    token_ids = fields.pop("token_ids", PROMPT)
    return NewSequence(key, token_ids, len(PROMPT) + count, frozenset({END}), sampling, **fields)


def bench(**fields: Any) -> SteppedExecutor:
    fields.setdefault("grammars", LocalGrammars())
    return SteppedExecutor(model=HashModel(), **fields)


def alone(spec: NewSequence) -> list[int]:
    """One step a plan, with nobody beside it."""
    lone = bench(num_blocks=256, caching=False)
    events = lone.run(spec, lone.plan(1, chunks=(Chunk(spec.sequence_id, 99),), join=(spec.sequence_id,)))
    while spec.sequence_id not in ended_of(events):
        events += lone.run(lone.plan(1))
    return tokens_of(events, spec.sequence_id)


def text_of(tokens: list[int]) -> bytes:
    return b"".join(PIECES[token_id] for token_id in tokens)


def check(grammar: Grammar, tokens: list[int], ended: Ended) -> None:
    """What ended by itself is whole, and valid."""
    assert ended.reason in (EndReason.STOP, EndReason.LENGTH), ended
    if ended.reason is EndReason.LENGTH:
        assert END not in tokens
        return
    assert tokens[-1] == END
    text = text_of(tokens).decode()
    if grammar.syntax is Syntax.REGEX:
        assert re.fullmatch(grammar.text, text)
    elif grammar.syntax is Syntax.EBNF:
        assert re.fullmatch(r"a*cb*", text)
        assert text.count("a") == text.count("b")
    else:
        valid(json.loads(grammar.text), json.loads(text))


def valid(schema: dict[str, Any], value: Any) -> None:
    if "anyOf" in schema:
        assert value is None or 7 <= value <= 131
    elif schema["type"] == "string":
        assert 1 <= len(value) <= 9
    elif schema["type"] == "array":
        assert 1 <= len(value) <= 4
        assert all(isinstance(each, bool) for each in value)
    else:
        assert value["é"] in ("x", 1, None)
        assert value.keys() <= {"a", "é"}
        assert isinstance(value.get("a", 0), int)


@settings(max_examples=60, deadline=None)
@given(
    grammar=grammars, sampling=chances, cuts=st.lists(st.integers(1, 7), min_size=8, max_size=8), forks=st.booleans()
)
def test_every_cut_gives_the_same_valid_text(
    grammar: Grammar, sampling: Sampling, cuts: list[int], forks: bool
) -> None:
    spec = sequence(grammar, sampling, 40, forks=(Fork(2, sampling.seed + 1),) if forks else ())
    want = {1: alone(sequence(grammar, sampling, 40))}
    if forks:
        want[2] = alone(sequence(grammar, Sampling(sampling.temperature, seed=sampling.seed + 1), 40, key=2))
    crowd = bench()
    chunks = (Chunk(1, 5), Chunk(4, 2))
    neighbour = NewSequence(4, (8, 8, 8), 60)
    events = crowd.run(spec, neighbour, crowd.plan(cuts[0], chunks=chunks, join=(1, 4)))
    events += crowd.run(crowd.plan(cuts[1], chunks=(Chunk(1, 99), Chunk(4, 9))))
    for num_steps in [*cuts[2:], 60]:
        events += crowd.run(crowd.plan(num_steps))
    for key, tokens in want.items():
        assert tokens_of(events, key) == tokens
        check(grammar, tokens, ended_of(events)[key])
    assert len(crowd.executor._grammars) == 0  # type: ignore[arg-type]


@settings(max_examples=25, deadline=None)
@given(grammar=grammars, sampling=chances, first=st.integers(1, 9), swap=st.booleans())
def test_who_gave_way_goes_on_where_it_was(grammar: Grammar, sampling: Sampling, first: int, swap: bool) -> None:
    spec = sequence(grammar, sampling, 30)
    want = alone(spec)
    crowd = bench(num_swap_blocks=32)
    events = crowd.run(spec, crowd.plan(first, chunks=(Chunk(1, 99),), join=(1,)))
    if 1 not in ended_of(events):
        crowd.obey(Release((1,), ReleaseCause.SWAP if swap else ReleaseCause.PREEMPT))
        if swap:
            crowd.obey(Resume((1,)))
            events += crowd.run(crowd.plan(40, join=(1,)))
        else:
            again = sequence(grammar, sampling, 30, token_ids=(*PROMPT, *tokens_of(events, 1)))
            events += crowd.run(again, crowd.plan(40, chunks=(Chunk(1, 99),), join=(1,)))
    assert tokens_of(events, 1) == want


def masks_come(crowd: SteppedExecutor, grammars: LocalGrammars, until: int) -> list[Event]:
    """Steps, and answers one after the other as late as can be, until that sequence has ended."""
    first = len(crowd.events)
    for _ in range(500):
        crowd.executor.step()
        crowd.executor.obey()
        if until in ended_of(crowd.events[first:]):
            return crowd.events[first:]
        if crowd.executor._held_until is not None:
            grammars.process.answer_all()
        if not crowd.executor._plans:
            crowd.obey(crowd.plan(7, chunks=(Chunk(1, 99),), join=(1, 4)))
    raise AssertionError("it does not end")


@pytest.mark.parametrize("captured", [None, 5])
def test_nobody_waits_for_a_mask_and_the_text_is_the_same(captured: int | None) -> None:
    spec = sequence(Grammar(Syntax.REGEX, REGEXES[0]), Sampling(1.0, seed=3), 30)
    want = alone(spec)
    grammars = LocalGrammars()
    # No time passes.
    crowd = bench(grammars=grammars, captured=captured, clock=lambda: 0.0)
    grammars.prompt = False
    neighbour = NewSequence(4, (8, 8, 8), 40)
    plan = crowd.plan(50, chunks=(Chunk(1, 99), Chunk(4, 9)), join=(1, 4))
    # The neighbour runs to its end though no mask ever comes.
    events = crowd.obey(spec, neighbour, plan)
    for _ in range(60):
        crowd.executor.step()
    events = crowd.events[:]
    assert len(tokens_of(events, 4)) == 37
    assert tokens_of(events, 1) == []
    assert {item.num_computed for step in steps_of(events) for item in step.prefills if item.sequence_id == 1} == {7}
    # With nothing else to do the plan is kept for a while.
    assert not any(isinstance(event, PlanDone) for event in events)
    assert crowd.executor._held_until is not None
    events = masks_come(crowd, grammars, 1)
    assert tokens_of(events, 1) == want


def test_what_the_process_dies_of_fails_alone() -> None:
    grammars = LocalGrammars()
    crowd = bench(grammars=grammars)
    good = sequence(Grammar(Syntax.REGEX, REGEXES[1]), Sampling(1.0, seed=1), 30)
    want = alone(good)
    events = crowd.run(good, crowd.plan(2, chunks=(Chunk(1, 99),), join=(1,)))
    grammars.prompt = False
    grammars.process.answer_all()
    bad = sequence(Grammar(Syntax.REGEX, REGEXES[2]), Sampling(), 30, key=2)
    crowd.obey(bad)
    # What nobody is to blame for, and what is seen once, loses nothing.
    grammars.process.die(None)
    culprit = max(grammars.process.open_keys)
    grammars.process.die(culprit)
    assert not grammars.take_failed()
    grammars.process.die(culprit)
    grammars.prompt = True
    events += crowd.run(crowd.plan(40, chunks=(Chunk(2, 99),), join=(2,)))
    failure = ended_of(events)[2].failure
    assert failure is not None
    assert failure.reason == "INVALID_FIELD"
    assert failure.metadata == {"field": "grammar"}
    assert tokens_of(events, 1) == want


def test_a_bad_grammar_fails_its_sequence_alone() -> None:
    crowd = bench()
    bad = sequence(Grammar(Syntax.REGEX, "(a"), Sampling(), 9)
    neighbour = NewSequence(4, (8, 8, 8), 20)
    events = crowd.run(bad, neighbour, crowd.plan(20, chunks=(Chunk(1, 99), Chunk(4, 9)), join=(1, 4)))
    failure = ended_of(events)[1].failure
    assert failure is not None
    assert failure.reason == "INVALID_FIELD"
    assert "parenthesis" in failure.message
    assert len(tokens_of(events, 4)) == 17


def test_a_worker_without_grammars_says_so() -> None:
    crowd = SteppedExecutor()
    events = crowd.run(sequence(Grammar(Syntax.REGEX, "a"), Sampling(), 9), crowd.plan(2, chunks=(Chunk(1, 99),)))
    failure = ended_of(events)[1].failure
    assert failure is not None
    assert "grammars" in failure.message


def test_where_the_request_leaves_no_token_it_fails_alone_and_says_so() -> None:
    # Only a may come, and the grammar wants b behind it.
    asked = Penalties(len(PROMPT), allowed_ids=(ord("a") - 0x20, END))
    spec = sequence(Grammar(Syntax.REGEX, "ab"), Sampling(penalties=asked), 9)
    crowd = bench()
    neighbour = NewSequence(4, (8, 8, 8), 20)
    events = crowd.run(spec, neighbour, crowd.plan(20, chunks=(Chunk(1, 99), Chunk(4, 9)), join=(1, 4)))
    assert text_of(tokens_of(events, 1)) == b"a"
    failure = ended_of(events)[1].failure
    assert failure is not None
    assert failure.reason == "INVALID_FIELD"
    assert len(tokens_of(events, 4)) == 17


def test_min_tokens_hold_until_the_grammar_can_only_end() -> None:
    for seed in range(10):
        asked = Penalties(len(PROMPT), min_tokens=6)
        spec = sequence(Grammar(Syntax.REGEX, "[ab]{2,9}"), Sampling(2.0, seed=seed, penalties=asked), 30)
        assert 6 < len(alone(spec)) <= 10
        short = sequence(Grammar(Syntax.REGEX, "[ab]{2}"), Sampling(2.0, seed=seed, penalties=asked), 30)
        assert len(alone(short)) == 3


def test_neighbours_of_one_with_a_grammar_notice_nothing() -> None:
    crowd = SteppedExecutor(grammars=LocalGrammars())
    spec = sequence(Grammar(Syntax.REGEX, REGEXES[1]), Sampling(), 20)
    neighbour = NewSequence(4, (8, 8, 8), 20)
    events = crowd.run(spec, neighbour, crowd.plan(30, chunks=(Chunk(1, 99), Chunk(4, 9)), join=(1, 4)))
    assert tokens_of(events, 4) == continuation([8, 8, 8], 17)
