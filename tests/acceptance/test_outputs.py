"""What is wrong with answers, by servers that answer in one wrong way each."""

from __future__ import annotations

import asyncio
import dataclasses
from pathlib import Path

import pytest

from tercet.acceptance.outputs import observe, questions, record, stop_word
from tercet.acceptance.question import Question, Said
from tercet.acceptance.references import VERSION, Reference, References, read_references, write_references
from tercet.acceptance.spec import OutputsSpec
from tercet.acceptance.spec_file import to_spec
from tercet.load.json_data import RunFileError

LINES = (
    "wrong_references", "wrong_finish_reasons", "wrong_usage", "changed_by_company", "changed_by_repeat",
    "going_on_after_cancel",
)  # fmt: skip
SPEC = to_spec(
    {
        "outputs": {
            "references": "answers.json", "prompts": ["a b", "c"], "chats": ["why"], "max_tokens": 6, "company": 3,
        },
        "line": [{"measure": name} for name in LINES],
    },
    Path(),
)  # fmt: skip


class Server:
    """Answers with words that follow from the question alone, a token each. `fault` is what it does wrong."""

    def __init__(self, fault: str = "") -> None:
        self.fault = fault
        self.asked = 0
        self.running = 0

    async def ask(self, question: Question, timeout_s: float) -> Said:
        self.asked += 1
        self.running += 1
        await asyncio.sleep(0)
        company, self.running = self.running, self.running - 1
        if self.fault == "error" and self.asked % 4 == 0:
            return Said(error="ENGINE_FAULT")
        salt = company - 1 if self.fault == "company" and question.temperature == 0 else 0
        salt += self.asked if self.fault == "repeat" and question.temperature else 0
        salt += 1 if self.fault == "output" and question.text == "c" else 0
        first = sum(question.text.encode()) + 1000 * question.seed + salt
        words = [f"w{first + index}" for index in range(question.max_tokens)]
        reason = "length"
        if question.stop in words and self.fault != "stop":
            words = words[: words.index(question.stop)]
            reason = "length" if self.fault == "finish" else "stop"
        counted = len(words) + (self.fault == "usage")
        return Said(" ".join(words), tuple(range(len(words))), reason, 3, counted)

    async def cancel_midway(self, question: Question, after_tokens: int, timeout_s: float) -> bool | None:
        return None if self.fault == "no cancels" else self.fault == "cancel"


def wrong_of(fault: str) -> set[str]:
    """The lines that fail with a fault."""

    async def run() -> set[str]:
        references = References(VERSION, "m", "r1", await record(Server(), SPEC.outputs))
        found = await observe(Server(fault), SPEC, references)
        assert set(found) == set(LINES)
        return {name for name, findings in found.items() if findings.wrong}

    return asyncio.run(run())


@pytest.mark.parametrize(
    ("fault", "lines"),
    [
        ("", set()),
        ("output", {"wrong_references"}),
        ("finish", {"wrong_finish_reasons"}),
        ("stop", {"wrong_finish_reasons"}),
        ("usage", {"wrong_usage"}),
        ("company", {"changed_by_company"}),
        ("repeat", {"changed_by_repeat"}),
        ("cancel", {"going_on_after_cancel"}),
    ],
)
def test_each_fault_is_found_by_its_own_line(fault: str, lines: set[str]) -> None:
    assert wrong_of(fault) == lines


def test_what_is_not_answered_is_wrong() -> None:
    assert {"wrong_references", "wrong_finish_reasons"} & wrong_of("error")


def test_where_nobody_can_cancel_nothing_is_looked_at() -> None:
    found = asyncio.run(observe(Server("no cancels"), SPEC, None))
    assert (found["going_on_after_cancel"].looked_at, found["going_on_after_cancel"].wrong) == (0, ())
    assert "wrong_references" not in found


def test_a_contract_without_texts_looks_at_nothing() -> None:
    spec = dataclasses.replace(SPEC, outputs=OutputsSpec(prompts=(), chats=()))
    assert not any(findings.looked_at for findings in asyncio.run(observe(Server(), spec, None)).values())


def test_only_what_lines_are_about_is_asked() -> None:
    server = Server()
    assert asyncio.run(observe(server, to_spec({"line": [{"measure": "blocks_left"}]}, Path()), None)) == {}
    assert server.asked == 0


@pytest.mark.parametrize(("text", "word"), [("", ""), ("one", ""), ("a b", "b"), (" a\nb c ", "b")])
def test_the_stop_string_is_a_word_from_the_midst(text: str, word: str) -> None:
    assert stop_word(text) == word


def test_texts_and_chats_are_recorded_greedily() -> None:
    assert [(each.text, each.is_chat, each.temperature) for each in questions(SPEC.outputs)] == [
        ("a b", False, 0), ("c", False, 0), ("why", True, 0),
    ]  # fmt: skip


def test_references_are_read_as_they_were_written(tmp_path: Path) -> None:
    path = tmp_path / "answers.json"
    answers = (
        Reference(Question("é", False, 4), Said("x", (1, 2), "length", 3, 2)),
        Reference(Question("why", True, 4), Said("y", None, "stop")),
    )
    write_references(path, References(VERSION, "m", None, answers))
    assert read_references(path) == References(VERSION, "m", None, answers)


@pytest.mark.parametrize(
    ("content", "problem"),
    [("{", "is not JSON"), ("[]", "not an object"), ('{"version": 1}', "has no model"), (None, "--record")],
)
def test_a_file_that_holds_no_references_is_told(tmp_path: Path, content: str | None, problem: str) -> None:
    path = tmp_path / "answers.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(RunFileError, match=problem):
        read_references(path)


def test_references_of_a_newer_version_are_told(tmp_path: Path) -> None:
    path = tmp_path / "answers.json"
    write_references(path, References(VERSION + 1, "m", None, ()))
    with pytest.raises(RunFileError, match="of version 2"):
        read_references(path)
