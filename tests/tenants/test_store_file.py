"""Where the store is: a file that is made, moved, put back or damaged, one that is no store, and URLs."""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
import sys
import types
from pathlib import Path

import pytest

from tercet.errors import StoreError
from tercet.tenants.plan import TenantPlan
from tercet.tenants.store import Store

from .clock import NOW, Clock


def test_a_store_made_anew_is_not_older(store, path, clock):
    store.add("alice", TenantPlan(), operator=False)
    before = store.read().revision
    for file in path.parent.iterdir():
        file.unlink()
    clock.now += 1
    other = Store(str(path), clock)
    other.create()
    other.close()
    # The one that is open sees it, too, and not the file that nobody else can see.
    assert store.read().revision > before
    assert store.read().tenants == {}


def test_processes_that_make_it_at_once_agree(tmp_path):
    path = tmp_path / "new.db"
    code = (
        "import sys, time; from tercet.tenants.store import Store; from tercet.tenants.plan import TenantPlan\n"
        "store = Store(sys.argv[1], time.time); store.create(); store.add(sys.argv[2], TenantPlan(), operator=False)\n"
        "print(store.read().server_key.hex())"
    )
    running = [
        subprocess.Popen([sys.executable, "-c", code, str(path), f"t{index}"], stdout=subprocess.PIPE, text=True)
        for index in range(4)
    ]
    keys = {process.communicate(timeout=60)[0] for process in running}
    assert [process.returncode for process in running] == [0] * 4
    assert len(keys) == 1
    assert len(Store(str(path), Clock()).entries()) == 4


def test_without_a_file_it_says_how_to_make_one(tmp_path):
    store = Store(str(tmp_path / "absent.db"), Clock())
    for ask in (store.read, store.entries, lambda: store.remove("a")):
        with pytest.raises(StoreError, match=r"^tenants\.store: .*absent\.db is not there; `tercet tenant add"):
            ask()
    assert list(tmp_path.iterdir()) == []
    nowhere = Store(str(tmp_path / "no" / "folder.db"), Clock())
    with pytest.raises(StoreError, match="No such file or directory"):
        nowhere.create()


def test_what_is_no_store_is_refused(tmp_path):
    text = tmp_path / "text"
    text.write_text("not a database, but long enough to be taken for one at the first look" * 20)
    with pytest.raises(StoreError, match="file is not a database"):
        Store(str(text), Clock()).read()
    with pytest.raises(StoreError, match="file is not a database"):
        Store(str(text), Clock()).create()
    with pytest.raises(StoreError, match="unable to open"):
        Store(str(tmp_path), Clock()).read()
    other = tmp_path / "other.db"
    connection = sqlite3.connect(other)
    connection.execute("CREATE TABLE songs (name TEXT)")
    connection.close()
    with pytest.raises(StoreError, match="is a database of something else: it has a table songs"):
        Store(str(other), Clock()).create()
    with pytest.raises(StoreError, match="no such table"):
        Store(str(other), Clock()).read()


@pytest.mark.parametrize("how", ["copied", "moved"])
def test_a_store_that_is_put_back_is_what_it_was(store, path, clock, how):
    alice = store.add("alice", TenantPlan(), operator=False)
    store.revoke("alice", None)
    second = store.rotate("alice", grace_s=0, operator=None)
    known = store.read()
    # What is copied while it is open has all that was changed before.
    copy = path.parent / "copy"
    shutil.copy(path, copy)
    assert sorted(path.parent.iterdir()) == sorted([copy, path])
    clock.now += 1
    for index in range(50):
        store.add(f"t{index}", TenantPlan(), operator=False)
    store.remove("alice")
    assert store.read(known.revision).revision > known.revision
    if how == "copied":
        shutil.copy(copy, path)
    else:
        copy.replace(path)
    later = Store(str(path), clock)
    for each in (store, later):
        each.check()
        directory = each.read(known.revision + 1)
        assert directory == known
        assert directory.find(alice, NOW) is None
        assert directory.find(second, NOW) is not None
    # And goes on from there, for both.
    later.revoke("alice", second.id)
    assert store.read(known.revision).find(second, NOW) is None
    later.close()


def test_a_file_that_was_emptied_stays_so(store, path):
    store.add("alice", TenantPlan(), operator=False)
    store.close()
    path.write_bytes(b"")
    again = Store(str(path), Clock())
    for ask in (again.create, again.read, again.entries, lambda: again.add("bob", TenantPlan(), operator=False)):
        with pytest.raises(StoreError, match="is an empty file"):
            ask()
    assert path.read_bytes() == b""
    path.unlink()
    again.create()
    assert again.entries() == ()


def test_a_newer_schema_is_refused(store, path):
    store.add("alice", TenantPlan(), operator=False)
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE settings SET schema_version = 2")
    for ask in (store.read, store.entries, store.create, lambda: store.remove("alice")):
        with pytest.raises(StoreError, match="has schema 2; this version of tercet knows those up to 1"):
            ask()


