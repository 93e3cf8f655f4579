"""A core's state as data and back, and what must not be in it."""

from __future__ import annotations

import gc
import json
import sys
from collections import Counter, OrderedDict, deque
from typing import Any

import pytest
from recorded import FOREVER, dumped, live, record

from scheduler.actions import NewSequence, Plan, Release, ReleaseCause, ToWorker
from scheduler.core import Core
from scheduler.events import (
    BlockCounts,
    Ended,
    EndReason,
    GatewayAttached,
    KvChanged,
    StepReported,
    Submitted,
    WorkerAttached,
    WorkerInfo,
)
from scheduler.placement import cached_tokens
from scheduler.plan_log import shape
from scheduler.plan_log.checkpoint import Snapshot, restore
from scheduler.plan_log.conform import conforms
from scheduler.plan_log.shape import BLANK_CLASSES, CLASSES, LOOKUP, UnknownClassError, hints_of
from scheduler.plan_log.values import decode, encode
from scheduler.pool import Pool
from scheduler.simulator.mesh import VirtualMesh, submission
from scheduler.simulator.small import worker_info
from scheduler.worker import Worker
from tercet import errors
from tercet.errors import PlanFileError


def through_json(snapshot: Snapshot) -> list[Any]:
    return [json.loads(json.dumps(each)) for each in snapshot.encoded()]


@pytest.mark.parametrize("seed", range(6))
def test_a_restored_core_is_the_same_again_and_its_books_balance(seed: int) -> None:
    """At many moments of a life: what is written of the restored core is what was written of the first."""
    mesh, _ = live(seed, FOREVER, requests=0)
    gateway = next(gateway for gateway in mesh.gateways.values() if not gateway.lost)
    if not mesh.workers:
        mesh.attach_worker()
    for key in range(12):
        mesh.submit(gateway, submission(key, range(1, 2 + key), 10, n=1 + key % 2, deadline_s=9.0))
    core: Core = vars(mesh.core)["_core"]
    for _ in range(12):
        mesh.run(mesh.now + 0.01)
        written = through_json(Snapshot(core))
        again = restore(written, Core, {"Core": {LOOKUP: cached_tokens}})
        assert again.check() == []
        assert again.view() == core.view()
        assert through_json(Snapshot(again)) == written


def test_a_snapshot_is_of_its_moment() -> None:
    mesh = VirtualMesh()
    gateway = mesh.attach_gateway()
    mesh.attach_worker()
    mesh.submit(gateway, submission(1))
    snapshot = Snapshot(mesh.core)
    before = through_json(snapshot)
    mesh.run()
    assert through_json(snapshot) == before
    assert through_json(Snapshot(mesh.core)) != before


def test_shared_things_stay_shared_and_circles_close() -> None:
    shared: list[Any] = [1, "two", (3, 4.5)]
    several: dict[Any, Any] = {
        ("a", 1): shared, "again": shared, "inf": float("inf"), "bytes": b"\x00\xff", "set": {1, 2}, "none": None,
        "deque": deque([1]), "ordered": OrderedDict(b=1, a=2), "counter": Counter("aab"),
        "cause": ReleaseCause.SWAP, "frozen": BlockCounts(1, 2, 3), "error": errors.DrainingError("stopping"),
    }  # fmt: skip
    several["self"] = several
    again = restore(through_json(Snapshot(several)), dict)
    assert again["self"] is again
    assert again["again"] is again["a", 1]
    assert again["again"] == shared
    assert type(again["error"]) is errors.DrainingError
    for name in several.keys() - {"self", "error"}:
        assert again[name] == several[name]
        assert type(again[name]) is type(several[name])


