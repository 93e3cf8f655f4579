"""The bundle for machines without a network: what goes in, and what its script refuses before it changes anything."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[1]
PROJECT = {
    "build-system": {"requires": ["ninja>=1.11"]},
    "project": {"dependencies": ["click>=8", "torch>=2.11", "torchless>=1"]},
}


@pytest.fixture(scope="module")
def bundle() -> ModuleType:
    spec = importlib.util.spec_from_file_location("bundle", ROOT / "offline" / "bundle.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_pytorch_is_left_out_unless_asked_for(bundle: ModuleType) -> None:
    without = bundle.requirements(PROJECT, with_torch=False, with_tests=False)
    assert without == ["ninja>=1.11", "click>=8", "torchless>=1"]
    assert "torch>=2.11" in bundle.requirements(PROJECT, with_torch=True, with_tests=False)
    assert "pytest" in bundle.requirements(PROJECT, with_torch=False, with_tests=True)


def test_newer_wheel_tags_come_first_and_none_is_too_new(bundle: ModuleType) -> None:
    tags = bundle.platforms(28, "x86_64")
    assert tags[0] == "manylinux_2_28_x86_64"
    assert tags.index("manylinux_2_27_x86_64") < tags.index("manylinux_2_17_x86_64") < tags.index("linux_x86_64")
    assert "manylinux_2_29_x86_64" not in tags


@pytest.mark.parametrize("version", ["2.7", "3.9", "three", "3.12.1"])
def test_an_odd_python_version_is_refused(version: str, bundle: ModuleType) -> None:
    with pytest.raises(SystemExit, match="--python"):
        bundle.check_python(version)


def test_the_bundle_has_the_source_that_git_knows(
    bundle: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_network(wheels: Path, *_: object, **__: object) -> None:
        (wheels / "some-1-py3-none-any.whl").write_bytes(b"wheel")

    out = tmp_path / "bundle.tar"
    monkeypatch.setattr(bundle, "download", no_network)
    monkeypatch.setattr(sys, "argv", ["bundle.py", "--out", str(out)])
    bundle.main()
    with tarfile.open(out) as tar:
        names = set(tar.getnames())
        sums = tar.extractfile("tercet-offline/SHA256SUMS")
        assert sums is not None
        listed = dict(line.split("  ")[::-1] for line in sums.read().decode().splitlines())
        assert listed["wheels/some-1-py3-none-any.whl"] == hashlib.sha256(b"wheel").hexdigest()
        files = {name.removeprefix("tercet-offline/") for name in tar.getnames()}
        assert files - set(listed) == {"SHA256SUMS"}
    assert {"tercet-offline/install.sh", "tercet-offline/source/pyproject.toml"} <= names
    assert "tercet-offline/source/cpp/build_kernels.py" in names
    assert not any(name.endswith((".so", "_pb2.py")) for name in names)


def test_a_folder_that_is_not_there_is_named_before_anything_is_fetched(
    bundle: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bundle, "download", lambda *_, **__: pytest.fail("fetched"))
    monkeypatch.setattr(sys, "argv", ["bundle.py", "--out", "/no/such/folder/x.tar"])
    with pytest.raises(SystemExit, match="/no/such/folder"):
        bundle.main()


def install(
    folder: Path, *arguments: str, at: Path | None = None, **environment: str
) -> subprocess.CompletedProcess[str]:
    shutil.copy(ROOT / "offline" / "install.sh", folder)
    return subprocess.run(
        [str(folder / "install.sh"), *arguments],
        env={**os.environ, **environment}, capture_output=True, text=True, timeout=60, cwd=at,
    )  # fmt: skip


def test_paths_are_those_of_where_it_is_called(tmp_path: Path) -> None:
    """As far as it gets with a Python that makes no environment, which says where it would be."""
    folder, here = tmp_path / "the bundle", tmp_path / "some where"
    (folder / "wheels").mkdir(parents=True)
    (here / "bin").mkdir(parents=True)
    (folder / "wheels" / "a.whl").write_bytes(b"a")
    (folder / "SHA256SUMS").write_text(f"{hashlib.sha256(b'a').hexdigest()}  wheels/a.whl\n")
    python = here / "bin" / "python"
    python.write_text("#!/bin/sh\ncase $* in *venv*my*) exit 3;; *torch*) echo /torch;; esac\n")
    python.chmod(0o755)
    done = install(folder, "my venv", at=here, PYTHON="bin/python")
    assert done.returncode == 3
    assert f"[2/5] creating {here / 'my venv'}" in done.stdout


def test_a_damaged_bundle_is_refused(tmp_path: Path) -> None:
    (tmp_path / "wheels").mkdir()
    (tmp_path / "wheels" / "a.whl").write_bytes(b"half")
    (tmp_path / "SHA256SUMS").write_text(f"{hashlib.sha256(b'whole').hexdigest()}  wheels/a.whl\n")
    done = install(tmp_path, PYTHON=sys.executable)
    assert done.returncode == 1
    assert "the bundle is damaged" in done.stderr
    assert not (tmp_path / "venv").exists()


@pytest.mark.parametrize(
    ("python", "said"), [("no-such-python", "no-such-python is not there"), ("true", "has no PyTorch")]
)
def test_what_is_missing_is_named(python: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "wheels").mkdir()
    (tmp_path / "wheels" / "a.whl").write_bytes(b"a")
    (tmp_path / "SHA256SUMS").write_text(f"{hashlib.sha256(b'a').hexdigest()}  wheels/a.whl\n")
    done = install(tmp_path, PYTHON=python)
    assert done.returncode == 1
    assert said in done.stderr
    assert not (tmp_path / "venv").exists()
