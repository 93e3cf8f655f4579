"""``tercet tenant``: what it prints, what it keeps, and how it says what is wrong."""

from __future__ import annotations

import json
import time

import pytest
from command_line import run

from tercet.tenants.api_key import read_key
from tercet.tenants.plan import TenantPlan
from tercet.tenants.store import Store


@pytest.fixture
def path(tmp_path):
    return tmp_path / "tenants.db"


@pytest.fixture
def tenant(path):
    """Runs a command on the store of the test."""

    def command(name, *arguments):
        return run("tenant", name, *arguments, "--tenants-store", str(path))

    return command


def find(path, key):
    """Whom a printed key stands for now, None for nobody."""
    store = Store(str(path), time.time)
    found = store.read().find(read_key(key.strip()), time.time())
    store.close()
    return found


def plan_of(path, name):
    store = Store(str(path), time.time)
    plan = store.read().tenants[name].plan
    store.close()
    return plan


def test_add_prints_the_key_alone(tenant, path):
    done = tenant("add", "alice")
    assert done.exit_code == 0
    assert find(path, done.stdout).tenant == "alice"
    assert done.stdout.strip() not in done.stderr
    assert "alice is added" in done.stderr
    assert plan_of(path, "alice") == TenantPlan()
    assert find(path, tenant("add", "boss", "--operator").stdout).operator


def test_every_limit_has_a_flag(tenant, path):
    flags = "--class rag --class batch --default-class batch --weight 2.5 --requests-per-minute 60 "
    flags += "--tokens-per-minute 5000000000 --max-concurrent 4 --kv-share 0.5 --max-context 4096 --min-priority -5"
    assert tenant("add", "alice", *flags.split()).exit_code == 0
    assert plan_of(path, "alice") == TenantPlan(
        classes=("rag", "batch"), default_class="batch", weight=2.5, requests_per_minute=60,
        tokens_per_minute=5_000_000_000, max_concurrent=4, kv_share=0.5, max_context=4096, min_priority=-5,
    )  # fmt: skip


def test_set_changes_what_is_named(tenant, path):
    tenant("add", "alice", "--class", "rag", "--weight", "2")
    done = tenant("set", "alice", "--weight", "3", "--max-context", "100")
    assert done.output == "tenant alice: classes rag, weight 3.0, max context 100\n"
    assert plan_of(path, "alice") == TenantPlan(classes=("rag",), weight=3.0, max_context=100)
    assert tenant("set", "alice", "--max-context", "0", "--weight", "1").exit_code == 0
    assert tenant("set", "alice", "--all-classes").output == "tenant alice: no limits\n"
    assert plan_of(path, "alice") == TenantPlan()
    assert "nothing to change" in tenant("set", "alice").output
    both = tenant("set", "alice", "--class", "rag", "--all-classes")
    assert (both.exit_code, "exclude each other" in both.output) == (2, True)


def test_a_class_that_the_settings_do_not_have_is_warned_of(tenant, tmp_path):
    done = tenant("add", "alice", "--class", "rag", "--class", "nosuch", "--default-class", "nosuch")
    assert done.exit_code == 0
    assert "warning: nosuch: no traffic class of the settings here, which are interactive, rag, batch" in done.stderr
    assert "nosuch" not in done.stdout
    assert "warning: other: " in tenant("set", "alice", "--all-classes", "--default-class", "other").stderr
    assert "warning" not in tenant("set", "alice", "--class", "rag", "--default-class", "rag").stderr
    # Those of the file are the settings at hand.
    config = tmp_path / "mesh.toml"
    config.write_text("[classes.nosuch]\nrank = 3\n")
    assert (
        "warning"
        not in tenant("set", "alice", "--class", "nosuch", "--default-class", "nosuch", "--config", str(config)).stderr
    )


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        (["--weight", "0.0001"], "--weight: must be from 0.001 to 1000"),
        (["--weight", "nan"], "'--weight': nan is not a finite number"),
        (["--requests-per-minute", "-1"], "--requests-per-minute: must be from 0"),
        (["--tokens-per-minute", "many"], "'--tokens-per-minute': 'many' is not"),
        (["--max-concurrent", "4294967296"], "--max-concurrent: must be from 0"),
        (["--kv-share", "1.5"], "--kv-share: must be from 0 to 1"),
        (["--max-context", "-1"], "--max-context: must be from 0"),
        (["--min-priority", "-101"], "--min-priority: must be from -100 to 100"),
        (["--class", "a b"], "--class: must be names"),
        (["--class", "rag", "--default-class", "batch"], "--default-class: is batch, which is not among rag"),
    ],
)
@pytest.mark.parametrize("command", ["add", "set"])
def test_a_wrong_value_names_its_option(tenant, path, command, flags, problem):
    if command == "set":
        tenant("add", "alice")
    done = tenant(command, "alice", *flags)
    assert (done.exit_code, done.stdout) == (2, "")
    assert f"Invalid value for {problem}" in done.stderr
    if command == "set":
        assert plan_of(path, "alice") == TenantPlan()