def test_values_of_any_kinds_keep_their_order_and_their_identity() -> None:
    first, second = Pool("model", "r1"), Pool("model", "r2")
    mixed: list[Any] = [
        None,
        first,
        (),
        1,
        (second, (first, None)),
        [first],
        2.5,
        second,
        BlockCounts(1, 2, 3),
        ("a",),
        [],
        True,
    ]
    again = restore(through_json(Snapshot([mixed, first, {1: mixed, "list": mixed[5]}])), list)
    copy, pool = again[:2]
    assert again[2][1] is copy
    assert again[2]["list"] is copy[5]
    assert copy[1] is pool
    assert copy[5] == [pool]
    assert copy[4] == (copy[7], (pool, None))
    assert copy[7].model_revision == "r2"
    places = (0, 2, 3, 6, 8, 9, 10, 11)
    assert [(type(copy[place]), copy[place]) for place in places] == [
        (type(mixed[place]), mixed[place]) for place in places
    ]


def test_a_snapshot_keeps_no_tokens_and_nothing_of_what_it_copied() -> None:
    mesh = VirtualMesh()
    gateway = mesh.attach_gateway()
    mesh.attach_worker()
    for key in range(20):
        mesh.submit(gateway, submission(key, n=2))
    sequences = [*vars(mesh.core)["_mesh"].sequences.values()]
    held = [each for sequence in sequences for each in (sequence, sequence.token_ids, sequence.request)]
    held += [sequence.request.submission.prompt_token_ids for sequence in sequences]
    before = [*map(sys.getrefcount, held)]
    snapshot = Snapshot(mesh.core)
    assert [*map(sys.getrefcount, held)] == before
    assert len(snapshot) > 40


class Stranger:
    pass


def test_a_class_that_is_not_registered_is_named() -> None:
    pool = Pool("model", "r1")
    pool.workers = {1: Stranger()}  # type: ignore[dict-item]
    with pytest.raises(UnknownClassError, match="Stranger is not among the classes of a plan log"):
        Snapshot(pool)
    assert gc.isenabled()


def test_no_two_classes_share_a_name() -> None:
    modules = shape._MODULES
    names = [
        name
        for module in modules
        for name, cls in vars(module).items()
        if isinstance(cls, type) and cls.__module__ == module.__name__ and not issubclass(cls, BaseException)
    ]
    assert len(names) == len(set(names)) == len(shape.CLASSES)


@pytest.mark.parametrize(
    "entries",
    [
        [],
        [{"list": []}],
        [{"is": "Pool"}],
        [{"is": "Core", "_mesh": {"ref": 1}}],
        [{"is": "Core", "_mesh": {"ref": -1}}],
        [{"is": "Core", "_mesh": {"ref": True}}],
        [{"is": "Core"}, {"is": "Sampling"}],
        [{"is": "Core"}, {"is": "Sequence", "sequence_id": 1}],
        [{"is": "Core"}, {"is": "subprocess.Popen"}],
        [{"is": "Core"}, {"is": ["Core"]}],
        [{"is": "Core"}, {"heap": []}],
        [{"is": "Core"}, {"list": 3}],
        [{"is": "Core"}, {"dict": [[1]]}],
        [{"is": "Core"}, {"dict": [[{"ref": 1}, 1]]}],
        [{"is": "Core"}, {"set": [{"ref": 1}]}],
        [{"is": "Core", "_mesh": {"what": 1}}],
        [{"is": "Core", "_mesh": {"enum": "State.NOWHERE"}}],
        [{"is": "Core", "_mesh": {"enum": "Core.check"}}],
        [{"is": "Core", "_mesh": {"bytes": "xy"}}],
        [{"is": "Core", "_mesh": {"zeros": 10**15}}],
        [{"is": "Core", "_mesh": {"float": "1e5"}}],
        [{"is": "Core", "_mesh": {"is": "Sampling", "seed": 1}}],
        [{"is": "Core", "_mesh": {"is": "Worker"}}],
        [{"is": "Core"}, 7],
    ],
)
def test_what_is_no_checkpoint_is_refused(entries: list[Any]) -> None:
    with pytest.raises(PlanFileError):
        restore(entries, Core)


