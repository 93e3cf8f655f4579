"""The build of the extension: what it says when it cannot, what it leaves out where; and that its stub is true."""

from __future__ import annotations

import ast
import importlib.util
import os
import platform
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from worker import _core

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def build() -> ModuleType:
    spec = importlib.util.spec_from_file_location("cpp_build", ROOT / "cpp" / "build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["cpp_build"] = module
    spec.loader.exec_module(module)
    return module


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments], env={**os.environ, **environment}, capture_output=True, text=True, cwd=ROOT
    )


def test_a_missing_compiler_is_named_with_what_to_install(tmp_path: Path) -> None:
    done = run("cpp/build.py", "--output", str(tmp_path / "core.so"), CXX="no-such-compiler")
    assert done.returncode == 1
    assert "a C++17 compiler is needed" in done.stderr
    assert "'no-such-compiler'" in done.stderr
    assert "apt install g++" in done.stderr
    assert "Traceback" not in done.stderr
    done = run("cpp/build.py", "--output", str(tmp_path / "core.so"), CXX="", PATH=str(tmp_path))
    assert done.returncode == 1
    assert "none of c++, g++, clang++ is there" in done.stderr
    assert not list(tmp_path.iterdir())


def test_a_compiler_without_cpp17_says_so(build: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = tmp_path / "old-c++"
    old.write_text("#!/bin/sh\necho \"unrecognized option '$1'\" >&2\nexit 1\n")
    old.chmod(0o755)
    monkeypatch.setenv("CXX", str(old))
    with pytest.raises(build.BuildError, match=r"does not compile C\+\+17 .*\n.*unrecognized option '-std=c\+\+17'"):
        build.find_toolchain()


def test_a_compile_error_is_shown_and_fails(
    build: ModuleType, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    source = ROOT / "cpp" / "tests" / "random_operations.cpp"
    flags = ["-std=c++17", "-fsyntax-only", "-Dclass=broken"]
    build.write_ninja(tmp_path, build.find_toolchain(), [source], "out", [], flags, [])
    with pytest.raises(build.BuildError, match="the compiler's messages are above"):
        build.run_ninja(tmp_path)
    assert "error:" in capfd.readouterr().out


def test_an_extension_that_does_not_load_fails_the_build(
    build: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The interpreter's own functions are not there for the linker either.
    build.check_loads(Path(_core.__file__))
    compiler = build.find_toolchain().compiler
    source = tmp_path / "core.cpp"
    source.write_text('extern "C" void *nowhere();\nextern "C" void *PyInit__core() { return nowhere(); }\n')

    def link(folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        subprocess.run([*compiler, "-shared", "-fPIC", str(source), "-o", str(folder / "_core.so")], check=True)

    monkeypatch.setattr(build, "ROOT", tmp_path)
    monkeypatch.setattr(build, "write_ninja", lambda *_: None)
    monkeypatch.setattr(build, "run_ninja", link)
    output = tmp_path / "in-place.so"
    with pytest.raises(build.BuildError, match=r"_core.so was linked and does not load.*undefined symbol: nowhere"):
        build.build_extension(output)
    assert not output.exists()


def test_only_what_changed_is_built_again(build: ModuleType, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    toolchain = build.find_toolchain()
    sources = [ROOT / "cpp" / "src" / name for name in ("blake2s.cpp", "cpu.cpp")]

    def rebuild(compile_flags: list[str]) -> str:
        include = [f"-I{ROOT / 'cpp/include'}"]
        build.write_ninja(tmp_path, toolchain, sources, "out.so", include, compile_flags, ["-shared"])
        build.run_ninja(tmp_path)
        return str(capfd.readouterr().out)

    assert "compile cpp/src/cpu.cpp" in rebuild(["-std=c++17", "-fPIC"])
    assert "no work to do" in rebuild(["-std=c++17", "-fPIC"])
    assert "compile cpp/src/cpu.cpp" in rebuild(["-std=c++17", "-fPIC", "-O1"]), "other flags"
    (tmp_path / "cpp" / "src" / "cpu.o").unlink()
    again = rebuild(["-std=c++17", "-fPIC", "-O1"])
    assert "compile cpp/src/cpu.cpp" in again
    assert "blake2s" not in again


def test_each_file_is_compiled_for_the_instruction_set_of_its_name(build: ModuleType, tmp_path: Path) -> None:
    toolchain = build.Toolchain(["c++"], ("_avx512bf16", "_avx512", "_avx2"))
    sources = [ROOT / "cpp" / "src" / f"x{isa}.cpp" for isa in ("", "_avx2", "_avx512", "_avx512bf16")]
    build.write_ninja(tmp_path, toolchain, sources, "out", [], ["-O3"], [])
    lines = (tmp_path / "build.ninja").read_text().splitlines()
    flags = {lines[i - 1].split(" = ")[1]: line.split(" = ")[1] for i, line in enumerate(lines) if "  isa = " in line}
    assert flags["cpp/src/x.cpp"] == ""
    assert flags["cpp/src/x_avx2.cpp"] == "-mavx2 -mfma -mf16c"
    assert "-mavx512bf16" not in flags["cpp/src/x_avx512.cpp"].split()
    assert "-mavx512vl" in flags["cpp/src/x_avx512.cpp"].split()
    assert "-mavx512bf16" in flags["cpp/src/x_avx512bf16.cpp"].split()


def test_other_architectures_get_the_portable_code_alone(
    build: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    toolchain = build.find_toolchain()
    assert toolchain.defines == ["-DTERCET_PORTABLE"]
    build.write_ninja(tmp_path, toolchain, build.extension_sources(), "out", [], [], [])
    text = (tmp_path / "build.ninja").read_text()
    assert "cpp/src/sampler_portable.cpp" in text
    assert "avx" not in text


def test_an_instruction_set_that_is_not_there_is_refused() -> None:
    done = run("-c", "from worker import _core; print(_core.isa())", TERCET_ISA="portable")
    assert done.stdout.strip() == "portable"
    done = run("-c", "from worker import _core; _core.isa()", TERCET_ISA="avx9000")
    assert done.returncode != 0
    assert "TERCET_ISA: 'avx9000' cannot be used here; this build and CPU have portable" in done.stderr


def test_the_stub_names_what_the_module_has() -> None:
    stub = ast.parse((ROOT / "worker" / "_core.pyi").read_text())
    declared: dict[str, set[str]] = {}
    for node in stub.body:
        if isinstance(node, ast.ClassDef):
            declared[node.name] = {item.name for item in node.body if isinstance(item, ast.FunctionDef)}
        elif isinstance(node, ast.FunctionDef):
            declared[node.name] = set()
    actual = {name for name in vars(_core) if not name.startswith("_")}
    assert actual == set(declared)
    for name, members in declared.items():
        value = getattr(_core, name)
        if isinstance(value, type) and not issubclass(value, Exception):
            present = {member for member in vars(value) if not member.startswith("_")}
            assert present == {member for member in members if not member.startswith("_")}, name