def test_a_plan_that_cannot_be_is_an_error_of_the_store(store, path):
    store.add("alice", TenantPlan(), operator=False)
    for change in ("weight = 0", "classes = 'rag,,'", "classes = '{'", "kv_share = 2"):
        with sqlite3.connect(path) as connection:
            connection.execute(f"UPDATE tenants SET {change}")
        with pytest.raises(StoreError, match="the plan of tenant alice cannot be"):
            store.read()
        with sqlite3.connect(path) as connection:
            connection.execute("UPDATE tenants SET weight = 1, kv_share = 0, classes = ''")
    assert store.read()


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ("tenants SET weight = 'abc'", "weight of tenants alice cannot be str"),
        ("tenants SET requests_per_minute = 1.5", "requests_per_minute of tenants alice cannot be float"),
        ("tenants SET classes = x'00'", "classes of tenants alice cannot be bytes"),
        ("tenants SET created_at = 'yesterday'", "created_at of tenants alice cannot be str"),
        ("keys SET expires_at = 'soon'", "expires_at of keys [0-9a-z]+ cannot be str"),
        ("keys SET digest = 'text'", "digest of keys [0-9a-z]+ cannot be str"),
        ("settings SET revision = 'new'", "revision of settings 1 cannot be str"),
        ("settings SET server_key = 7", "server_key of settings 1 cannot be int"),
    ],
)
def test_a_value_of_another_type_is_an_error_of_the_store(store, path, change, what):
    store.add("alice", TenantPlan(), operator=False)
    with sqlite3.connect(path) as connection:
        connection.execute(f"UPDATE {change}")
    for ask in (store.read, store.entries, store.check):
        if ask == store.check and not change.startswith("settings"):
            continue
        with pytest.raises(StoreError, match=what):
            ask()


@pytest.mark.parametrize("where", ["sqlite://", "sqlite:///", "sqlite:///:memory:"])
def test_a_store_is_a_file(where):
    with pytest.raises(StoreError, match="must be a file"):
        Store(where, Clock())


def test_a_url_of_a_file_is_that_file(tmp_path, clock):
    store = Store(f"sqlite:///{tmp_path / 'x.db'}", clock)
    store.create()
    key = store.add("alice", TenantPlan(), operator=False)
    other = Store(str(tmp_path / "x.db"), clock)
    assert other.read().find(key, NOW)
    store.close()
    other.close()


@pytest.mark.parametrize(
    ("where", "what"),
    [
        ("://x", "is neither a path nor a SQLAlchemy URL"),
        ("postgresql+nodriver://u:geheim@db/tenants", "its driver is not installed"),
        ("nothing://u:geheim@db/tenants", "its driver is not installed"),
    ],
)
def test_a_url_that_leads_nowhere_is_named_without_its_password(where, what):
    with pytest.raises(StoreError, match=what) as caught:
        Store(where, Clock()).read()
    assert "geheim" not in str(caught.value)


@pytest.mark.parametrize(
    ("query", "expected"),
    [("", {"connect_timeout": 5, "read_timeout": 10}), ("?connect_timeout=30", {"connect_timeout": 30})],
)
def test_a_server_is_not_waited_for_without_end(monkeypatch, query, expected):
    """By a driver that is told so, unless the URL says something else."""
    given = []

    class Unreachable(Exception):
        pass

    def connect(**options):
        given.append(options)
        raise Unreachable(2003, "timeout expired")

    errors = dict.fromkeys(
        ("Error", "InterfaceError", "InternalError", "OperationalError", "ProgrammingError"), Unreachable
    )
    driver = types.SimpleNamespace(connect=connect, paramstyle="pyformat", VERSION=(1, 1, 0), **errors)
    monkeypatch.setitem(sys.modules, "pymysql", driver)
    with pytest.raises(StoreError, match="timeout expired"):
        Store(f"mysql+pymysql://u:geheim@db/tenants{query}", Clock()).read()
    assert expected.items() <= given[0].items()


@pytest.mark.parametrize("damage", ["all", "nothing left", "in the middle"])
def test_a_file_that_is_damaged_while_it_is_open_is_noticed(store, damage):
    for index in range(200):
        store.add(f"t{index}", TenantPlan(), operator=False)
    store.close()
    known = store.read()
    store.check()
    path = Path(store.name)
    size = path.stat().st_size
    with path.open("r+b") as file:
        if damage == "nothing left":
            file.truncate(0)
        else:
            file.seek(0 if damage == "all" else size // 2)
            file.write(b"\xff" * (size if damage == "all" else 4096))
    if damage == "in the middle":
        # By what is remembered of it, nothing has changed.
        assert store.read(known.revision) is None
    with pytest.raises(StoreError):
        store.check()