def test_tokens_salts_and_keys_are_nowhere_in_the_file() -> None:
    """Neither in events and commands, nor in the checkpoint."""
    marks = range(771000, 771040)
    mesh = VirtualMesh([worker_info(vocab_size=10**6)] * 2)
    core = mesh.core
    tape = record(mesh)
    mesh.attach_gateway()
    mesh.attach_worker(0)
    mesh.attach_worker(1)
    for key in range(8):
        asked = submission(key, marks, 8, stop_token_ids=(772001,), prefix_salt=b"secret-of-a-tenant")
        mesh.core.apply(Submitted(1, asked), 0.0)
    sent = [action for action in mesh.core.plan(0.0) if isinstance(action, ToWorker)]
    new = [(each.link, each.command) for each in sent if isinstance(each.command, NewSequence)]
    assert len({link for link, _ in new}) == 2
    for link in (1, 2):
        assert all(command.token_ids == tuple(marks) for _, command in new)
        ids, counts = tuple(command.sequence_id for on, command in new if on == link), BlockCounts(30, 0, 2)
        fault = errors.EngineFaultError("774001")
        ended = tuple(Ended(sequence_id, EndReason.STOP, 772001, fault, 1, 1) for sequence_id in ids)
        mesh.core.apply(StepReported(link, 1, 0, ids, (773001,) * len(ids), (), ended, counts), 0.0)
        mesh.core.apply(KvChanged(link, False, (77501234567890123,), (77601234567890123,)), 0.0)
    mesh.core.plan(0.0)
    assert core.workers[0].prefixes
    events = dumped(tape)
    checkpoint = json.dumps(through_json(Snapshot(core))).encode()
    assert b'"Submitted"' in events
    assert b'"Sequence"' in checkpoint
    for text in (events, checkpoint):
        for secret in (b"77100", b"77200", b"77300", b"77400", b"7750123", b"7760123", b"secret-of"):
            assert secret not in text
            assert secret.hex().encode() not in text


def test_values_conform_to_the_types_of_their_fields() -> None:
    info = worker_info()
    assert conforms(WorkerAttached(1, "host:1", info), WorkerAttached)
    assert not conforms(WorkerAttached("1", "host:1", info), WorkerAttached)  # type: ignore[arg-type]
    assert not conforms(WorkerAttached(True, "host:1", info), WorkerAttached)
    assert not conforms(WorkerAttached(1, "host:1", GatewayAttached(1, "g")), WorkerAttached)  # type: ignore[arg-type]
    assert conforms(submission(1, deadline_s=2), type(submission(1)))
    assert not conforms(submission(1, deadline_s="2"), type(submission(1)))


@pytest.mark.parametrize(
    "value",
    [
        Plan(1, 2, ((1, 2), (3, 4)), (1,), 0),
        Release((1, 2), ReleaseCause.SWAP),
        WorkerInfo("w", 1, "m", "r", "cpu", "float32", 4, 8, 2, 16, 64, 50),
        (1, -0.5, float("-inf"), "x", None, True, b"\x01"),
    ],
)
def test_a_value_goes_through_json(value: Any) -> None:
    assert decode(json.loads(json.dumps(encode(value)))) == value


def test_a_worker_comes_back_without_its_prefixes() -> None:
    worker = Worker(1, "host:1", worker_info())
    worker.prefixes = {123456789}
    again = restore(through_json(Snapshot(worker)), Worker)
    assert again.prefixes == set()
    assert all(hasattr(again, name) for name in hints_of(Worker))


def test_all_that_the_state_is_made_of_is_declared() -> None:
    """Else it would not be written, and not be checked when it is read."""
    mesh, _ = live(2, FOREVER)
    written = through_json(Snapshot(vars(mesh.core)["_core"]))
    names = {each["is"] for each in written if "is" in each}
    assert {"Core", "MeshState", "Fleet", "Pool", "Worker", "CreditLedger", "PlanWindow", "StepTimes"} <= names
    kinds = {CLASSES[name] for name in names} - BLANK_CLASSES
    for each in gc.get_objects():
        if type(each) in kinds:
            slots = {name for cls in type(each).__mro__ for name in getattr(cls, "__slots__", ())}
            attributes = {*vars(each)} if hasattr(each, "__dict__") else slots
            assert attributes == hints_of(type(each)).keys()
            assert attributes - {LOOKUP} == {*shape.shape_of(type(each)).fields}
