"""Which prompts there are for which server."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tercet.load.prompts import Passages, Questions, RandomTokens, Words
from tercet.load.sources import make_source
from tercet.load.target import Described
from tercet.load.workload import Workload
from tercet.load.workload_error import WorkloadError
from tests.load.scripted import Scripted

WITH_TOKENS = Described("m", None, None, 50_000, takes_tokens=True)
WITHOUT = Described("m", None, None, None, takes_tokens=False)


async def test_synthetic_prompts_are_tokens_or_words_that_are_one_each() -> None:
    assert isinstance(await make_source(Workload(requests=1), Scripted(), WITH_TOKENS), RandomTokens)
    words = await make_source(Workload(requests=1), Scripted(), WITHOUT)
    assert isinstance(words, Words)
    assert (words.exact, words.extra) == (True, 0)

    class Split(Scripted):
        """Breaks a long word in two."""

        async def tokenize(self, text: str) -> tuple[int, ...] | None:
            return tuple(range(len(text.split()) + ("there" in text)))

    words = await make_source(Workload(requests=1), Split(), WITHOUT)
    assert isinstance(words, Words)
    assert not words.exact
    assert words.make(0, 9, None, random.Random(1)).tokens is None


async def test_a_text_is_cut_into_pieces_of_its_own_tokens(tmp_path: Path) -> None:
    path = tmp_path / "book.txt"
    path.write_text("Once upon a time there was a gateway. " * 5000)
    workload = Workload(requests=1, prompts=str(path))
    source = await make_source(workload, Scripted(), WITH_TOKENS)
    assert isinstance(source, Passages)
    # As many as the server has tokens for it, piece by piece.
    assert len(source.token_ids) == pytest.approx(40_000, abs=5)
    assert isinstance(await make_source(workload, Scripted(), WITHOUT), Words)
    path.write_text(" \n")
    with pytest.raises(WorkloadError, match=r"prompts: .* is empty"):
        await make_source(workload, Scripted(), WITH_TOKENS)
    path.write_bytes(b"\xff")
    with pytest.raises(WorkloadError, match="it is not UTF-8"):
        await make_source(workload, Scripted(), WITH_TOKENS)


async def test_questions_are_asked_as_they_stand(tmp_path: Path) -> None:
    path = tmp_path / "q.jsonl"
    path.write_text('{"prompt": "One?"}\n{"prompt": "Two?", "max_tokens": 7}\n')
    source = await make_source(Workload(requests=1, prompts=str(path)), Scripted(), WITHOUT)
    assert isinstance(source, Questions)
    made = [source.make(index, 100, None, random.Random(1)) for index in range(3)]
    assert [(each.prompt, each.max_tokens) for each in made] == [("One?", None), ("Two?", 7), ("One?", None)]