def test_rotate_and_revoke(tenant, path):
    first = tenant("add", "alice").stdout
    done = tenant("rotate", "alice", "--grace", "60")
    second = done.stdout
    assert "end in 60 s" in done.stderr
    assert find(path, first)
    assert find(path, second)
    assert "end now" in tenant("rotate", "alice").stderr
    assert find(path, second) is None
    third = tenant("rotate", "alice", "--operator").stdout
    assert find(path, third).operator
    one = tenant("revoke", "alice", "--key", read_key(third.strip()).id)
    assert one.output == f"tenant alice: revoked {read_key(third.strip()).id}\n"
    assert find(path, third) is None
    assert tenant("revoke", "alice").output.startswith("tenant alice: revoked ")
    assert tenant("revoke", "alice").output == "tenant alice: nothing was left to revoke\n"
    assert tenant("rotate", "alice", "--grace", "-1").exit_code == 2


@pytest.mark.parametrize("grace", ["nan", "inf", "1e300", "31536001"])
def test_a_grace_ends(tenant, path, grace):
    key = tenant("add", "alice").stdout
    done = tenant("rotate", "alice", "--grace", grace)
    assert (done.exit_code, done.stdout) == (2, "")
    assert "Invalid value for '--grace'" in done.stderr
    # Nothing has come of it: the next one ends the key.
    assert find(path, key)
    tenant("rotate", "alice")
    assert find(path, key) is None


def test_list_shortens_nothing_where_there_is_little_room(tenant, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    name = "a" * 64
    tenant("add", name, "--class", "interactive", "--default-class", "interactive", "--requests-per-minute", "123456")
    row = next(line for line in tenant("list").output.splitlines() if line.startswith("a"))
    assert row.split()[0] == name
    assert "classes interactive" in row


def test_a_class_that_is_named_twice_is_there_once(tenant):
    tenant("add", "alice", "--class", "rag", "--class", "batch", "--class", "rag")
    assert json.loads(tenant("list", "--json").output)["classes"] == ["rag", "batch"]


def test_what_is_just_beyond_a_limit_is_told_as_it_is(tenant):
    done = tenant("add", "alice", "--weight", "1000.0001")
    assert "must be from 0.001 to 1000, is 1000.0001" in done.output


def test_a_name_of_any_length_is_a_short_error(tenant):
    done = tenant("add", "a" * 100_000)
    assert done.exit_code == 1
    assert len(done.output) < 300


def test_a_blank_store_is_none(monkeypatch):
    monkeypatch.setenv("TERCET_TENANTS_STORE", "  ")
    assert "tenants.store: is not set" in run("tenant", "add", "alice").output


def test_list_shows_no_secret(tenant):
    assert tenant("add", "alice", "--kv-share", "0.25").exit_code == 0
    key = read_key(tenant("add", "boss", "--operator").stdout.strip())
    old = tenant("add", "old").stdout.strip()
    tenant("revoke", "old")
    shown = tenant("list").output
    lines = [line.split() for line in shown.splitlines()]
    assert [line[0] for line in lines] == ["tenant", "alice", "boss", "old"]
    assert lines[1][-2:] == ["share", "0.25"]
    assert lines[2][1:] == [key.id, "(operator)", "everything"]
    assert lines[3][1:] == ["none", "everything"]
    entries = {entry["name"]: entry for entry in map(json.loads, tenant("list", "--json").output.splitlines())}
    assert entries["alice"]["kv_share"] == 0.25
    assert [(each["id"], each["role"], each["active"]) for each in entries["boss"]["keys"]] == [
        (key.id, "operator", True)
    ]
    assert [each["active"] for each in entries["old"]["keys"]] == [False]
    everything = shown + tenant("list", "--json").output
    assert key.secret not in everything
    assert old not in everything
    assert "digest" not in everything


def test_remove(tenant, path):
    key = tenant("add", "alice").stdout
    assert tenant("remove", "alice").output == "tenant alice is removed\n"
    assert find(path, key) is None
    assert tenant("add", "alice").exit_code == 0


@pytest.mark.parametrize(
    "command", [["set", "bob", "--weight", "2"], ["rotate", "bob"], ["revoke", "bob"], ["remove", "bob"]]
)
def test_no_such_tenant(tenant, command):
    tenant("add", "alice")
    done = tenant(*command)
    assert (done.exit_code, done.stdout) == (1, "")
    assert "there is no tenant 'bob'" in done.stderr


def test_what_is_there_already_or_has_no_name(tenant):
    tenant("add", "alice")
    assert "there is a tenant alice already" in tenant("add", "alice").stderr
    assert "cannot be a tenant's name" in tenant("add", "two words").stderr
    assert "has no key x" in tenant("revoke", "alice", "--key", "x").stderr


def test_the_store_is_named_where_it_is_missing(tenant, path, monkeypatch):
    done = tenant("list")
    assert (done.exit_code, path.exists()) == (2, False)
    assert done.stderr == f"tercet: tenants.store: {path} is not there; `tercet tenant add NAME` makes it\n"
    unset = run("tenant", "list")
    assert (unset.exit_code, unset.stderr.startswith("tercet: tenants.store: is not set: give --tenants-store")) == (
        2, True,
    )  # fmt: skip
    monkeypatch.setenv("TERCET_TENANTS_STORE", str(path))
    assert run("tenant", "add", "alice").exit_code == 0
    assert "alice" in run("tenant", "list").output


def test_the_store_may_stand_in_the_file(tmp_path, path):
    config = tmp_path / "mesh.toml"
    config.write_text(f'[tenants]\nstore = "{path}"\n')
    assert run("tenant", "add", "alice", "--config", str(config)).exit_code == 0
    assert "alice" in run("tenant", "list", "--tenants-store", str(path)).output
