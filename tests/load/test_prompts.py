"""Prompts have as many tokens as they are to have, and share what they are to share."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tercet.load.prompts import Passages, Prefix, RandomTokens, Words, vocabulary
from tercet.load.question_file import read_questions
from tercet.load.workload_error import WorkloadError
from tercet.messages import ChatMessage


@settings(max_examples=50)
@given(st.integers(1, 500), st.one_of(st.none(), st.integers(1, 300)), st.integers())
def test_prompts_are_exactly_as_long_and_begin_with_their_prefix(length: int, prefix: int | None, seed: int) -> None:
    shared = None if prefix is None else Prefix(prefix, "group")
    wanted = length if prefix is None else max(length, prefix + 1)
    for source in (RandomTokens(vocabulary(50_000)), Passages(list(range(100, 900)))):
        one, two = (source.make(0, length, shared, random.Random(f"{seed}{index}")) for index in range(2))
        assert one.tokens == two.tokens == len(one.prompt) == wanted
        if prefix is not None:
            assert one.prompt[:prefix] == two.prompt[:prefix]
    made = Words(["the", "of"], exact=True, extra=2).make(0, length + 4, shared, random.Random(seed))
    assert isinstance(made.prompt, str)
    assert made.tokens == len(made.prompt.split()) + 2


def test_token_ids_are_in_the_vocabulary_and_no_special_ones() -> None:
    assert vocabulary(None) == range(1000, 31_000)
    assert vocabulary(128_256) == range(1000, 31_000)
    assert vocabulary(500) == range(16, 500)
    assert list(vocabulary(2)) == [1]


def test_questions_are_those_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "questions.json"
    turns = [{"from": "gpt", "value": "?"}, {"from": "human", "value": "Who?"}, {"from": "gpt", "value": "Me."}]
    path.write_text(json.dumps([{"conversations": turns}, {"conversations": turns[:1]}]))
    (made,) = read_questions(path)
    assert (made.prompt, made.tokens, made.max_tokens) == ((ChatMessage("user", "Who?"),), None, None)
    path = tmp_path / "questions.jsonl"
    lines = [
        {"prompt": "Once", "max_tokens": 5},
        {"messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]},
    ]
    path.write_text("\n\n".join(map(json.dumps, lines)))
    text, chat = read_questions(path)
    assert (text.prompt, text.max_tokens) == ("Once", 5)
    assert chat.prompt == (ChatMessage("system", "Be brief."), ChatMessage("user", "Hi"))


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "has no questions"),
        ("[{", "neither a JSON list nor JSON lines"),
        ("3", "has '3' for a question"),
        ('{"text": "x"}', "none of prompt, messages, conversations"),
        ('{"prompt": "x", "max_tokens": "many"}', "max_tokens is 'many'"),
        ('{"messages": [{"role": "king", "content": "x"}]}', "no turn of a chat"),
        ('{"messages": ["x"]}', "'x' is no turn of a chat"),
    ],
)
def test_what_is_no_question_is_told(tmp_path: Path, text: str, problem: str) -> None:
    path = tmp_path / "q.jsonl"
    path.write_text(text)
    with pytest.raises(WorkloadError, match=f"prompts: .*{problem}"):
        read_questions(path)
    with pytest.raises(WorkloadError, match="cannot read"):
        read_questions(tmp_path / "none.jsonl")
