"""Journals: what was appended is found by whoever comes next, once, and only when its process is no more."""

from __future__ import annotations

import errno
import os
import resource
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tercet.errors import LedgerError
from tercet.ledger import journal as journal_module
from tercet.ledger.journal import Journal, find_journals, take_left


def lines(prefix: Path, instance: str = "one") -> list[bytes] | None:
    """What was left; None if nobody has left it."""
    with take_left(prefix, instance) as left:
        return None if left is None else sorted(left.lines)


def test_what_was_left_is_found(tmp_path: Path) -> None:
    prefix = tmp_path / "ledger.db"
    journal = Journal(prefix, "one")
    journal.open()
    journal.append(b"first\n")
    journal.append(b"second\n")
    # It is not left yet.
    assert find_journals(prefix) == ["one"]
    assert lines(prefix) is None
    journal.close(remove=False)
    assert lines(prefix) == [b"first", b"second"]
    with take_left(prefix, "one") as left:
        # Of two at once one gets it.
        assert lines(prefix) is None
        assert left is not None
        left.remove()
    assert lines(prefix) is None
    assert list(tmp_path.iterdir()) == []


def test_nobody_else_can_read_it(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "ledger.db", "one")
    journal.open()
    assert {each.stat().st_mode & 0o777 for each in tmp_path.iterdir()} == {0o600}
    journal.close(remove=True)
    assert list(tmp_path.iterdir()) == []


def test_two_processes_cannot_have_one(tmp_path: Path) -> None:
    first, second = (Journal(tmp_path / "ledger.db", "one") for _ in range(2))
    first.open()
    first.append(b"kept\n")
    with pytest.raises(LedgerError, match=r"one\.0\.journal is another process's"):
        second.open()
    first.close(remove=False)
    assert lines(tmp_path / "ledger.db") == [b"kept"]


@pytest.mark.parametrize("problem", ["no folder", "a file"])
def test_where_it_cannot_be_the_setting_is_named(problem: str, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    if problem == "a file":
        folder.write_text("")
    with pytest.raises(LedgerError, match=r"ledger\.journal_folder may name another place"):
        Journal(folder / "ledger.db", "one").open()


@pytest.mark.parametrize("which", [0, 1])
def test_of_one_that_cannot_be_made_whole_nothing_is_left(
    which: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Too many open files at the second, or no lock for the first."""
    prefix = tmp_path / "ledger.db"
    journal = Journal(prefix, "one")
    with monkeypatch.context() as patch:
        if which:
            make = journal_module._open
            patch.setattr(
                journal_module,
                "_open",
                lambda path, flags: make(path if ".0." in path.name else tmp_path / "no folder" / "file", flags),
            )
        else:
            patch.setattr(journal_module.fcntl, "flock", lambda *_: os.close(-1))
        with pytest.raises(LedgerError):
            journal.open()
    assert list(tmp_path.iterdir()) == []
    journal.open()
    assert journal.found
    journal.close(remove=True)


def test_the_files_take_turns_and_stay_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_module, "TURN_BYTES", 100)
    journal = Journal(tmp_path / "ledger.db", "one")
    journal.open()
    for round_ in range(50):
        for number in range(10):
            journal.append(b"%03d-%03d\n" % (round_, number))
        journal.turn()
        # What comes while the database is written stays.
        journal.append(b"later-%03d\n" % round_)
        journal.settle()
        assert sum(each.stat().st_size for each in tmp_path.iterdir()) <= 300
    journal.close(remove=False)
    assert b"later-049" in (lines(tmp_path / "ledger.db") or [])


@settings(max_examples=60)
@given(st.lists(st.sampled_from(["append", "append", "append", "take", "written", "failed"]), max_size=60))
def test_whatever_is_not_in_the_database_is_there(tmp_path_factory: pytest.TempPathFactory, actions: list[str]) -> None:
    """Takes of all that waits, which go well or not, in any order."""
    prefix = tmp_path_factory.mktemp("journal") / "ledger.db"
    journal = Journal(prefix, "one")
    journal.open()
    journal_module.TURN_BYTES, before = 20, journal_module.TURN_BYTES
    waiting: list[bytes] = []
    taken: list[bytes] | None = None
    try:
        for number, action in enumerate(actions):
            if action == "append":
                waiting.append(b"%d" % number)
                journal.append(b"%d\n" % number)
            elif action == "take" and taken is None:
                taken, waiting = waiting, []
                journal.turn()
            elif action == "written" and taken is not None:
                taken = None
                journal.settle()
            elif action == "failed" and taken is not None:
                taken, waiting = None, [*taken, *waiting]
    finally:
        journal_module.TURN_BYTES = before
    journal.close(remove=False)
    assert {*waiting, *(taken or ())} <= set(lines(prefix) or ())


def test_a_full_disk_leaves_no_piece_of_a_line(tmp_path: Path) -> None:
    """A limit of a file's size is as good as the end of a disk: what does not fit is written in part, or refused."""
    journal = Journal(tmp_path / "ledger.db", "one")
    journal.open()
    journal.append(b"fits\n")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (8, hard))
    try:
        for _ in range(2):
            with pytest.raises(OSError, match=r".") as caught:
                journal.append(b"does not fit\n")
            assert caught.value.errno in (errno.ENOSPC, errno.EFBIG)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, before)
    journal.append(b"fits again\n")
    journal.close(remove=False)
    assert lines(tmp_path / "ledger.db") == [b"fits", b"fits again"]


def test_of_a_process_that_was_killed_everything_is_there(tmp_path: Path) -> None:
    program = textwrap.dedent("""
        import sys, time
        from pathlib import Path
        from tercet.ledger.journal import Journal
        journal = Journal(Path(sys.argv[1]), "one")
        journal.open()
        for number in range(1000):
            journal.append(b"%d\\n" % number)
        print("ready", flush=True)
        time.sleep(60)
    """)
    prefix = tmp_path / "ledger.db"
    with subprocess.Popen([sys.executable, "-c", program, str(prefix)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert lines(prefix) is None
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert len(lines(prefix) or ()) == 1000


def test_another_ledger_beside_it_is_not_its(tmp_path: Path) -> None:
    for name in ("ledger.db", "ledger.db2", "other.db"):
        journal = Journal(tmp_path / name, "one")
        journal.open()
        journal.close(remove=False)
    (tmp_path / "ledger.db").write_text("")
    assert find_journals(tmp_path / "ledger.db") == ["one"]
