"""Only files are opened, and those that are not too large."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tercet.load.json_data import RunFileError
from tercet.load.plain_file import open_plain


def test_a_file_and_a_link_to_one_are_read(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("ä\n", encoding="utf-8")
    (tmp_path / "link").symlink_to("file")
    for name in ("file", "link"):
        with open_plain(tmp_path / name, 3) as file:
            assert file.read() == "ä\n".encode()
    with pytest.raises(RunFileError, match="file has 3 bytes; 2 are the most that is read"):
        open_plain(tmp_path / "file", 2)


def test_what_never_ends_or_never_begins_is_refused(tmp_path: Path) -> None:
    (tmp_path / "zero").symlink_to("/dev/zero")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    for name in ("zero", "pipe", "folder"):
        with pytest.raises(RunFileError, match=f"{name} is no plain file"):
            open_plain(tmp_path / name, 1 << 20)
    with pytest.raises(OSError, match="No such file"):
        open_plain(tmp_path / "nothing", 1)
