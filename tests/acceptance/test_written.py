"""What is written of an acceptance: JUnit's XML and JSON."""

from __future__ import annotations

import json
from xml.etree import ElementTree as Xml

from tercet.acceptance.acceptance import Judgement
from tercet.acceptance.judging import Judged, Verdict
from tercet.acceptance.spec import Line
from tercet.acceptance.written import sentence, to_data, to_junit

LINES = (
    Judged(Line("a < b", "ttft_p95_ms", 500.0, "steady"), Verdict.PASS, 120.5, "of 9 requests", "out/steady"),
    Judged(Line("held", "held_rate", 4.0, "steady"), Verdict.FAIL, 2.0, "\x00 & <odd>"),
    Judged(Line("blocks", "blocks_left", 0.0), Verdict.NOT_TOLD, None, "does not tell"),
    Judged(Line("late", "gap_p99_ms", 80.0, "steady"), Verdict.NOT_MEASURED, None, "the client was the limit"),
)
JUDGEMENT = Judgement("the gateway at x:1", "m", "r1", LINES)


def test_each_line_is_a_testcase() -> None:
    suite = Xml.fromstring(to_junit("slo", JUDGEMENT))
    assert {name: suite.get(name) for name in ("name", "tests", "failures", "errors", "skipped")} == {
        "name": "slo", "tests": "4", "failures": "1", "errors": "1", "skipped": "1",
    }  # fmt: skip
    cases = suite.findall("testcase")
    assert [case.get("name") for case in cases] == ["a < b", "held", "blocks", "late"]
    assert [[child.tag for child in case if child.tag != "system-out"] for case in cases] == [
        [], ["failure"], ["skipped"], ["error"],
    ]  # fmt: skip
    failure = cases[1].find("failure")
    assert failure is not None
    assert failure.get("message") == "2/s, agreed: >= 4/s (\ufffd & <odd>)"
    assert "out/steady" in (cases[0].findtext("system-out") or "")


def test_json_has_figure_and_limit_of_each_line() -> None:
    lines = json.loads(json.dumps(to_data("slo", JUDGEMENT)))["lines"]
    assert [(each["verdict"], each["figure"], each["limit_is"]) for each in lines] == [
        ("pass", 120.5, "most"), ("fail", 2.0, "least"), ("not told", None, "most"), ("not measured", None, "most"),
    ]  # fmt: skip


def test_a_line_in_words() -> None:
    assert sentence(LINES[0]) == "120.5 ms, agreed: <= 500 ms (of 9 requests)"
    assert sentence(LINES[2]) == "not told: does not tell (agreed: <= 0)"
