"""Files that are no plan logs, or no longer: one clear error, whatever they hold."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from recorded import dumped, record, reread

from scheduler.events import StepReported
from scheduler.plan_log.conform import conforms
from scheduler.plan_log.plan_file import PlanFile, read_plan_file
from scheduler.plan_log.replay import replay
from scheduler.plan_log.shape import CLASSES, hints_of, is_blank
from scheduler.plan_log.view import round_lines
from scheduler.simulator.mesh import VirtualMesh, submission
from tercet.errors import PlanFileError


def made() -> bytes:
    mesh = VirtualMesh()
    gateway = mesh.attach_gateway()
    mesh.attach_worker()
    mesh.submit(gateway, submission(1, max_tokens=12))
    mesh.run(0.03)
    tape = record(mesh)
    mesh.submit(gateway, submission(2, max_tokens=3, n=2))
    mesh.run()
    return dumped(tape)


DATA = made()
LINES = DATA.splitlines(keepends=True)


def test_the_file_as_it_is_can_be_replayed() -> None:
    assert replay(reread(DATA)).equal


def test_a_file_that_ends_early_is_refused_wherever_it_ends() -> None:
    for length in range(0, len(DATA) - 1, 7):
        with pytest.raises(PlanFileError, match=r"^line \d+: "):
            reread(DATA[:length])


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"", "line 1: this is no file of tercet dump-plans"),
        (b"\x00\x01\x02GGUF", "line 1: this is no file of tercet dump-plans"),
        (b"[1]\n", "line 1: this is no file of tercet dump-plans"),
        (b"{}\n", "line 1: this is no file of tercet dump-plans"),
        (b"[" * 70_000, "line 1: this is no file of tercet dump-plans"),
        (b'{"tercet_plan_log": 2}\n', "line 1: the file has format 2, this version reads 1"),
        (b'{"tercet_plan_log": 1}\n', "line 1: the header has no version"),
        (b'{"tercet_plan_log": 1, "version": "1", "written_at": NaN}\n', "line 1: nan is no time in seconds"),
        (LINES[0] + b"nonsense\n", "line 2: the line is no JSON"),
        (LINES[0] + b"[]\n", "line 2: the line is no JSON object"),
        (LINES[0] + b'{"now": 1}\n', "line 2: this is no round"),
        (LINES[0] + b'{"end": 0}\n', "line 2: lines are missing before the end"),
        # However many follow.
        (DATA[: -len(LINES[-1])] + 2 * LINES[-2], f"line {len(LINES)}: there are more rounds than the header says"),
        (DATA + b"\n", f"line {len(LINES)}: something follows the end"),
        (b"".join(LINES[:1] + LINES[2:]), f"line {len(LINES) - 1}: lines are missing before the end"),
        (LINES[0] + b'{"objects":' + b"[" * 100_000 + b"\n", "line 2: the line is nested too deeply"),
    ],
)
def test_what_is_wrong_is_named_with_its_line(data: bytes, problem: str) -> None:
    with pytest.raises(PlanFileError) as caught:
        read_plan_file(io.BytesIO(data))
    assert str(caught.value) == problem


def with_event(change: Callable[[dict[str, Any]], None]) -> bytes:
    lines = [json.loads(line) for line in LINES]
    index = next(i for i, line in enumerate(lines) if any(e["is"] == "StepReported" for e in line.get("events", ())))
    event = next(event for event in lines[index]["events"] if event["is"] == "StepReported")
    change(event)
    return b"".join(json.dumps(line).encode() + b"\n" for line in lines)


@pytest.mark.parametrize(
    "change",
    [
        lambda event: event.update(plan_seq="one"),
        lambda event: event.update(link=None),
        lambda event: event.update(link=[1]),
        lambda event: event.update(extra=1),
        lambda event: event.pop("step"),
        lambda event: event.pop("sequence_ids"),
        lambda event: event.update(sequence_ids=[1, "2"]),
        lambda event: event.update(sequence_ids=3),
        lambda event: event.update(blocks=[1, 2, 3]),
        lambda event: event.update(prefills=[{"is": "BlockCounts", "free": 1, "cached": 1, "used": 1}]),
        lambda event: event.update({"is": "Plan"}),
        lambda event: event.update({"is": ["Plan"]}),
        lambda event: event.update({"is": "os.system"}),
    ],
)
def test_an_event_of_another_make_is_refused(change: Callable[[dict[str, Any]], None]) -> None:
    with pytest.raises(PlanFileError, match=r"^line \d+: "):
        reread(with_event(change))


def outcome_of(data: bytes) -> None:
    """Reads, replays and shows: an error of the one kind, or an outcome."""
    try:
        file: PlanFile = reread(data)
        replay(file, lambda played: [*round_lines(file, played)] and None)
    except PlanFileError:
        pass


@settings(max_examples=150)
@given(data=st.data())
def test_a_damaged_file_gives_an_error_or_an_outcome(data: st.DataObject) -> None:
    place = data.draw(st.integers(0, len(DATA) - 1))
    patch = data.draw(
        st.binary(min_size=0, max_size=3) | st.sampled_from([b"0", b"9", b"-", b"null", b'"', b"{}", b"[]"])
    )
    outcome_of(DATA[:place] + patch + DATA[place + data.draw(st.integers(0, 3)) :])


@settings(max_examples=150)
@given(data=st.data())
def test_a_value_of_another_kind_gives_an_error_or_an_outcome(data: st.DataObject) -> None:
    """JSON as it should be, one value of which is something else."""
    lines = [json.loads(line) for line in LINES]
    node: Any = lines[data.draw(st.integers(0, len(lines) - 1))]
    while True:
        keys = list(node) if isinstance(node, dict) else list(range(len(node)))
        if not keys:
            break
        key = data.draw(st.sampled_from(keys))
        child = node[key]
        if isinstance(child, (dict, list)) and child and data.draw(st.integers(0, 3)):
            node = child
            continue
        node[key] = data.draw(
            st.sampled_from([None, True, -1, 0, 5, 2**70, 1.5, "x", [], {}, [1], {"ref": 0}, {"ref": 3}, {"zeros": 4}])
        )
        break
    outcome_of(b"".join(json.dumps(line).encode() + b"\n" for line in lines))


def fields_of_first(name: str) -> list[str]:
    found = [each for line in LINES for each in json.loads(line).get("objects", ()) if each.get("is") == name]
    return [field for field in found[0] if field != "is"]


# What can change of the core's state, but for the containers.
STATE = (
    *("Core", "MeshState", "Fleet", "Pool", "WaitingQueue", "Request", "Sequence"),
    *("Worker", "CreditLedger", "PlanWindow", "FlyingPlan", "StepTimes", "PlanPace"),
)


@pytest.mark.parametrize("wrong", [{"ref": 0}, "x", [[]], 1.5])
@pytest.mark.parametrize("name", STATE)
def test_a_field_in_the_checkpoint_of_another_type_is_refused(name: str, wrong: Any) -> None:
    """Any field: whatever the core would make of it, it is no bug of the core."""
    for field in fields_of_first(name):
        lines = [json.loads(line) for line in LINES]
        next(each for line in lines for each in line.get("objects", ()) if each.get("is") == name)[field] = wrong
        data = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
        if is_blank(field) or (wrong in ("x", 1.5) and conforms(wrong, hints_of(CLASSES[name])[field])):
            outcome_of(data)
            continue
        with pytest.raises(PlanFileError):
            replay(reread(data))


def test_a_value_deep_in_a_sequence_of_the_checkpoint_has_its_type() -> None:
    data = DATA.replace(b'"top_k":0', b'"top_k":{"ref":0}', 1)
    assert data != DATA
    with pytest.raises(PlanFileError, match="has a value of a wrong type"):
        replay(reread(data))


def test_what_is_in_a_container_of_the_checkpoint_has_its_type() -> None:
    lines = [json.loads(line) for line in DATA.splitlines()]
    objects = [each for line in lines for each in line.get("objects", ())]
    mesh = next(each for each in objects if each.get("is") == "MeshState")
    objects[mesh["actions"]["ref"]]["list"] = [1]
    data = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
    with pytest.raises(PlanFileError, match=r"MeshState\.actions in the checkpoint has a value of a wrong type"):
        replay(reread(data))


@pytest.mark.parametrize("tag", ["zeros", "zero_list"])
def test_lengths_are_bounded_each_and_together(tag: str) -> None:
    def with_lengths(*lengths: int) -> bytes:
        return LINES[0] + b"".join(json.dumps({"objects": [{"x": {tag: each}}]}).encode() + b"\n" for each in lengths)

    with pytest.raises(PlanFileError, match="line 2: 67108864 is no whole number up to"):
        reread(with_lengths(1 << 26))
    with pytest.raises(PlanFileError, match="lengths add up to more than a file of this size can have"):
        reread(with_lengths(*[1 << 20] * 8))
    with pytest.raises(PlanFileError, match="its end is missing"):
        reread(with_lengths(1 << 20))


def test_steps_of_the_same_sequences_share_them() -> None:
    """Else a short file could name many sequences once, and then report thousands of steps of them."""
    file = reread(DATA)
    steps = [event for each in file.rounds for event in each.events if isinstance(event, StepReported)]
    assert any(a.sequence_ids is b.sequence_ids and a.token_ids is b.token_ids for a, b in pairwise(steps))


@pytest.mark.parametrize(("name", "count"), [("cancels", 1 << 40), ("max_num_seqs", 1 << 30)])
def test_counts_of_what_is_done_one_by_one_are_bounded(name: str, count: int) -> None:
    data = re.sub(rb'("%s":)\d+' % name.encode(), rb"\g<1>%d" % count, DATA, count=1)
    assert data != DATA
    with pytest.raises(PlanFileError, match=f"{count} is no whole number up to"):
        replay(reread(data))
