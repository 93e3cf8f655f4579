"""The store in a real SQLite file: what is kept, and what a reader sees."""

from __future__ import annotations

import math
import stat
import sys
import threading

import pytest

from tercet.errors import StoreError, TenantError
from tercet.tenants.plan import PlanError, TenantPlan
from tercet.tenants.store import Store

from .clock import NOW


def test_a_tenant_is_read_back(store, clock):
    plan = TenantPlan(
        classes=("rag", "batch"), default_class="batch", weight=2.5, requests_per_minute=60, tokens_per_minute=2**53,
        max_concurrent=4, kv_share=0.5, max_context=4096, min_priority=-5,
    )  # fmt: skip
    key = store.add("alice", plan, operator=False)
    boss = store.add("boss", TenantPlan(), operator=True)
    directory = store.read()
    assert {name: tenant.plan for name, tenant in directory.tenants.items()} == {"alice": plan, "boss": TenantPlan()}
    found = directory.find(key, NOW)
    assert (found.id, found.tenant, found.operator, found.expires_at) == (key.id, "alice", False, None)
    assert directory.find(boss, NOW).operator
    assert [(entry.name, entry.plan, entry.created_at) for entry in store.entries()] == [
        ("alice", plan, NOW), ("boss", TenantPlan(), NOW),
    ]  # fmt: skip


def test_only_a_digest_is_kept(store, path):
    key = store.add("alice", TenantPlan(), operator=False)
    files = [file.read_bytes() for file in path.parent.iterdir()]
    assert any(key.id.encode() in data for data in files)
    assert not any(key.secret.encode() in data or bytes.fromhex(key.secret) in data for data in files)


def test_only_its_owner_reads_the_files(store, path):
    store.add("alice", TenantPlan(), operator=False)
    assert {stat.S_IMODE(file.stat().st_mode) for file in path.parent.iterdir()} == {0o600}


def test_nothing_secret_is_in_a_repr(store):
    store.add("alice", TenantPlan(), operator=False)
    directory = store.read()
    text = repr(directory)
    assert repr(directory.server_key)[2:-1] not in text
    assert all(repr(key.digest)[2:-1] not in text for key in directory.keys.values())


def test_every_change_is_a_new_revision(store):
    seen = [store.read().revision]

    def changed():
        seen.append(store.read().revision)
        return seen[-1] > seen[-2] and store.read(seen[-1]) is None and store.read(seen[-2]) is not None

    store.add("alice", TenantPlan(), operator=False)
    assert changed()
    store.change("alice", weight=2.0)
    assert changed()
    store.rotate("alice", grace_s=5, operator=None)
    assert changed()
    store.revoke("alice", None)
    assert changed()
    store.remove("alice")
    assert changed()
    store.entries()
    with pytest.raises(TenantError):
        store.remove("alice")
    # What failed has changed nothing.
    assert store.read(seen[-1]) is None


def test_creating_again_changes_nothing(store, path, clock):
    store.add("alice", TenantPlan(), operator=False)
    before = store.read()
    other = Store(str(path), clock)
    other.create()
    assert other.read() == before
    other.close()


def test_a_name_is_taken_once(store):
    store.add("alice", TenantPlan(), operator=False)
    with pytest.raises(TenantError, match="there is a tenant alice already"):
        store.add("alice", TenantPlan(), operator=True)
    for name in ("", "a b", "x" * 65, "../x"):
        with pytest.raises(TenantError, match="cannot be a tenant's name"):
            store.add(name, TenantPlan(), operator=False)


def test_a_change_keeps_the_rest(store):
    store.add("alice", TenantPlan(weight=2.0, classes=("rag", "batch"), default_class="rag"), operator=False)
    assert store.change("alice", max_context=10) == TenantPlan(
        weight=2.0, classes=("rag", "batch"), default_class="rag", max_context=10
    )
    with pytest.raises(PlanError) as caught:
        store.change("alice", classes=("batch",))
    assert caught.value.field == "default_class"
    assert store.read().tenants["alice"].plan.classes == ("rag", "batch")
    with pytest.raises(TenantError, match="no tenant 'bob'"):
        store.change("bob", weight=1.0)


