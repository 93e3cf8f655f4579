"""``tercet dump-plans`` and ``tercet replay-plans``: files, exit codes, lines."""

from __future__ import annotations

import asyncio
import io
import json
import os
import stat
import threading

import pytest
from click.testing import CliRunner

from scheduler.admission import QueueBounds
from scheduler.core_settings import CoreSettings
from scheduler.events import GatewayAttached, Submitted, TimePassed, WorkerAttached
from scheduler.plan_log.recorder import recorded_core
from scheduler.policy import Policy
from scheduler.simulator.small import submission, worker_info
from tercet import __version__
from tercet.cli import main
from tercet.cli.dump_plans import fetch
from tercet.client import AsyncClient
from tercet.errors import DeadlineError
from tercet.rpc import Server
from tercet.v1 import operations_pb2, operations_pb2_grpc


def run(*arguments: str, stdin: bytes | None = None):
    return CliRunner().invoke(main, arguments, input=stdin)


@pytest.fixture(scope="module")
def plan_log() -> bytes:
    core, recorder = recorded_core(CoreSettings(("host:1",), Policy(4, 0), QueueBounds(10, 1000)), 100)
    events = [
        GatewayAttached(1, "gateway-1"),
        WorkerAttached(2, "host:1", worker_info()),
        Submitted(1, submission(1, n=2)),
        TimePassed(),
    ]
    for number, event in enumerate(events):
        recorder.note(float(number), [event], core.handle(event, float(number)))
    return b"".join(recorder.dump(9.0, 1_800_000_009.0))


def test_the_file_is_what_came(gateway, tmp_path):
    gateway.plan_log = [b"one\n", b"", b"two\n"]
    file = tmp_path / "plans"
    done = run("dump-plans", str(file), "--address", gateway.address)
    assert (done.exit_code, done.stderr) == (0, f"{file}: 8 bytes\n")
    assert file.read_bytes() == b"one\ntwo\n"
    assert list(tmp_path.iterdir()) == [file]
    gateway.plan_log = [b"three"]
    assert run("dump-plans", str(file), "--address", gateway.address).exit_code == 0
    assert file.read_bytes() == b"three"


def test_it_can_go_to_standard_output(gateway):
    gateway.plan_log = [b"\xff\x00", b"two"]
    done = run("dump-plans", "-", "--address", gateway.address)
    assert (done.exit_code, done.stdout_bytes, done.stderr) == (0, b"\xff\x00two", "")


@pytest.mark.parametrize("before", [None, b"as it was"])
def test_a_failure_leaves_the_file_as_it_was(gateway, tmp_path, before):
    gateway.plan_log, gateway.plan_log_fails = [b"half"], True
    file = tmp_path / "plans"
    if before is not None:
        file.write_bytes(before)
    done = run("dump-plans", str(file), "--address", gateway.address)
    assert (done.exit_code, done.stderr) == (1, "tercet: SCHEDULER_LOST: no scheduler\n")
    assert [each.read_bytes() for each in tmp_path.iterdir()] == ([] if before is None else [before])


def test_a_file_that_cannot_be_written_is_one_line(gateway, tmp_path):
    done = run("dump-plans", str(tmp_path / "nowhere" / "plans"), "--address", gateway.address)
    assert done.exit_code == 1
    assert done.stderr == f"tercet: cannot write {tmp_path}/nowhere/plans: No such file or directory\n"


def test_a_pipe_is_written_to_and_not_replaced(gateway, tmp_path):
    gateway.plan_log = [b"one", b"two"]
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    read: list[bytes] = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_bytes()))
    reader.start()
    assert run("dump-plans", str(pipe), "--address", gateway.address).exit_code == 0
    reader.join(20)
    assert read == [b"onetwo"]
    assert stat.S_ISFIFO(pipe.stat().st_mode)


async def test_a_log_that_stops_coming_is_a_deadline():
    """From a server that says one thing and then nothing more."""

    class Stuck(operations_pb2_grpc.OperationsServicer):
        async def DumpPlanLog(self, request, context):
            yield operations_pb2.PlanLogPart(data=b"one")
            await asyncio.sleep(3600)

    server = Server()
    operations_pb2_grpc.add_OperationsServicer_to_server(Stuck(), server.grpc_server)
    port = await server.start("127.0.0.1", 0, [operations_pb2.DESCRIPTOR], key="gateway.port")
    file = io.BytesIO()
    try:
        with pytest.raises(DeadlineError, match=r"nothing for 0\.5 s"):
            await fetch(AsyncClient(f"127.0.0.1:{port}"), file, silence_s=0.5)
    finally:
        await server.stop(0)
    assert file.getvalue() == b"one"


