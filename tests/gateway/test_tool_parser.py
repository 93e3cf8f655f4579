"""Calls of tools in answers: what is one, what is text, and that it does not matter where the text is cut."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Sequence

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gateway.answer_piece import Piece
from gateway.json_scanner import JsonScanner
from gateway.tool_format import HERMES, LLAMA3_JSON, MISTRAL, TOOL_FORMATS, ToolFormat, format_of
from gateway.tool_parser import ToolParser

NAMES = frozenset({"get", "now", "wett.er"})
Calls = list[tuple[str, str]]


def pieces_of(form: ToolFormat, parts: Sequence[str], *, single: bool = False) -> tuple[list[Piece], bool]:
    parser = ToolParser(form, NAMES, single=single)
    pieces = [piece for part in parts for piece in parser.push(part)]
    pieces += parser.finish()
    return pieces, parser.called


def parse(form: ToolFormat, *parts: str, single: bool = False) -> tuple[str, Calls, bool]:
    """Text, calls, and whether it ends as one that called, of an answer in parts."""
    pieces, called = pieces_of(form, parts, single=single)
    assert sum(piece.size for piece in pieces) == len("".join(parts))
    calls: Calls = []
    for piece in pieces:
        assert piece.size > 0
        if piece.name:
            assert piece.index == len(calls)
            calls.append((piece.name, ""))
        if piece.index is not None:
            # One after the other.
            assert piece.index == len(calls) - 1
            name, arguments = calls[-1]
            calls[-1] = (name, arguments + piece.arguments)
    return "".join(piece.text for piece in pieces), calls, called


def hermes(*calls: str) -> str:
    return "".join(f"<tool_call>\n{call}\n</tool_call>\n" for call in calls)


GET = '{"name": "get", "arguments": {"city": "Zürich 🙂", "n": [1, -2.5e3, true, null, {}]}}'
ARGUMENTS = '{"city": "Zürich 🙂", "n": [1, -2.5e3, true, null, {}]}'
NOW = '{"name": "now", "arguments": {}}'
TRICKY = r'{"arguments": {"a": "}]</tool_call>\"{\\", "b\u0041": "[TOOL_CALLS]"}, "name": "wett.er"}'
TRICKY_ARGUMENTS = r'{"a": "}]</tool_call>\"{\\", "b\u0041": "[TOOL_CALLS]"}'

WHOLE: list[tuple[ToolFormat, str, str, Calls]] = [
    (HERMES, hermes(GET), "", [("get", ARGUMENTS)]),
    (HERMES, "Let me see.\n" + hermes(GET, NOW), "Let me see.\n", [("get", ARGUMENTS), ("now", "{}")]),
    (HERMES, hermes(GET) + "  done", "\n  done", [("get", ARGUMENTS)]),
    (HERMES, "a" + hermes(NOW).strip() + "b" + hermes(TRICKY), "ab", [("now", "{}"), ("wett.er", TRICKY_ARGUMENTS)]),
    (HERMES, '<tool_call>{"name":"now"}', "", [("now", "{}")]),
    (HERMES, hermes(NOW).removesuffix("call>\n"), "", [("now", "{}")]),
    (HERMES, hermes(NOW) + " <tool_", "", [("now", "{}")]),
    (HERMES, hermes(NOW).strip() + "<toll", "<toll", [("now", "{}")]),
    (HERMES, '<tool_call>{"id": "x", "type": "function", "name": "n\\u006fw", "parameters": {}}', "", [("now", "{}")]),
    (LLAMA3_JSON, GET.replace("arguments", "parameters"), "", [("get", ARGUMENTS)]),
    (LLAMA3_JSON, f" {GET}; {NOW}\n{NOW} ", "", [("get", ARGUMENTS), ("now", "{}"), ("now", "{}")]),
    (LLAMA3_JSON, f"<|python_tag|>{GET}", "", [("get", ARGUMENTS)]),
    (LLAMA3_JSON, f"Yes: <|python_tag|>{NOW} <|python_tag|>{NOW} so", "Yes:  so", [("now", "{}"), ("now", "{}")]),
    (MISTRAL, f"[TOOL_CALLS][{GET}]", "", [("get", ARGUMENTS)]),
    (MISTRAL, f"Well [TOOL_CALLS] [ {NOW} , {TRICKY} ] ", "Well ", [("now", "{}"), ("wett.er", TRICKY_ARGUMENTS)]),
]


@pytest.mark.parametrize(("form", "answer", "text", "calls"), WHOLE)
def test_calls(form: ToolFormat, answer: str, text: str, calls: Calls) -> None:
    assert parse(form, answer) == (text, calls, True)


@pytest.mark.parametrize(
    ("form", "answer"),
    [
        (HERMES, ""),
        (HERMES, "Use <tool_call> and </tool_call>."),
        (HERMES, "a < b, <tool_"),
        (HERMES, hermes('{"name": "get", "arguments": "x"}')),
        (HERMES, hermes('{"name": "get", "arguments": [1]}')),
        (HERMES, hermes('{"name": "get", "more": 1, "arguments": {}}')),
        (HERMES, hermes('{"name": "else", "arguments": {}}')),
        (HERMES, hermes('{"name": "get", "name": "now", "arguments": {}}')),
        (HERMES, hermes('{"name": 5}', "{}", '{"arguments": {}}', '{name: "get"}', "get(1)")),
        (HERMES, '<tool_call>{"name": "get"'),
        (HERMES, '<tool_call>{"arguments": {"a": 1}, "na'),
        (HERMES, hermes('{"name": "get", "arguments" {}}')),
        (LLAMA3_JSON, " {"),
        (LLAMA3_JSON, '{"answer": 42}'),
        (LLAMA3_JSON, '{"name": "Ada", "parameters": {}}'),
        (LLAMA3_JSON, f"Call {GET}"),
        (LLAMA3_JSON, '<|python_tag|>search.call(query="x")'),
        (MISTRAL, f"[TOOL_CALLS]{GET}"),
        (MISTRAL, "[TOOL_CALLS][]"),
        (MISTRAL, "[TOOL_CALLS] list them"),
        (MISTRAL, f"[{GET}]"),
    ],
)
def test_what_is_no_call_is_text(form: ToolFormat, answer: str) -> None:
    assert parse(form, answer) == (answer, [], False)


@pytest.mark.parametrize(
    ("form", "answer", "text", "calls"),
    [
        # The arguments break, or the answer does.
        (HERMES, hermes('{"name": "get", "arguments": {"a": 1,}}') + "x", "}}\n</tool_call>\nx", [("get", '{"a": 1,')]),
        (HERMES, '<tool_call>{"name": "get", "arguments": {"a": "b', "", [("get", '{"a": "b')]),
        (HERMES, '<tool_call>{"name": "get", "arguments": {"a": "b\nc"}}', '\nc"}}', [("get", '{"a": "b')]),
        (HERMES, '<tool_call>{"name": "get", "arguments": {}', "", [("get", "{}")]),
        (HERMES, hermes(NOW) + '<tool_call>{"name": "get", "parameters": {"a"', "", [("now", "{}"), ("get", '{"a"')]),
    ],
)
def test_a_call_that_breaks_is_not_called(form: ToolFormat, answer: str, text: str, calls: Calls) -> None:
    assert parse(form, answer) == (text, calls, False)


@pytest.mark.parametrize(
    ("form", "answer", "text", "calls"),
    [
        (HERMES, hermes(NOW) + hermes("{}"), "\n" + hermes("{}"), [("now", "{}")]),
        (HERMES, f"<tool_call>{NOW}</tool", "", [("now", "{}")]),
        (HERMES, f"<tool_call>{NOW}</tol", "</tol", [("now", "{}")]),
        (HERMES, f"<tool_call> <tool_call>{NOW}", "<tool_call> ", [("now", "{}")]),
        (MISTRAL, f"[TOOL_CALLS][{NOW}, {{}}]", ", {}]", [("now", "{}")]),
        (MISTRAL, f"[TOOL_CALLS][{NOW}", "", [("now", "{}")]),
        (LLAMA3_JSON, f'{NOW}; {{"a": 1}}', '; {"a": 1}', [("now", "{}")]),
    ],
)
def test_text_beside_whole_calls(form: ToolFormat, answer: str, text: str, calls: Calls) -> None:
    assert parse(form, answer) == (text, calls, True)


@pytest.mark.parametrize(
    ("form", "answer", "text", "calls", "called"),
    [
        (HERMES, "Hm " + hermes(GET, NOW) + "done", "Hm ", [("get", ARGUMENTS)], True),
        (MISTRAL, f"[TOOL_CALLS][{NOW}, {GET}] x", "", [("now", "{}")], True),
        (LLAMA3_JSON, f"{NOW}; {GET}", "", [("now", "{}")], True),
        (HERMES, "no call", "no call", [], False),
        # One that was told is the only one, whatever becomes of it.
        (HERMES, '<tool_call>{"name": "get", "arguments": {"a":]' + hermes(NOW), "]" + hermes(NOW),
         [("get", '{"a":')], False),
    ],
)  # fmt: skip
def test_of_several_calls_one_can_be_wanted(
    form: ToolFormat, answer: str, text: str, calls: Calls, called: bool
) -> None:
    for size in (1, 5, len(answer)):
        parts = [answer[i : i + size] for i in range(0, len(answer), size)]
        assert parse(form, *parts, single=True) == (text, calls, called)


@pytest.mark.parametrize("size", [1, 7, 100_000])
def test_what_is_held_is_bounded(size: int) -> None:
    long = '{"a": "' + "x" * 9000 + '"}'
    late = f'{{"arguments": {long}, "name": "get"}}'
    for form, answer, calls in [
        (HERMES, f"<tool_call>{late}</tool_call>", []),
        (HERMES, "<tool_call>" + " " * 257 + NOW, []),
        (HERMES, "<tool_call>" + " " * 256 + NOW, [("now", "{}")]),
        (MISTRAL, "[TOOL_CALLS][" + "\n" * 300 + NOW, []),
        (LLAMA3_JSON, " " * 257 + NOW, []),
        (HERMES, f'<tool_call>{{"name": "get", "arguments": {long}}}</tool_call>', [("get", long)]),
    ]:
        text, found, _ = parse(form, *(answer[i : i + size] for i in range(0, len(answer), size)))
        assert found == calls
        assert text == ("" if calls else answer)


def test_a_call_is_told_when_its_arguments_begin() -> None:
    parser = ToolParser(HERMES, NAMES)
    assert parser.push('Hm <tool_call>{"name": "get", "arg') == [Piece(3, "Hm ")]
    (told,) = parser.push('uments": {')
    assert (told.index, told.name, told.arguments) == (0, "get", "{")
    assert parser.push('"a": "b') == [Piece(7, index=0, arguments='"a": "b')]
    assert parser.push("") == []


PARTS = [
    "<tool_call>", "</tool_call>", "<|python_tag|>", ";", ",", "[TOOL_CALLS]", "[", "]", GET, NOW, TRICKY, "{}",
    '{"name": "get", "arguments": {"a": ', '"x"', "}", '"', "\\", "\n", " ", "é🙂", "text", "<tool_", "call>", "[TOOL",
    "{", ":", "-0.1e", "tru", '{"na', 'me": "now"',
]  # fmt: skip
answers = st.lists(st.sampled_from(PARTS) | st.text(max_size=3), max_size=12).map("".join)


@settings(max_examples=300, deadline=None)
@given(
    st.sampled_from(list(TOOL_FORMATS.values())), answers, st.lists(st.integers(0, 400)), st.booleans(), st.booleans()
)
@example(HERMES, hermes(GET, TRICKY), [], True, False)
@example(MISTRAL, f"x[TOOL_CALLS][{GET}, {TRICKY}]y", [], True, True)
def test_the_same_whatever_the_cut(form: ToolFormat, answer: str, cuts: list[int], every: bool, single: bool) -> None:
    whole = parse(form, answer, single=single)
    places = sorted({0, *(range(len(answer)) if every else (cut for cut in cuts if cut < len(answer))), len(answer)})
    assert parse(form, *(answer[a:b] for a, b in itertools.pairwise(places)), single=single) == whole
    text, calls, called = whole
    if single:
        # The first of those that there would be.
        assert calls == parse(form, answer)[1][:1]
    if called:
        assert all(isinstance(json.loads(arguments), dict) for _, arguments in calls)
    if not calls:
        assert text == answer
    assert {name for name, _ in calls} <= NAMES


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4),
    max_leaves=12,
)


@settings(max_examples=150, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from(sorted(NAMES)), st.dictionaries(st.text(max_size=6), values, max_size=4)),
        min_size=1,
        max_size=3,
    ),
    st.sampled_from([None, 2]),
    st.booleans(),
)
def test_every_call_that_a_template_shows_is_read_back(
    calls: list[tuple[str, dict[str, object]]], indent: int | None, ascii_only: bool
) -> None:
    written = [json.dumps({"name": n, "arguments": a}, indent=indent, ensure_ascii=ascii_only) for n, a in calls]
    answers = {
        HERMES: hermes(*written),
        MISTRAL: f"[TOOL_CALLS][{', '.join(written)}]",
        LLAMA3_JSON: "; ".join(written),
    }
    for form, answer in answers.items():
        text, found, called = parse(form, answer)
        assert (text, called) == ("", True)
        assert [(name, json.loads(arguments)) for name, arguments in found] == calls


@settings(max_examples=300, deadline=None)
@given(st.text('{}[]",:\\ \n01-.eEtrufalsn9', max_size=24) | values.map(json.dumps))
def test_json_is_what_python_reads(text: str) -> None:
    scanner = JsonScanner()
    taken = all(not scanner.done and scanner.take(char) for char in text)
    whole = taken and scanner.done
    try:
        value = json.loads(text, parse_constant=lambda name: 1 / 0)
    except (ValueError, ZeroDivisionError):
        value = None
    # A value that only its end closes has no last character.
    closed = isinstance(value, (dict, list, str)) and not re.search(r"\s\Z", text)
    assert whole == closed


def test_what_json_does_not_take() -> None:
    scanner = JsonScanner()
    assert [scanner.take("[") for _ in range(65)] == [True] * 64 + [False]
    scanner = JsonScanner()
    assert all(map(scanner.take, "[" + "9" * 100))
    assert not scanner.take("9")


@pytest.mark.parametrize(
    ("template", "form"),
    [
        ("... return a json object within <tool_call></tool_call> tags", HERMES),
        ("<tool_call>\n<function=name>", None),
        ("<tool_call>{name}<arg_key>", None),
        ("[TOOL_CALLS] [", MISTRAL),
        ("[TOOL_CALLS]name[ARGS]", None),
        ('<|start_header_id|> {"name": function name, "parameters": dictionary}', LLAMA3_JSON),
        ("<|start_header_id|>", None),
        ("<|im_start|>", None),
    ],
)
def test_the_format_is_told_from_the_template(template: str, form: ToolFormat | None) -> None:
    assert format_of(template) is form