def test_a_rotation_ends_the_keys_before(store, clock):
    first = store.add("alice", TenantPlan(), operator=True)
    clock.now += 1
    second = store.rotate("alice", grace_s=59, operator=None)
    directory = store.read()
    assert directory.find(first, NOW + 59.9)
    assert directory.find(first, NOW + 60) is None
    assert directory.find(second, NOW + 1e9).operator
    # It ends at the earlier of two ends, and is still no revoked one: what it started goes on.
    clock.now += 10
    third = store.rotate("alice", grace_s=1000, operator=False)
    directory = store.read()
    assert directory.find(first, NOW + 60) is None
    assert directory.find(second, NOW + 1010)
    assert not directory.find(third, NOW).operator
    assert set(directory.keys) == {first.id, second.id, third.id}
    # The last role is the one that is kept.
    clock.now += 10
    fourth = store.rotate("alice", grace_s=0, operator=None)
    assert not store.read().find(fourth, clock.now).operator
    assert [key.role for key in store.entries()[0].keys] == ["operator", "operator", "tenant", "tenant"]
    assert [key.active(clock.now) for key in store.entries()[0].keys] == [False, False, False, True]


@pytest.mark.parametrize("step_s", [-3600, 0])
def test_whoever_is_no_operator_any_more_stays_none_when_the_clock_steps_back(store, clock, step_s):
    store.add("alice", TenantPlan(), operator=True)
    clock.now += 10
    store.rotate("alice", grace_s=0, operator=None)
    clock.now += step_s
    store.rotate("alice", grace_s=0, operator=False)
    # Whoever it is that chance puts first of equals.
    for _ in range(8):
        last = store.rotate("alice", grace_s=0, operator=None)
        assert not store.read().find(last, clock.now).operator
    entries = store.entries()[0].keys
    assert [key.role for key in entries] == ["operator"] * 2 + ["tenant"] * 9
    assert [key.id for key in entries if key.active(clock.now)] == [last.id]
    assert [key.created_at for key in entries] == pytest.approx([NOW] + [NOW + 10] * 10, abs=1e-3, rel=0)


def test_a_revoked_key_opens_nothing(store, clock):
    first = store.add("alice", TenantPlan(), operator=False)
    clock.now += 1
    second = store.rotate("alice", grace_s=60, operator=None)
    bobs = store.add("bob", TenantPlan(), operator=False)
    assert store.revoke("alice", first.id) == (first.id,)
    assert store.revoke("alice", first.id) == ()
    directory = store.read()
    assert directory.find(first, NOW) is None
    assert directory.find(second, clock.now)
    with pytest.raises(TenantError, match="has no key"):
        store.revoke("alice", bobs.id)
    assert store.revoke("alice", None) == (second.id,)
    assert set(store.read().keys) == {bobs.id}
    # It can come back with another key, in the role it had.
    clock.now += 1
    third = store.rotate("alice", grace_s=0, operator=None)
    assert store.read().find(third, clock.now)
    assert [key.revoked_at for key in store.entries()[0].keys] == [NOW + 1, NOW + 1, None]


def test_a_tenant_that_is_removed_takes_its_keys_along(store):
    key = store.add("alice", TenantPlan(), operator=False)
    before = store.read()
    store.remove("alice")
    assert store.read().find(key, NOW) is None
    assert store.entries() == ()
    store.add("alice", TenantPlan(), operator=False)
    after = store.read()
    assert after.find(key, NOW) is None
    # Who takes its name does not find its prefixes.
    assert after.salt_key("alice") != before.salt_key("alice")


