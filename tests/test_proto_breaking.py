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
    """A git repository with the contracts and their check."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

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
    """The contracts as they are, with no history yet."""
    shutil.copytree(ROOT / "proto", tmp_path / "proto")
    shutil.copy(ROOT / "buf.yaml", tmp_path)
    (tmp_path / ".ci").mkdir()
    shutil.copy(ROOT / ".ci" / "proto-breaking", tmp_path / ".ci")
    made = Repository(tmp_path)
    made.git("init", "--quiet")
    return made


BREAK = ("bool chat = 7;", "bool chat = 8;")
ADD = ("bool chat = 7;", "bool chat = 7;\n  // New.\n  bool fresh = 8;")


def test_without_an_earlier_version_it_says_so(repository):
    code, said = repository.check()
    assert (code, "not a git repository with commits" in said) == (0, True)
    repository.git("add", "buf.yaml")
    repository.git("commit", "--message", "no contracts yet")
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


def test_a_break_is_not_forgiven_by_the_next_commit(repository):
    repository.git("add", ".")
    repository.git("commit", "--message", "one")
    repository.edit(*BREAK)
    repository.git("commit", "--all", "--message", "two")
    repository.edit("message ", "// Another change.\nmessage ")
    repository.git("commit", "--all", "--message", "three")
    code, said = repository.check()
    assert code != 0
    assert "(one)" in said, said


def test_what_was_added_after_the_first_version_is_kept_too(repository):
    repository.git("add", ".")
    repository.git("commit", "--message", "one")
    repository.edit(*ADD)
    repository.git("commit", "--all", "--message", "two")
    repository.edit(ADD[1], ADD[0])
    repository.git("commit", "--all", "--message", "three")
    code, said = repository.check()
    assert (code != 0, "fresh" in said, "(two)" in said) == (True, True, True), said


def test_what_was_never_published_binds_nobody(repository):
    repository.git("add", ".")
    repository.git("commit", "--message", "one")
    repository.edit(*ADD)
    repository.git("commit", "--all", "--message", "two")
    head = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=repository.folder, capture_output=True, text=True, check=True
    )
    repository.edit(ADD[1], ADD[0])
    repository.git("commit", "--all", "--message", "three")
    assert repository.check()[0] != 0
    listed = repository.folder / ".ci" / "proto-unpublished"
    listed.write_text(f"# why\n{head.stdout.strip()} nobody had it\n", encoding="utf-8")
    assert repository.check()[0] == 0
    repository.edit(*BREAK)
    assert repository.check()[0] != 0


def test_the_private_contract_may_change(repository):
    file = repository.folder / "proto/tercet/mesh/v1/worker.proto"
    repository.git("add", ".")
    repository.git("commit", "--message", "one")
    text = file.read_text(encoding="utf-8")
    assert "uint64 plan_seq = 1;" in text
    file.write_text(text.replace("uint64 plan_seq = 1;", "uint64 plan_seq = 100;"), encoding="utf-8")
    assert repository.check()[0] == 0


def test_a_clone_without_its_history_is_told_what_is_missing(repository, tmp_path_factory):
    repository.git("add", ".")
    repository.git("commit", "--message", "one")
    repository.edit(*BREAK)
    repository.git("commit", "--all", "--message", "two")
    shallow = tmp_path_factory.mktemp("clones") / "shallow"
    repository.git("clone", "--quiet", "--depth", "1", repository.folder.as_uri(), str(shallow))
    clone = Repository(shallow)
    code, said = clone.check()
    assert (code, "skipped" in said, "git fetch --unshallow" in said) == (0, True, True), said
    clone.git("fetch", "--quiet", "--unshallow", "--tags")
    code, said = clone.check()
    assert (code != 0, "chat" in said) == (True, True), said


def test_a_release_is_what_later_versions_are_compared_with(repository):
    repository.git("add", ".")
    repository.git("commit", "--message", "one")
    repository.git("tag", "v1.0.0")
    repository.edit(*BREAK)
    repository.git("commit", "--all", "--message", "two")
    (repository.folder / "buf.yaml").write_text((repository.folder / "buf.yaml").read_text() + "\n")
    repository.git("commit", "--all", "--message", "three")
    assert repository.check()[0] != 0
