import os
import subprocess
import sys

import pytest

PROGRAM = """
import os, structlog, sys
from tercet.telemetry import configure_logging
configure_logging("worker", "info", sys.argv[1])
os.write(1, b"ready")
os.read(0, 1)  # until the reader of standard error has left
for number in range(3):
    structlog.get_logger().info("event", number=number)
try:
    1 / 0
except ZeroDivisionError:
    structlog.get_logger().exception("failed")
os.write(1, b" alive")
os._exit(0)
"""


@pytest.mark.parametrize("fmt", ["console", "json"])
def test_a_log_nobody_reads_ends_nothing(fmt):
    reader, writer = os.pipe()
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, fmt], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=writer
    )
    os.close(writer)
    assert os.read(process.stdout.fileno(), 5) == b"ready"
    os.close(reader)
    out, _ = process.communicate(b"x", timeout=30)
    assert out == b" alive"


@pytest.mark.parametrize("fmt", ["console", "json"])
def test_lines_and_tracebacks_reach_standard_error_without_local_variables(fmt):
    program = PROGRAM.replace("1 / 0", "secret = 'a prompt'; 1 / 0")
    done = subprocess.run(
        [sys.executable, "-c", program, fmt], input="x", capture_output=True, text=True, timeout=30, check=True
    )
    assert done.stderr.count("event") >= 3
    assert "ZeroDivisionError" in done.stderr
    assert "worker" in done.stderr
    assert "a prompt" not in done.stderr