def test_salts_are_of_tenant_and_store(store, tmp_path, clock):
    store.add("alice", TenantPlan(), operator=False)
    store.add("bob", TenantPlan(), operator=False)
    directory = store.read()
    assert directory.salt_key("alice") == store.read().salt_key("alice")
    assert len({directory.salt_key("alice"), directory.salt_key("bob"), directory.server_key}) == 3
    assert len(directory.salt_key("alice")) == 32
    other = Store(str(tmp_path / "other.db"), clock)
    other.create()
    other.add("alice", TenantPlan(), operator=False)
    assert other.read().salt_key("alice") != directory.salt_key("alice")
    other.close()


def test_a_wrong_secret_of_a_right_id_is_no_key(store):
    key, other = (store.add(name, TenantPlan(), operator=False) for name in ("alice", "bob"))
    directory = store.read()
    assert directory.find(type(key)(key.id, other.secret), NOW) is None
    assert directory.find(type(key)("0" * 16, key.secret), NOW) is None


def test_a_reader_sees_one_moment_beside_writers(store, path, clock):
    """Each writer makes and removes a tenant with its key: no reader ever finds a key without its tenant."""
    done = threading.Event()

    def write(name):
        writer = Store(str(path), clock)
        for _ in range(10):
            writer.add(name, TenantPlan(), operator=False)
            writer.remove(name)
        writer.close()

    writers = [threading.Thread(target=write, args=(f"w{index}",)) for index in range(3)]
    for thread in writers:
        thread.start()
    revisions = []
    while not done.is_set():
        if not any(thread.is_alive() for thread in writers):
            done.set()
        directory = store.read()
        revisions.append(directory.revision)
        assert {key.tenant for key in directory.keys.values()} == set(directory.tenants)
    assert revisions == sorted(revisions)
    assert store.read().tenants == {}


@pytest.mark.parametrize("now", [1e18, math.inf, math.nan])
def test_a_clock_that_cannot_be_is_an_error_of_the_store(store, clock, now):
    store.add("alice", TenantPlan(), operator=False)
    known = store.read()
    clock.now = now
    for ask in (
        lambda: store.add("bob", TenantPlan(), operator=False), lambda: store.rotate("alice", grace_s=1, operator=None),
        lambda: store.revoke("alice", None), lambda: store.change("alice", weight=2.0),
    ):  # fmt: skip
        with pytest.raises(StoreError, match="the clock of this host is wrong"):
            ask()
    assert store.read() == known


@pytest.mark.parametrize("grace_s", [math.nan, math.inf, -1.0])
def test_a_grace_is_a_time(store, clock, grace_s):
    key = store.add("alice", TenantPlan(), operator=False)
    revision = store.read().revision
    with pytest.raises(TenantError, match="grace must be a finite number"):
        store.rotate("alice", grace_s=grace_s, operator=None)
    assert store.read(revision) is None
    store.rotate("alice", grace_s=0, operator=None)
    assert store.read().find(key, clock.now) is None


def test_every_entry_has_its_own_keys(store):
    names = ["a", "b", "c"]
    made = {name: [store.add(name, TenantPlan(), operator=False)] for name in names}
    for name in ("c", "a", "c"):
        made[name].append(store.rotate(name, grace_s=60, operator=None))
    told = {entry.name: {key.id for key in entry.keys} for entry in store.entries()}
    assert told == {name: {key.id for key in made[name]} for name in names}


def _lines_run(call):
    """How many lines of the store's module a call runs: its work, whatever the machine does besides."""
    count = 0

    def trace(frame, event, _):
        nonlocal count
        count += event == "line"
        return trace if frame.f_globals["__name__"] == Store.__module__ else None

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(before)
    return count


def test_the_work_of_a_list_grows_with_it_and_not_with_its_square(store):
    work = []
    for first, last in ((0, 20), (20, 80)):
        for index in range(first, last):
            store.add(f"t{index}", TenantPlan(), operator=False)
        work.append(_lines_run(store.entries))
    # Four times as many.
    assert work[1] < 5 * work[0]
