"""Builds the C++ extension `worker._core` with ninja. Knows no setuptools, no torch and no CUDA (build_kernels.py).

    python cpp/build.py                  build worker/_core.*.so in place
    python cpp/build.py --output FILE    build it elsewhere
    python cpp/build.py --sanitize       build with sanitizers and run the checks: the drivers of cpp/tests (those with
                                         threads with that for threads), then over the extension with those for
                                         addresses and undefined behaviour the tests of everything in it

A file is compiled for the baseline of the architecture unless its name says more: `*_avx2.cpp`, `*_avx512.cpp` and
`*_avx512bf16.cpp` are compiled for these, and only run after `tercet::detect_isa()` found them.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import os
import platform
import shlex
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

# Contraction would let two compilers, or two unrollings of one loop, round differently; where a fused multiply-add is
# wanted it is written out.
COMPILE_FLAGS = [
    "-std=c++17", "-O3", "-fPIC", "-fvisibility=hidden", "-ffp-contract=off", "-pthread", "-Wall", "-Wextra",
]  # fmt: skip
SANITIZE_FLAGS = ["-O1", "-g", "-fno-omit-frame-pointer", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
THREAD_SANITIZE_FLAGS = ["-O1", "-g", "-fno-omit-frame-pointer", "-fsanitize=thread"]
AVX2_FLAGS = ["-mavx2", "-mfma", "-mf16c"]
AVX512_FLAGS = [*AVX2_FLAGS, "-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl"]
# Where the interpreter that runs this file looks for the extension.
IN_PLACE = ROOT / "worker" / f"_core{sysconfig.get_config_var('EXT_SUFFIX')}"
SANITIZED_NOUNS = (
    "activation", "attention", "block_copy", "block_pool", "block_table", "block_table_random", "linear", "logprobs",
    "norm", "penalties", "rope", "sampler", "thread_pool",
)  # fmt: skip
SANITIZED_TESTS = [
    *(f"tests/worker/test_{noun}.py" for noun in SANITIZED_NOUNS),
    # An interpreter of its own, as these start, would load the extension that is not instrumented.
    *("-k", "not a_process_ends_cleanly and not instruction_set"),
]


@dataclass(frozen=True, slots=True)
class Driver:
    """A program of cpp/tests, with the sources of cpp that it needs (as patterns) and how it is built and run."""

    name: str
    sources: tuple[str, ...]
    flags: list[str]
    options: dict[str, str]


DRIVERS = (
    Driver(
        "random_operations", ("src/blake2s", "src/block_*", "src/cpu", "src/prefix_hash", "src/sampler*"),
        SANITIZE_FLAGS, {"UBSAN_OPTIONS": "print_stacktrace=1"},
    ),
    # It asks for more memory than there is.
    Driver("thread_pool", ("src/thread_pool",), THREAD_SANITIZE_FLAGS, {"TSAN_OPTIONS": "allocator_may_return_null=1"}),
    Driver("step_loop", ("cuda/step_loop", "cuda/step_pacer"), THREAD_SANITIZE_FLAGS, {}),
)  # fmt: skip
# File suffix -> flags of its instruction set. Longest suffix first.
ISA_FLAGS = {
    "_avx512bf16": [*AVX512_FLAGS, "-mavx512bf16"],
    "_avx512": AVX512_FLAGS,
    "_avx2": AVX2_FLAGS,
}


class BuildError(Exception):
    """The build cannot go on; the message says what is needed."""


@dataclass(frozen=True, slots=True)
class Toolchain:
    """A compiler, and what it can do here. `isas` are the suffixes of ISA_FLAGS it accepts."""

    compiler: list[str]
    isas: tuple[str, ...]

    @property
    def defines(self) -> list[str]:
        """TERCET_HAVE_AVX2 and the like for what is compiled in; TERCET_PORTABLE if none is."""
        return [f"-DTERCET_HAVE{isa.upper()}" for isa in self.isas] or ["-DTERCET_PORTABLE"]


def find_toolchain() -> Toolchain:
    """The compiler in CXX, else the first of c++, g++, clang++. Raises BuildError."""
    if os.environ.get("CXX"):
        compiler = shlex.split(os.environ["CXX"])
    else:
        found = next((name for name in ("c++", "g++", "clang++") if shutil.which(name)), None)
        compiler = [found] if found else []
    if not compiler or not shutil.which(compiler[0]):
        wanted = f"CXX names {compiler[0]!r}, which is not there" if compiler else "none of c++, g++, clang++ is there"
        raise BuildError(
            f"a C++17 compiler is needed and {wanted}; install one (Debian, Ubuntu: apt install g++; Fedora: dnf "
            "install gcc-c++; macOS: xcode-select --install) or set CXX"
        )
    problem = _try_flags(compiler, ["-std=c++17"])
    if problem:
        raise BuildError(f"{shlex.join(compiler)} does not compile C++17 (GCC 9 or Clang 10 is needed):\n{problem}")
    x86 = platform.machine().lower() in ("x86_64", "amd64")
    isas = tuple(isa for isa, flags in ISA_FLAGS.items() if x86 and not _try_flags(compiler, flags))
    return Toolchain(compiler, isas)


def _try_flags(compiler: list[str], flags: list[str]) -> str:
    """What the compiler says against `flags`; empty if it accepts them."""
    command = [*compiler, *flags, "-x", "c++", "-fsyntax-only", "-"]
    done = subprocess.run(command, input="#include <vector>\nint main() {}\n", capture_output=True, text=True)
    return done.stderr.strip() or "failed" if done.returncode else ""


def extension_sources() -> list[Path]:
    """Everything that is linked into `worker._core`."""
    bindings = [path for path in ROOT.glob("cpp/bind/*.cpp") if not path.stem.startswith("cuda_")]
    return sorted([*ROOT.glob("cpp/src/*.cpp"), *bindings])


def extension_includes() -> list[str]:
    """Include flags for sources that bind to Python. Raises BuildError."""
    try:
        import pybind11
    except ImportError as error:
        raise BuildError("pybind11 is needed to build the extensions: pip install pybind11 ninja") from error
    return [f"-I{ROOT / 'cpp/include'}", f"-I{pybind11.get_include()}", f"-I{sysconfig.get_paths()['include']}"]


def write_ninja(
    folder: Path, toolchain: Toolchain, sources: list[Path], target: str, includes: list[str],
    compile_flags: list[str], link_flags: list[str],
) -> None:  # fmt: skip
    """Writes folder/build.ninja that makes folder/`target` of `sources`; files of an absent ISA are left out."""
    compiler = shlex.join(toolchain.compiler)
    flags = shlex.join([*compile_flags, *toolchain.defines, *includes])
    lines = [
        "ninja_required_version = 1.8",
        "rule compile",
        f"  command = {compiler} {escape(flags)} $isa -MMD -MF $out.d -c $in -o $out",
        "  depfile = $out.d",
        "  deps = gcc",
        "  description = compile $name",
        "rule link",
        f"  command = {compiler} {escape(shlex.join(link_flags))} $in -o $out",
        "  description = link $out",
    ]
    objects = []
    for source in sources:
        isa = next((suffix for suffix in ISA_FLAGS if source.stem.endswith(suffix)), None)
        if isa is not None and isa not in toolchain.isas:
            continue
        name = source.relative_to(ROOT)
        objects.append(escape_path(f"{name.with_suffix('.o')}"))
        lines += [
            f"build {objects[-1]}: compile {escape_path(str(source))}",
            f"  name = {name}",
            f"  isa = {shlex.join(ISA_FLAGS[isa]) if isa else ''}",
        ]
    lines += [f"build {target}: link {' '.join(objects)}", f"default {target}", ""]
    text = "\n".join(lines)
    file = folder / "build.ninja"
    if not file.exists() or file.read_text() != text:
        file.write_text(text)


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Holds `folder` alone: ninja does not mind a second ninja, the second would."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def run_ninja(folder: Path) -> None:
    """Builds what folder/build.ninja describes, showing progress. Raises BuildError."""
    try:
        import ninja
    except ImportError as error:
        raise BuildError("ninja is needed to build the extensions: pip install pybind11 ninja") from error
    binary = Path(ninja.BIN_DIR) / "ninja"
    done = subprocess.run([str(binary), "-C", str(folder), *shlex.split(os.environ.get("NINJAFLAGS", ""))])
    if done.returncode:
        raise BuildError("compiling failed; the compiler's messages are above")


def build_extension(output: Path, sanitize: bool = False) -> None:
    """Builds `worker._core` and puts it at `output`. Raises BuildError."""
    folder = ROOT / "build" / ("core-sanitize" if sanitize else "core")
    extra = SANITIZE_FLAGS if sanitize else []
    link = ["-shared", "-pthread", *extra]
    if sys.platform == "darwin":
        link += ["-undefined", "dynamic_lookup"]
    flags = [*COMPILE_FLAGS, *extra]
    with locked(folder):
        write_ninja(folder, find_toolchain(), extension_sources(), "_core.so", extension_includes(), flags, link)
        run_ninja(folder)
        if not sanitize:  # what is instrumented needs its runtime before the interpreter
            check_loads(folder / "_core.so")
        install(folder / "_core.so", output)


def check_loads(built: Path) -> None:
    """Whether this interpreter can import the extension. Raises BuildError.

    The linker cannot know: to it a function of the interpreter and one that is nowhere look alike.
    """
    # With all symbols looked up now, as the interpreter does it anyhow unless it was told otherwise.
    command = [sys.executable, "-I", "-c", _LOAD, built.name.partition(".")[0], str(built)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"the interpreter ended with {done.returncode}"]
        raise BuildError(f"{built.name} was linked and does not load, and is not put in place: {lines[-1]}")


_LOAD = """
import importlib.machinery, importlib.util, os, sys
name, path = sys.argv[1:]
sys.setdlopenflags(os.RTLD_NOW)
loader = importlib.machinery.ExtensionFileLoader(name, path)
spec = importlib.util.spec_from_file_location(name, path, loader=loader)
loader.exec_module(importlib.util.module_from_spec(spec))
"""


def install(built: Path, output: Path) -> None:
    """Puts what was built at `output`. Running processes keep the old file mapped: replace it, never write into it."""
    output.parent.mkdir(parents=True, exist_ok=True)
    fresh = output.with_name(f"{output.name}.{os.getpid()}")
    shutil.copy2(built, fresh)
    os.replace(fresh, output)


def run_driver(driver: Driver, toolchain: Toolchain) -> int:
    """Builds and runs `driver`; returns its exit status. Raises BuildError."""
    folder = ROOT / "build" / f"driver-{driver.name}"
    sources = sorted(path for noun in driver.sources for path in ROOT.glob(f"cpp/{noun}.cpp"))
    sources.append(ROOT / "cpp" / "tests" / f"{driver.name}.cpp")
    with locked(folder):
        write_ninja(
            folder, toolchain, sources, "driver", [f"-I{ROOT / 'cpp/include'}", f"-I{ROOT / 'cpp/cuda'}"],
            [*COMPILE_FLAGS, *driver.flags], ["-pthread", *driver.flags],
        )  # fmt: skip
        run_ninja(folder)
    command = [*_without_address_randomisation(), str(folder / "driver")]
    return subprocess.run(command, env={**os.environ, **driver.options}).returncode


def _without_address_randomisation() -> list[str]:
    """What to put before a command: older thread sanitizers have no place for what newer kernels scatter so widely."""
    prefix = ["setarch", "-R"]
    try:
        return [] if subprocess.run([*prefix, "true"], capture_output=True).returncode else prefix
    except FileNotFoundError:
        return []


def run_sanitized(arguments: list[str]) -> int:
    """Builds and runs the drivers with sanitizers, then pytest with `arguments` over the sanitized extension.

    Returns an exit status. Raises BuildError.
    """
    toolchain = find_toolchain()
    for driver in DRIVERS:
        if status := run_driver(driver, toolchain):
            return status
    extension = ROOT / "build" / "core-sanitize" / IN_PLACE.name
    build_extension(extension, sanitize=True)
    # The interpreter is not instrumented, so the sanitizer has to be there before it, and it leaks on purpose.
    runtimes = [_runtime(toolchain, name) for name in ("libasan.so", "libubsan.so", "libstdc++.so")]
    environment = {
        **os.environ,
        "LD_PRELOAD": " ".join(runtimes),
        "ASAN_OPTIONS": "detect_leaks=0",
        "UBSAN_OPTIONS": "print_stacktrace=1",
    }
    return subprocess.run(
        [sys.executable, "-c", _SANITIZED_TESTS, str(extension), *arguments], env=environment, cwd=ROOT
    ).returncode


_SANITIZED_TESTS = """
import importlib.machinery, importlib.util, sys
import pytest
path = sys.argv[1]
loader = importlib.machinery.ExtensionFileLoader("worker._core", path)
spec = importlib.util.spec_from_file_location("worker._core", path, loader=loader)
import worker
worker._core = sys.modules["worker._core"] = importlib.util.module_from_spec(spec)
loader.exec_module(worker._core)
sys.exit(pytest.main(["-q", "-p", "no:cacheprovider", *sys.argv[2:]]))
"""


def _runtime(toolchain: Toolchain, name: str) -> str:
    """The path of a library of the compiler's. Raises BuildError."""
    done = subprocess.run([*toolchain.compiler, f"-print-file-name={name}"], capture_output=True, text=True)
    path = done.stdout.strip()
    if done.returncode or not Path(path).is_absolute():
        raise BuildError(f"{shlex.join(toolchain.compiler)} has no {name}; install the sanitizers of your compiler")
    return path


def escape(text: str) -> str:
    return text.replace("$", "$$")


def escape_path(text: str) -> str:
    return text.replace("$", "$$").replace(" ", "$ ").replace(":", "$:")


def main() -> int:
    parser = argparse.ArgumentParser(description="Build worker._core.")
    parser.add_argument("--output", type=Path, default=IN_PLACE, help="where the extension goes")
    parser.add_argument("--sanitize", action="store_true", help="build with sanitizers and run the checks")
    parser.add_argument("tests", nargs="*", default=SANITIZED_TESTS, help="what pytest runs with --sanitize")
    arguments = parser.parse_args()
    try:
        if arguments.sanitize:
            return run_sanitized(arguments.tests)
        build_extension(arguments.output)
    except BuildError as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
