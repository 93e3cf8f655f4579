"""tercet generate --tools."""

from __future__ import annotations

import json

import pytest
from command_line import run

from tercet.cli.generate import Printer
from tercet.client import Accepted, Answer, Finished, Output, OutputEnd, ToolCall
from tercet.messages import Timings, Usage
from tercet.v1 import inference_pb2 as pb

GET = {"name": "get", "description": "d", "parameters": {"type": "object"}}


def test_tools_of_a_file_are_sent(gateway, tmp_path):
    file = tmp_path / "tools.json"
    file.write_text(json.dumps([GET, {"type": "function", "function": {"name": "now"}}]))
    assert run("generate", "hi", "--address", gateway.address, "--tools", str(file)).exit_code == 0
    tools = gateway.requests[0].chat.tools
    assert [(tool.name, tool.description, tool.parameters) for tool in tools] == [
        ("get", "d", '{"type": "object"}'),
        ("now", "", ""),
    ]


@pytest.mark.parametrize("text", ["", "{", "5", '{"name": "get"}', "[5]", "[{}]", '["get"]', '[{"function": null}]'])
def test_what_is_no_list_of_tools(gateway, tmp_path, text):
    file = tmp_path / "tools.json"
    file.write_text(text)
    done = run("generate", "hi", "--address", gateway.address, "--tools", str(file))
    assert done.exit_code == 2
    assert "is not a JSON list" in done.stderr
    assert gateway.requests == []
    assert "cannot read" in run("generate", "hi", "--tools", str(tmp_path / "none")).stderr


@pytest.mark.parametrize(
    ("given", "choice", "forced"),
    [
        ("auto", pb.TOOL_CHOICE_UNSPECIFIED, ""),
        ("none", pb.TOOL_CHOICE_NONE, ""),
        ("required", pb.TOOL_CHOICE_REQUIRED, ""),
        ("get", pb.TOOL_CHOICE_UNSPECIFIED, "get"),
    ],
)
def test_whether_tools_are_called_and_which(gateway, tmp_path, given, choice, forced):
    file = tmp_path / "tools.json"
    file.write_text(json.dumps([GET]))
    flags = ["--address", gateway.address, "--tools", str(file), "--tool-choice", given]
    assert run("generate", "hi", *flags).exit_code == 0
    chat = gateway.requests[0].chat
    assert (chat.tool_choice, chat.forced_tool) == (choice, forced)


def test_a_tool_choice_that_says_nothing_is_refused(gateway):
    done = run("generate", "hi", "--address", gateway.address, "--tool-choice", "")
    assert done.exit_code == 2
    assert "is empty" in done.stderr
    assert gateway.requests == []


@pytest.mark.parametrize(("text", "shown"), [("Well.", "Well.\nget({})\nnow({})\n"), ("", "get({})\nnow({})\n")])
def test_calls_follow_the_text(capsys, text, shown):
    calls = (ToolCall("a", "get", "{}"), ToolCall("b", "now", "{}"))
    finished = Finished((OutputEnd("tool_calls", None),), Usage(1, 0, 1, 0, 0), Timings(0.0, 0.0, 0.0, 0.0))
    answer = Answer((Output(text, (1,), "tool_calls", None, (), calls),), Accepted("r", "m", "v", 0, 1, 1), finished)
    printer = Printer(1)
    printer.show(text)
    printer.finish(answer)
    assert capsys.readouterr().out == shown
