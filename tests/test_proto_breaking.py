"""The breaking check of the contracts, on a small repository of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
FILE = "proto/tercet/v1/models.proto"
BUF = Path(sys.executable).with_name("buf")

pytestmark = pytest.mark.skipif(
    not BUF.exists() or shutil.which("git") is None, reason="needs git, and buf of the dev requirements"
)


class Repository:
    """A clone of the contracts in a fresh history."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        shutil.copytree(ROOT / "proto", folder / "proto")
        shutil.copy(ROOT / "buf.yaml", folder)
        (folder / ".ci").mkdir()
        shutil.copy(ROOT / ".ci" / "proto-breaking", folder / ".ci")

    def git(self, *arguments: str) -> None:
        identity = ["-c", "user.name=test", "-c", "user.email=test@example.com", "-c", "commit.gpgsign=false"]
        subprocess.run(["git", *identity, *arguments], cwd=self.folder, check=True, capture_output=True)

    def edit(self, old: str, new: str) -> None:
        text = (self.folder / FILE).read_text(encoding="utf-8")
        assert old in text
        (self.folder / FILE).write_text(text.replace(old, new, 1), encoding="utf-8")

    def check(self) -> tuple[int, str]:
        env = {**os.environ, "BUF": str(BUF)}
        done = subprocess.run([".ci/proto-breaking"], cwd=self.folder, env=env, capture_output=True, text=True)
        return done.returncode, done.stdout + done.stderr


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    made = Repository(tmp_path)
    made.git("init", "--quiet")
    return made


BREAK = ("bool chat = 7;", "bool chat = 8;")
ADD = ("bool chat = 7;", "bool chat = 7;\n  // New.\n  bool fresh = 8;")


def test_without_an_earlier_version_it_says_so(repository):
    assert repository.check()[0] == 0
    repository.git("add", ".")
    repository.git("commit", "--message", "one")
    code, said = repository.check()
    assert (code, "no earlier version" in said) == (0, True)


@pytest.mark.parametrize("committed", [False, True])
@pytest.mark.parametrize(("edit", "breaks"), [(BREAK, True), (ADD, False)])
def test_a_change_is_compared_with_the_version_before_it(repository, edit, breaks, committed):
    repository.git("add", ".")
    repository.git("commit", "--message", "one")
    repository.edit(*edit)
    if committed:
        repository.git("commit", "--all", "--message", "two")
    code, said = repository.check()
    assert (code != 0) is breaks, said
    assert ("chat" in said) is breaks


def test_a_release_is_what_later_versions_are_compared_with(repository):
    repository.git("add", ".")
    repository.git("commit", "--message", "one")
    repository.git("tag", "v1.0.0")
    repository.edit(*BREAK)
    repository.git("commit", "--all", "--message", "two")
    (repository.folder / "buf.yaml").write_text((repository.folder / "buf.yaml").read_text() + "\n")
    repository.git("commit", "--all", "--message", "three")
    assert repository.check()[0] != 0
