"""tercet generate --json-schema and the like."""

from __future__ import annotations

import pytest
from command_line import run

from tercet.v1 import inference_pb2 as pb

SCHEMA = '{"type": "object", "title": "café"}'
EBNF = 'root ::= "a" | "b"\n'


@pytest.mark.parametrize(
    ("flags", "form"),
    [
        (["--json-object"], pb.StructuredOutput(json_object=pb.JsonObject())),
        (["--json-schema", SCHEMA], pb.StructuredOutput(json_schema=SCHEMA)),
        (["--regex", "@[a-z]+"], pb.StructuredOutput(regex="@[a-z]+")),
        (["--choice", "yes", "--choice", "@no"], pb.StructuredOutput(choice=pb.Choice(texts=["yes", "@no"]))),
        (["--ebnf", EBNF], pb.StructuredOutput(ebnf=EBNF)),
    ],
)
def test_a_form_is_sent(gateway, flags, form):
    assert run("generate", "count 1", "--raw", "--address", gateway.address, *flags).exit_code == 0
    assert gateway.requests[0].structured_output == form


def test_a_form_of_a_file_is_sent(gateway, tmp_path):
    file = tmp_path / "form"
    for flag, field, text in (("--json-schema", "json_schema", SCHEMA), ("--ebnf", "ebnf", EBNF)):
        file.write_text(text, encoding="utf-8")
        assert run("generate", "hi", "--address", gateway.address, flag, f"@{file}").exit_code == 0
        assert getattr(gateway.requests[-1].structured_output, field) == text


def test_without_a_form_none_is_sent(gateway):
    assert run("generate", "hi", "--address", gateway.address).exit_code == 0
    assert not gateway.requests[0].HasField("structured_output")


@pytest.mark.parametrize("flag", ["--json-schema", "--ebnf"])
def test_a_file_that_holds_no_form_is_named(gateway, tmp_path, flag):
    empty, binary = tmp_path / "empty", tmp_path / "binary"
    empty.write_text(" \n")
    binary.write_bytes(b"\xff\xfe")
    for value, problem in (
        (f"@{tmp_path / 'none'}", "cannot read"),
        (f"@{tmp_path}", "cannot read"),
        ("@\0", "cannot read"),
        (f"@{binary}", "it is not UTF-8"),
        (f"@{empty}", "is empty"),
        ("", "is empty"),
    ):
        done = run("generate", "hi", "--address", gateway.address, flag, value)
        assert done.exit_code == 2, value
        assert problem in done.stderr.replace("\n", " ")
    assert gateway.requests == []


def test_an_empty_regex_is_not_passed_over(gateway):
    done = run("generate", "hi", "--address", gateway.address, "--regex", "")
    assert (done.exit_code, "is empty" in done.stderr) == (2, True)
    assert gateway.requests == []


def test_two_forms_are_refused(gateway):
    done = run("generate", "hi", "--address", gateway.address, "--regex", "a", "--choice", "b")
    assert done.exit_code == 1
    assert "regex and choice exclude each other" in done.stderr
    assert gateway.requests == []
