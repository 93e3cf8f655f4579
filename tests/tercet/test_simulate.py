"""``tercet simulate``: one report on standard output, the wall clock on standard error."""

import contextlib
import dataclasses
import json
import os
import pty
import signal
import subprocess
import sys

import pytest
from click.testing import CliRunner

from scheduler.simulator.study import Study
from tercet.cli import main
from tercet.cli.simulate import simulate

SMALL = ["--requests=40", "--prompt-tokens=100:0.5", "--output-tokens=10", "--rate=50"]


def run(*arguments: str):
    return CliRunner().invoke(main, ["simulate", *arguments])


def test_json_is_one_object_and_nothing_of_it_depends_on_the_wall_clock():
    done = run(*SMALL, "--seed=5", "--json")
    assert done.exit_code == 0
    assert done.stdout == run(*SMALL, "--seed=5", "--json").stdout
    report = json.loads(done.stdout)
    assert report["study"]["seed"] == 5
    assert report["requests"] == {"completed": 40, "cancelled": 0, "failed": {}, "refused": {}}
    assert report["tokens"] == 400
    assert done.stderr.startswith("simulated ")
    assert done.stdout != run(*SMALL, "--seed=6", "--json").stdout


def test_the_table_says_the_same():
    shown = run(*SMALL, "--classes=interactive,batch", "--rate=0", "--max-queued-requests=5").stdout
    report = json.loads(
        run(*SMALL, "--classes=interactive,batch", "--rate=0", "--max-queued-requests=5", "--json").stdout
    )
    requests = report["requests"]
    assert f"{requests['completed']} completed" in shown
    assert f"{requests['refused']['QUEUE_FULL']} refused (QUEUE_FULL)" in shown
    assert "all at once offered" in shown
    lines = {line[:22].strip(): line[22:].split() for line in shown.splitlines()}
    assert lines["time to first token"] == [f"{number:.1f}" for number in report["ttft_ms"].values()]
    assert lines["batch"] == [f"{number:.1f}" for number in report["flows"]["batch"]["ttft_ms"].values()]


def test_each_flow_has_a_line_of_what_became_of_it():
    options = [
        "--rate=0",
        "--max-queued-requests=5",
        "--flow=chat:tenant=a,share=3",
        "--flow=nightly:class=batch,tenant=b,output=20",
        "--tenant=a",
        "--tenant=b:max_concurrent=1",
    ]
    shown = run(*SMALL, *options).stdout
    flows = json.loads(run(*SMALL, *options, "--json").stdout)["flows"]
    assert set(flows["nightly"]["refused"]) == {"TENANT_QUOTA"}
    for name, flow in flows.items():
        (row,) = [line.split() for line in shown.splitlines() if line.startswith(f"{name} ")]
        numbers = [flow[key] for key in ("offered", "accepted", "completed", "qualified")]
        assert row[:6] == [name, flow["traffic_class"], *map(str, numbers)]
        assert [f"{count} {reason}" for reason, count in flow["refused"].items()] == [
            part for part in " ".join(row[7:]).split(", ") if part
        ]
    assert "chat " not in run(*SMALL, "--flow=chat").stdout


@pytest.mark.parametrize(
    ("flag", "said"),
    [
        ("--workers=0", "--workers: 0 is too small; at least 1"),
        ("--workers=many", "'many' is not a valid integer"),
        ("--prompt-tokens=x", "--prompt-tokens: 'x' is not MEAN[:SIGMA[:MOST]]"),
        ("--classes=gold", "--classes: 'gold' is not NAME=WEIGHT"),
        ("--flow=chat:color=blue", "--flow: 'chat:color=blue' is not NAME:KEY=VALUE,... with keys of class, tenant"),
        ("--tenant=a:weight=0", "--tenant: 'a:weight=0': weight must be a number from 0.001 to 1000, is '0'"),
        ("--tenant=a:max_context=4294967296", "max_context must be a whole number from 0 to 4,294,967,295"),
        ("--speed-spread=nan", "Invalid value for '--speed-spread': nan is not a finite number"),
        ("--traffic-class=chat:weight=2", "--traffic-class: classes.chat: there is no such class"),
        ("--admission-mode=perhaps", "--admission-mode: 'perhaps' is none of off, shadow, enforce"),
        ("--max-model-len=64", "--max-model-len: 100 of prompt + 10 of output are more than that"),
    ],
)
def test_an_option_that_makes_no_sense_is_named_and_nothing_is_printed(flag, said):
    done = run(*SMALL, flag)
    assert done.exit_code == 2
    assert said in done.stderr
    assert done.stdout == ""


def test_a_flow_of_a_tenant_that_is_not_named_is_an_error_where_others_are():
    done = run(*SMALL, "--tenant=shop", "--flow=chat:tenant=shpo")
    assert (done.exit_code, done.stdout) == (2, "")
    assert "--flow: 'chat': there is no tenant 'shpo'; there are shop" in done.stderr
    for named in (["--tenant=shop"], []):
        done = run(*SMALL, *named, "--flow=chat:tenant=shop", "--flow=rest")
        assert (done.exit_code, done.stdout) == (2, "")
        assert "--flow: 'rest': it is of no tenant; there are shop" in done.stderr


def test_tenants_that_only_flows_name_have_no_limits():
    flows = ("--flow=chat:tenant=shop", "--flow=nightly:tenant=archive,class=batch")
    named = ("--tenant=shop", "--tenant=archive")
    told = [json.loads(run(*SMALL, *flows, *more, "--json").stdout) for more in ((), named)]
    assert [each.pop("study")["tenant"] for each in told] == [[], ["shop", "archive"]]
    assert told[0] == told[1]
    assert told[0]["requests"]["refused"] == {}


def test_every_option_of_a_study_has_a_flag_with_the_same_default():
    flags = simulate.make_context("simulate", []).params
    assert flags.pop("as_json") is False
    assert flags == {field.name: field.default for field in dataclasses.fields(Study)}


def test_it_is_listed():
    assert "simulate" in CliRunner().invoke(main, ["--help"]).output
    assert "--shared-prefix RATIO[:TOKENS[:COUNT]]" in run("--help").output


def test_the_table_says_why_requests_were_refused():
    lines = run("--requests=5", "--n=1000").stdout.splitlines()
    assert "5 refused" in lines[0]
    assert ", the first: " in lines[1]
    assert lines[2].startswith("rate ")


def test_an_interruption_is_one_line_and_exits_with_130(monkeypatch):
    def interrupted(self, progress):
        progress(7)
        raise KeyboardInterrupt

    monkeypatch.setattr(Study, "run", interrupted)
    done = run("--requests=40")
    assert done.exit_code == 130
    assert done.stdout == ""
    assert done.stderr.startswith("tercet: interrupted: 7 of 40 requests were over")
    assert len(done.stderr.splitlines()) == 1


def test_ctrl_c_takes_the_progress_away_and_leaves_one_line():
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "tercet", "simulate", "--requests=10000000", "--rate=50"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=theirs) as process:
        os.close(theirs)
        shown = b""
        while b"requests" not in shown:
            shown += os.read(ours, 1000)
        process.send_signal(signal.SIGINT)
        # A terminal whose other end is closed gives an error where a pipe gives nothing.
        with contextlib.suppress(OSError):
            while part := os.read(ours, 1000):
                shown += part
        assert process.stdout.read() == b""
    os.close(ours)
    assert process.returncode == 130
    *progress, said = shown.decode().rstrip().split("\r")
    assert said.startswith("tercet: interrupted: ")
    assert progress[-1].strip() == ""
    assert "Traceback" not in said
