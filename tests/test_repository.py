"""What the repository says about itself is true."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import settings

from tercet.class_settings import DEFAULT_CLASSES, class_fields
from tercet.cli.root import main
from tercet.config import ENV_PREFIX, load_config, setting_keys
from tests.conftest import WITH_PROCESSES, queue_of

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

# Of whatever starts processes of a mesh.
MARK = "pytest.mark.e2e"
ROOT = Path(__file__).resolve().parents[1]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
MARKDOWN = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])


def _read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def test_the_licence_is_apache_2():
    text = _read("LICENSE")
    assert PYPROJECT["project"]["license"] == "Apache-2.0"
    assert "Apache License" in text
    assert "END OF TERMS AND CONDITIONS" in text
    assert "APPENDIX: How to apply" in text


def test_make_knows_its_words_and_lists_them():
    words = {"setup", "demo", "test", "check", "sanitize", "soak", "fix", "proto", "bench", "clean", "help"}
    makefile = _read("Makefile")
    described = set(re.findall(r"^([a-z]+):.*## ", makefile, re.MULTILINE))
    assert described == words
    for word in words - {"clean"}:
        done = subprocess.run(["make", "--dry-run", word], cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr


def test_make_installs_what_the_build_requires():
    line = re.search(r"^BUILD_REQUIRES := (.*)$", _read("Makefile"), re.MULTILINE)
    assert re.findall(r'"([^"]+)"', line.group(1)) == PYPROJECT["build-system"]["requires"]


def test_constraints_pin_what_pyproject_allows():
    pins = dict(re.findall(r"^([\w.-]+)==(\S+)$", _read("constraints.txt"), re.MULTILINE))
    project = PYPROJECT["project"]
    wanted = [*project["dependencies"], *project["optional-dependencies"]["dev"]]
    minimum = {re.split(r"[<>=; ]", line)[0]: re.search(r">=([\d.]+)", line).group(1) for line in wanted}
    for name, version in pins.items():
        if name in minimum:
            assert _numbers(version) >= _numbers(minimum[name]), name


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version))


def test_what_starts_processes_runs_one_after_the_other():
    tests = ROOT / "tests"
    files = {path.relative_to(ROOT).as_posix() for path in tests.rglob("test_*.py") if MARK in path.read_text()}
    assert len(files) > 20
    assert {queue_of(f"{file}::test_it") for file in files - {"tests/test_repository.py"}} == {WITH_PROCESSES[0]}


def test_ci_checks_first_and_tests_last():
    lines = [line for line in _read(".ci/run").splitlines() if line.strip() and not line.startswith("#")]
    assert lines[0] == "set -euo pipefail"
    assert lines[-2:] == ["make check", "make test"]


@pytest.mark.parametrize("key", list(setting_keys()))
def test_every_setting_is_documented_with_its_default(key):
    item = setting_keys()[key]
    section, _, name = key.partition(".")
    text = _read("docs/configuration.md")
    block = text.split(f"## [{section}]")[1].split("\n## ")[0]
    row = next(line for line in block.splitlines() if line.startswith(f"| `{name}` |"))
    default = ",".join(item.default) if isinstance(item.default, tuple) else str(item.default)
    assert f"| `{default}` |" in row if default else "| |" in row
    assert item.metadata["help"] in row


def test_no_documented_setting_is_gone():
    text = _read("docs/configuration.md")
    sections = re.split(r"^## \[(\w+)\]$", text, flags=re.MULTILINE)[1:]
    documented = {
        f"{section}.{name}"
        for section, block in zip(sections[::2], sections[1::2], strict=True)
        for name in re.findall(r"^\| `(\w+)` \|", block.split("\n## ")[0], re.MULTILINE)
    }
    assert documented == set(setting_keys())


def test_classes_are_documented_with_their_defaults():
    block = _read("docs/configuration.md").split("## [classes.NAME]")[1].split("\n## ")[0]
    rows = {line.split("|")[1].strip(): line for line in block.splitlines() if line.startswith("| `")}
    assert rows.keys() == {f"`{name}`" for name in (*class_fields(), *DEFAULT_CLASSES)}
    for name, item in class_fields().items():
        assert f"| `{item.default}` | {item.metadata['help']} |" in rows[f"`{name}`"]
    for name, made in DEFAULT_CLASSES.items():
        for key, item in class_fields().items():
            value = getattr(made, key)
            assert (value == item.default and key != "rank") or f"`{key} = {str(value).lower()}`" in rows[f"`{name}`"]


def test_the_example_file_is_valid():
    config = load_config(ROOT / "docs" / "examples" / "mesh.toml")
    assert config.worker.kv_cache_memory > 0


def test_documented_variables_exist():
    known = {f"{ENV_PREFIX}_{key.replace('.', '_')}".upper() for key in setting_keys()}
    sections = {name.split("_")[1] for name in known}
    for path in MARKDOWN:
        for name in re.findall(rf"\b{ENV_PREFIX}_[A-Z_]+[A-Z]\b", path.read_text(encoding="utf-8")):
            if name.split("_")[1] in sections:
                assert name in known, f"{path.name}: {name}"


@pytest.mark.parametrize("path", MARKDOWN, ids=lambda path: str(path.relative_to(ROOT)))
def test_documents_link_to_what_exists(path):
    text = path.read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", text):
        if "://" not in target:
            assert (path.parent / target).exists(), target


@pytest.mark.parametrize("path", MARKDOWN, ids=lambda path: str(path.relative_to(ROOT)))
def test_documented_commands_exist(path):
    words = set(re.findall(r"^([a-z]+):.*## ", _read("Makefile"), re.MULTILINE))
    text = path.read_text(encoding="utf-8")
    for code in re.findall(r"`([^`\n]+)`", text) + re.findall(r"^(?:\$ )?((?:make|tercet) .*)$", text, re.MULTILINE):
        head = code.split("#")[0].split()
        if len(head) > 1 and head[0] == "make" and re.fullmatch("[a-z]+", head[1]):
            assert head[1] in words, code
        if len(head) > 1 and head[0] == "tercet" and re.fullmatch("[a-z]+", head[1]):
            assert head[1] in main.list_commands(None), code


def test_adrs_are_numbered_without_gaps_and_of_one_page():
    files = sorted((ROOT / "docs" / "adr").glob("*.md"))
    assert [int(file.name[:4]) for file in files] == list(range(1, len(files) + 1))
    for file in files:
        text = file.read_text(encoding="utf-8")
        assert len(text.splitlines()) <= 80, file.name
        assert text.startswith(f"# {file.name[:4]}"), file.name


def test_files_stay_small():
    """One noun a file: never over 500 lines."""
    for package in ("tercet", "gateway", "scheduler", "worker", "cpp"):
        for file in (ROOT / package).rglob("*"):
            if file.suffix in (".py", ".h", ".cpp", ".cu") and "_pb2" not in file.name:
                assert len(file.read_text(encoding="utf-8").splitlines()) <= 500, file.relative_to(ROOT)


def test_the_architecture_names_what_exists():
    text = _read("docs/architecture.md")
    for path in re.findall(r"`((?:\w+/)+\w+\.(?:py|md|h|cpp))`", text):
        assert (ROOT / path).is_file(), path
    files = [
        file for package in ("tercet", "gateway", "scheduler", "worker") for file in (ROOT / package).rglob("*.py")
    ]
    source = "\n".join(file.read_text(encoding="utf-8") for file in files)
    for name in re.findall(r"`(?:\w+\.)?(\w+)\(\)`", text):
        assert re.search(rf"\bdef {name}\b", source), name
    for name in re.findall(r"`([A-Z][a-z]+[A-Z]\w+)(?:\.\w+\(\))?`", text):
        assert re.search(rf"\bclass {name}\b|\bmessage {name}\b", source) or name in _protos(), name


def _protos() -> str:
    return "\n".join(file.read_text(encoding="utf-8") for file in (ROOT / "proto").rglob("*.proto"))


def test_no_example_has_a_deadline():
    assert settings().deadline is None
