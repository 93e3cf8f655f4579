"""The Python of the README runs as written."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import tercet
from tercet.cli.generate import generate
from tercet.client import DEFAULT_ADDRESS

ROOT = Path(tercet.__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_python_example_streams_an_answer(gateway):
    (example,) = re.findall(r"^```python\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
    assert example.count(DEFAULT_ADDRESS) == 1
    program = example.replace(DEFAULT_ADDRESS, gateway.address)
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=env, check=True)
    assert done.stdout == "1: What is the capital of France?\n"
    assert gateway.requests[0].stop.max_tokens == 16


def test_the_generate_examples_parse():
    lines = re.findall(r"^tercet generate (.*)$", README, re.MULTILINE)
    assert len(lines) >= 3
    for line in lines:
        assert generate.make_context("generate", shlex.split(line)).params["prompt"]


def test_addresses_are_the_defaults():
    assert set(re.findall(r"127\.0\.0\.1:\d+", README)) == {DEFAULT_ADDRESS}
