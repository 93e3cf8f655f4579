"""What came of an acceptance as JUnit's XML, and as JSON. Pure."""

from __future__ import annotations

import re
from typing import Any
from xml.etree import ElementTree as Xml

from .acceptance import Judgement
from .judging import Judged, Verdict

# What XML cannot hold, whatever wrote it.
_NOT_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def to_junit(name: str, judgement: Judgement) -> bytes:
    """A testcase for each line, by its group; what was not measured is an error, what the server does not tell is
    skipped."""
    judged = judgement.judged
    suite = Xml.Element(
        "testsuite",
        name=_clean(name),
        tests=str(len(judged)),
        failures=str(sum(each.verdict is Verdict.FAIL for each in judged)),
        errors=str(sum(each.verdict is Verdict.NOT_MEASURED for each in judged)),
        skipped=str(sum(each.verdict is Verdict.NOT_TOLD for each in judged)),
    )
    properties = Xml.SubElement(suite, "properties")
    for key, value in (
        ("server", judgement.server),
        ("model", judgement.model),
        ("revision", judgement.revision or ""),
    ):
        Xml.SubElement(properties, "property", name=key, value=_clean(value))
    for each in judged:
        case = Xml.SubElement(
            suite, "testcase", classname=f"accept.{each.line.measure.group.value}", name=_clean(each.line.name)
        )
        element = _ELEMENTS.get(each.verdict)
        if element is not None:
            Xml.SubElement(case, element, message=_clean(sentence(each)))
        Xml.SubElement(case, "system-out").text = _clean("\n".join(filter(None, (sentence(each), each.where))))
    Xml.indent(suite)
    return bytes(Xml.tostring(suite, encoding="utf-8", xml_declaration=True)) + b"\n"


_ELEMENTS = {Verdict.FAIL: "failure", Verdict.NOT_MEASURED: "error", Verdict.NOT_TOLD: "skipped"}


def sentence(judged: Judged) -> str:
    """Figure, limit and detail of a line."""
    line = judged.line
    if judged.figure is None:
        return f"{judged.verdict.value}: {judged.detail} (agreed: {line.limited()})"
    return f"{line.shown(judged.figure)}, agreed: {line.limited()}{f' ({judged.detail})' if judged.detail else ''}"


def to_data(name: str, judgement: Judgement) -> dict[str, Any]:
    """As JSON has it."""
    return {
        "contract": name,
        "server": judgement.server,
        "model": judgement.model,
        "model_revision": judgement.revision,
        "lines": [
            {
                "name": each.line.name,
                "group": each.line.measure.group.value,
                "measure": each.line.measure_name,
                "verdict": each.verdict.value,
                "figure": each.figure,
                "limit": each.line.limit,
                "limit_is": "least" if each.line.measure.is_least else "most",
                "unit": each.line.measure.unit,
                "required": each.line.required,
                "detail": each.detail,
                "where": each.where,
            }
            for each in judgement.judged
        ],
    }


def _clean(text: str) -> str:
    return _NOT_XML.sub("\ufffd", text)
