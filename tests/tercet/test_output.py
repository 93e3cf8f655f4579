"""Standard input and output of the commands: who reads them may leave, be full, or send what is no text."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import ROOT, start


@pytest.mark.parametrize(
    "arguments",
    [
        ["generate", "forever", "--raw"],
        ["generate", "count 3000", "--raw", "--json"],
        ["fleet"],
        ["tokenize", "a b"],
        ["top", "--interval", "0.1"],
        ["top", "--once"],
    ],
)
def test_a_reader_that_leaves_ends_the_command_quietly(gateway, arguments):
    with start(*arguments, "--address", gateway.address) as process:
        if "forever" in arguments:
            assert process.stdout.read(5) == "again"
        process.stdout.close()
        problem = process.stderr.read()
    assert problem == ""
    if "forever" in arguments:
        assert process.returncode == 1
        assert gateway.cancelled.wait(10)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is full")
@pytest.mark.parametrize("arguments", [["generate", "hi", "--json"], ["generate", "forever", "--raw"], ["fleet"]])
def test_a_full_disk_is_one_line(gateway, arguments):
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "tercet", *arguments, "--address", gateway.address],
            stdout=full, stderr=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)}, timeout=60,
        )  # fmt: skip
    assert (done.returncode, done.stderr) == (1, "tercet: cannot write: No space left on device\n")


@pytest.mark.parametrize("command", [["generate", "-"], ["tokenize", "-"], ["chat"]])
@pytest.mark.parametrize("locale", ["C.UTF-8", "C", "POSIX"])
def test_input_that_is_not_utf_8_is_said_to_be(gateway, command, locale):
    done = subprocess.run(
        [sys.executable, "-m", "tercet", *command, "--address", gateway.address],
        input=b"a\xffb\n", capture_output=True, timeout=60,
        env={**os.environ, "PYTHONPATH": str(ROOT), "LC_ALL": locale},
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (1, b"")
    assert done.stderr == b"tercet: INVALID_FIELD: standard input is not UTF-8 (byte 1)\n"


def test_what_an_encoding_does_not_have_is_a_question_mark(gateway):
    name = "a" * 64
    for encoding in ("ascii", "latin-1"):
        gateway.traffic.ClearField("tenants")
        gateway.traffic.tenants.add(tenant_id=name, traffic_class="interactive", load={"requests_waiting": 1})
        done = subprocess.run(
            [sys.executable, "-m", "tercet", "top", "--once", "--address", gateway.address],
            capture_output=True, timeout=60,
            env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONIOENCODING": encoding, "COLUMNS": "80"},
        )  # fmt: skip
        assert (done.returncode, done.stderr) == (0, b"")
        assert b"aaa?" in done.stdout


@pytest.mark.parametrize("columns", ["0", "1", "80", "x"])
def test_a_width_that_is_none_is_another(gateway, columns):
    done = subprocess.run(
        [sys.executable, "-m", "tercet", "top", "--once", "--address", gateway.address],
        capture_output=True, timeout=60, env={**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": columns, "LINES": "0"},
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, b"")
    assert (b"tercet " in done.stdout) == (columns != "1")
