"""Runs the CUDA kernels under NVIDIA's sanitizer, one process for each case and tool. Needs a GPU and worker._kernels.

    python cpp/sanitize_kernels.py                                 all cases, memcheck and racecheck
    python cpp/sanitize_kernels.py --tool synccheck decode norm    some

The cases are those of tests/worker/sanitized_kernels.py; compute-sanitizer is the one of CUDA_HOME, else that of the
path, else that of /usr/local/cuda.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CASES = [sys.executable, "-m", "tests.worker.sanitized_kernels"]
TOOLS = {
    "memcheck": [],
    "racecheck": ["--racecheck-report", "all"],
    "synccheck": [],
    "initcheck": [],
}
FOUND_SOMETHING = 99


def find_sanitizer() -> str | None:
    home = os.environ.get("CUDA_HOME")
    folders = [
        *([os.path.join(home, "bin")] if home else []),
        os.environ.get("PATH", os.defpath),
        "/usr/local/cuda/bin",
    ]
    return shutil.which("compute-sanitizer", path=os.pathsep.join(folders))


def run_case(sanitizer: str, tool: str, case: str, timeout_s: float) -> str | None:
    """What is wrong with the case, None if nothing is."""
    command = [sanitizer, "--tool", tool, *TOOLS[tool], "--error-exitcode", str(FOUND_SOMETHING), *CASES, case]
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command, cwd=ROOT, stdout=pipe, stderr=subprocess.STDOUT, text=True, start_new_session=True
    ) as process:
        try:
            output, _ = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)  # the sanitizer and what it watches
            return f"not done after {timeout_s:g} s"
    return f"exit status {process.returncode}\n{output}" if process.returncode else None


def main() -> int:
    parser = argparse.ArgumentParser(description="Run the CUDA kernels under compute-sanitizer.")
    parser.add_argument("--tool", choices=TOOLS, action="append", help="default: memcheck and racecheck")
    parser.add_argument("--timeout", type=float, default=120, help="seconds for each case and tool")
    parser.add_argument("cases", nargs="*", help="default: all")
    arguments = parser.parse_args()
    sanitizer = find_sanitizer()
    if sanitizer is None:
        sys.stderr.write("error: compute-sanitizer is not there; it comes with the CUDA toolkit\n")
        return 1
    known = subprocess.run([*CASES, "--list"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    unknown = sorted(set(arguments.cases) - set(known))
    if unknown:
        sys.stderr.write(f"error: no case {', '.join(unknown)}; there are {', '.join(known)}\n")
        return 1
    failed = 0
    for tool in arguments.tool or ["memcheck", "racecheck"]:
        for case in arguments.cases or known:
            start = time.monotonic()
            problem = run_case(sanitizer, tool, case, arguments.timeout)
            took = time.monotonic() - start
            sys.stdout.write(f"{tool:<10} {case:<16} {took:5.1f} s  {'clean' if problem is None else problem}\n")
            sys.stdout.flush()
            failed += problem is not None
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