def test_a_replay_says_what_it_found(plan_log, tmp_path):
    file = tmp_path / "plans"
    file.write_bytes(plan_log)
    done = run("replay-plans", str(file))
    assert done.exit_code == 0
    assert done.output == (
        "replayed 4 of 4 rounds over 3.000 s: 4 events, 2 plans, 3 commands to workers\nevery decision is the same\n"
    )
    assert run("replay-plans", "-", stdin=plan_log).output == done.output
    facts = json.loads(run("replay-plans", str(file), "--json").output)
    assert facts["equal"]
    assert (facts["rounds"], facts["rounds_recorded"], facts["plans"], facts["difference"]) == (4, 4, 2, None)


def test_show_lists_rounds_for_people(plan_log):
    lines = run("replay-plans", "-", "--show", stdin=plan_log).output.splitlines()
    assert lines == [
        "1 08:00:00.000  gateway gateway-1 is there",
        "2 08:00:01.000  link 2: worker worker-sim at host:1, 32 blocks",
        "3 08:00:02.000  request req-1 for tiny: prompt of 3 tokens, at most 8 more, 2 outputs",
        "                  accepted as sequence 1, 2; 0 ahead in the queue",
        "                  to link 2: sequence 1 of 3 tokens, at most 11, forks 2",
        "                  to link 2: plan 1 of 4 steps; chunks 1: 3; joins 1",
        "                  to link 2: plan 2 of 4 steps",
        "4 08:00:03.000  time passed",
        *lines[-2:],
    ]
    assert lines[-1] == "every decision is the same"


def test_a_difference_is_shown_and_exits_with_1(plan_log):
    other = plan_log.replace(b'"num_steps":4,"chunks":[[1,3]]', b'"num_steps":3,"chunks":[[1,3]]')
    assert other != plan_log
    done = run("replay-plans", "-", stdin=other)
    assert done.exit_code == 1
    lines = done.output.splitlines()
    assert lines[1] == "the first difference, in round 3 at 2.000000 s: another command is made"
    assert json.loads(lines[2].partition(": ")[2])["num_steps"] == 3
    assert json.loads(lines[3].partition(": ")[2])["num_steps"] == 4
    done = run("replay-plans", "-", "--json", stdin=other)
    assert done.exit_code == 1
    assert json.loads(done.output)["difference"]["round"] == 3


@pytest.mark.parametrize(
    ("cut", "problem"),
    [(0, "line 1: this is no file of tercet dump-plans"), (-1, "the line is cut off"), (-11, "is missing")],
)
def test_what_is_no_plan_log_exits_with_2(plan_log, tmp_path, cut, problem):
    file = tmp_path / "plans"
    file.write_bytes(plan_log[:cut] if cut != -1 else plan_log[:-3])
    done = run("replay-plans", str(file))
    assert done.exit_code == 2
    assert done.output.startswith(f"tercet: {file}: ")
    assert problem in done.output
    assert len(done.output.splitlines()) == 1


def test_a_file_that_is_not_there_exits_with_2(tmp_path):
    done = run("replay-plans", str(tmp_path / "plans"))
    assert (done.exit_code, done.output) == (2, f"tercet: cannot read {tmp_path}/plans: No such file or directory\n")
    assert run("replay-plans", str(tmp_path)).exit_code == 2


def test_a_file_of_another_version_is_called_one(plan_log):
    header, _, rest = plan_log.partition(b"\n")
    other = json.dumps({**json.loads(header), "version": "0.0.1"}).encode() + b"\n" + rest
    done = run("replay-plans", "-", stdin=other)
    assert done.exit_code == 0
    assert done.output.startswith(f"the file is of version 0.0.1, this is {__version__}\nreplayed 4 of 4 rounds")


def test_show_and_json_exclude_each_other(plan_log):
    done = run("replay-plans", "-", "--show", "--json", stdin=plan_log)
    assert done.exit_code == 2
    assert "choose one" in done.output
