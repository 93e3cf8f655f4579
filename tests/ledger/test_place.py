"""Where a ledger is that nobody has named."""

from __future__ import annotations

import os
import pwd
from pathlib import Path

import pytest

from tercet.config import load_config
from tercet.errors import LedgerError
from tercet.ledger.place import journal_prefix, ledger_place, make_ledger_folder, state_folder
from tercet.sections import LedgerSettings


def test_by_default_it_is_in_the_state_folder(tmp_path: Path) -> None:
    settings = load_config().ledger
    env = {"XDG_STATE_HOME": str(tmp_path / "state")}
    assert ledger_place(settings, env) == f"{tmp_path}/state/tercet/ledger.db"
    make_ledger_folder(settings, env)
    make_ledger_folder(settings, env)
    assert (tmp_path / "state" / "tercet").stat().st_mode & 0o777 == 0o700
    # What is relative is to be ignored.
    for env in ({}, {"XDG_STATE_HOME": ""}, {"XDG_STATE_HOME": "state"}):
        assert state_folder({"HOME": str(tmp_path), **env}) == tmp_path / ".local" / "state" / "tercet"


@pytest.mark.parametrize("env", [{}, {"HOME": ""}, {"HOME": "home"}])
def test_without_a_home_in_the_environment_it_is_the_users(
    env: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", env.get("HOME", ""))
    home = Path(pwd.getpwuid(os.getuid()).pw_dir)
    assert state_folder(env) == home / ".local" / "state" / "tercet"


@pytest.mark.parametrize("word", ["none", ""])
def test_a_word_turns_it_off(word: str, tmp_path: Path) -> None:
    settings = LedgerSettings(database=word)
    assert ledger_place(settings, {"XDG_STATE_HOME": str(tmp_path)}) is None
    make_ledger_folder(settings, {"XDG_STATE_HOME": str(tmp_path)})
    assert list(tmp_path.iterdir()) == []


def test_what_is_named_is_taken_as_it_is(tmp_path: Path) -> None:
    for where in ("./none", "ledger.db", "postgresql+psycopg://user@host/ledger"):
        assert ledger_place(LedgerSettings(database=where), {}) == where


def test_a_folder_that_cannot_be_made_is_named_with_what_helps(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("")
    with pytest.raises(LedgerError, match=r"ledger\.database: .*/state/tercet cannot be made: .* or to none"):
        make_ledger_folder(LedgerSettings(), {"XDG_STATE_HOME": str(tmp_path / "state")})


def test_a_user_without_a_home_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getuid", lambda: 2**31 - 7)
    with pytest.raises(LedgerError, match="this user has no home"):
        ledger_place(LedgerSettings(), {})


def test_journals_are_beside_a_file_and_in_the_state_folder_for_a_server(tmp_path: Path) -> None:
    env = {"XDG_STATE_HOME": str(tmp_path / "state")}
    file = tmp_path / "ledger.db"
    file.write_text("")
    link = tmp_path / "link.db"
    link.symlink_to(file)
    # However it is called it is one ledger.
    assert journal_prefix(LedgerSettings(), str(link), link, env) == file
    first = journal_prefix(LedgerSettings(), "postgresql://a", None, env)
    second = journal_prefix(LedgerSettings(), "postgresql://b", None, env)
    assert first.parent == second.parent == tmp_path / "state" / "tercet"
    assert first != second
    named = LedgerSettings(journal_folder=str(tmp_path / "named"))
    assert journal_prefix(named, str(file), file, env).parent == tmp_path / "named"
    assert (tmp_path / "named").is_dir()
