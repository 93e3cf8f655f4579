"""The build of the CUDA extension: without nvcc, with one of no use, for which chips; and that its stub is true."""

from __future__ import annotations

import ast
import importlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from worker.ops.dtypes import KERNELS_BUILT

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def build(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(str(ROOT / "cpp"))
    sys.modules.pop("build", None)
    yield importlib.import_module("build_kernels")
    for name in ("build", "build_kernels"):
        sys.modules.pop(name, None)


def fake_nvcc(folder: Path, says: str) -> Path:
    nvcc = folder / "nvcc"
    nvcc.write_text(f"#!/bin/sh\necho '{says}'\n")
    nvcc.chmod(0o755)
    return nvcc


def run(output: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "cpp/build_kernels.py", "--output", str(output)]
    return subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True, cwd=ROOT)


def test_without_nvcc_it_says_so_and_succeeds(tmp_path: Path) -> None:
    if Path("/usr/local/cuda/bin/nvcc").exists():
        pytest.skip("nvcc is where it is always looked for")
    done = run(tmp_path / "kernels.so", CUDACXX="", CUDA_HOME="", PATH=str(tmp_path))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "nvcc is not there: worker._kernels is left out, GPUs are served by PyTorch alone\n"
    assert not list(tmp_path.iterdir())


def test_an_nvcc_of_no_use_is_an_error(tmp_path: Path) -> None:
    done = run(tmp_path / "kernels.so", CUDACXX="no-such-nvcc")
    assert done.returncode == 1
    assert done.stderr == "error: CUDACXX names 'no-such-nvcc', which is not there\n"
    old = fake_nvcc(tmp_path, "Cuda compilation tools, release 11.8, V11.8.89")
    done = run(tmp_path / "kernels.so", CUDACXX=str(old))
    assert done.returncode == 1
    assert "is of CUDA 11.8; 12.0 or newer is needed" in done.stderr
    silent = fake_nvcc(tmp_path, "nothing")
    assert "--version says nothing of use" in run(tmp_path / "kernels.so", CUDACXX=str(silent)).stderr


def test_architectures_are_checked(tmp_path: Path) -> None:
    nvcc = fake_nvcc(tmp_path, "Cuda compilation tools, release 13.0, V13.0.88")
    done = run(tmp_path / "kernels.so", CUDACXX=str(nvcc), TERCET_CUDA_ARCHS="hopper")
    assert done.returncode == 1
    assert "TERCET_CUDA_ARCHS must be numbers such as '80 90', is 'hopper'" in done.stderr


def test_each_file_is_compiled_for_what_its_name_says(build: ModuleType) -> None:
    everywhere = build.arch_flags(Path("norm.cu"), ["80", "90"])
    assert everywhere == [
        "-gencode=arch=compute_80,code=sm_80",
        "-gencode=arch=compute_90,code=sm_90",
        "-gencode=arch=compute_90,code=compute_90",
    ]
    assert build.arch_flags(Path("attention_sm90a.cu"), ["80"]) == ["-gencode=arch=compute_90a,code=sm_90a"]
    assert build.arch_flags(Path("cuda_kernels.cpp"), ["80"]) == []


def test_what_is_named_by_the_environment_comes_first(
    build: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bin").mkdir()
    of_home = fake_nvcc(tmp_path / "bin", "release 12.8,")
    monkeypatch.delenv("CUDACXX", raising=False)
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    assert build.find_nvcc() == [str(of_home)]
    monkeypatch.setenv("CUDACXX", f"{of_home} -v")
    assert build.find_nvcc() == [str(of_home), "-v"]


def test_an_extension_that_does_not_load_fails_the_build(
    build: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler = sys.modules["build"].find_toolchain().compiler
    source = tmp_path / "kernels.cpp"
    source.write_text('extern "C" void *launch();\nextern "C" void *PyInit__kernels() { return launch(); }\n')

    def link(folder: Path) -> None:
        subprocess.run([*compiler, "-shared", "-fPIC", str(source), "-o", str(folder / "_kernels.so")], check=True)

    monkeypatch.setattr(build, "ROOT", tmp_path)
    monkeypatch.setattr(build, "write_kernels_ninja", lambda *_: None)
    monkeypatch.setattr(build, "run_ninja", link)
    output = tmp_path / "in-place.so"
    with pytest.raises(build.BuildError, match=r"_kernels.so was linked and does not load.*undefined symbol: launch"):
        build.build_kernels(["nvcc"], output)
    assert not output.exists()


@pytest.mark.skipif(not KERNELS_BUILT, reason="worker._kernels was not built")
def test_the_stub_names_what_the_module_has() -> None:
    from worker import _kernels

    stub = ast.parse((ROOT / "worker" / "_kernels.pyi").read_text())
    declared: dict[str, set[str]] = {}
    for node in stub.body:
        if isinstance(node, ast.ClassDef):
            declared[node.name] = {item.name for item in node.body if isinstance(item, ast.FunctionDef)}
        elif isinstance(node, ast.FunctionDef):
            declared[node.name] = set()
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            declared[node.target.id] = set()
    assert {name for name in vars(_kernels) if not name.startswith("_")} == set(declared)
    for name, members in declared.items():
        if isinstance(value := getattr(_kernels, name), type):
            present = {member for member in vars(value) if not member.startswith("_")}
            assert present == {member for member in members if not member.startswith("_")}, name
