import json
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

import tercet
from tercet.cli import main
from tercet.cli.demo import private, summary
from tercet.cli.services import is_public
from tercet.cli.settings import flag_names, with_config
from tercet.client import Accepted, Answer, Finished, FleetInfo, OutputEnd
from tercet.config import MeshConfig, load_config, setting_keys
from tercet.mesh_layout import layout
from tercet.messages import Timings, Usage, WorkerInfo, to_answer
from tercet.ports import check_port_free, free_ports

ROOT = Path(tercet.__file__).resolve().parents[1]
COMMANDS = ["up", "gateway", "scheduler", "worker", "generate", "chat", "tokenize", "fleet", "doctor", "demo"]
COMMANDS += ["simulate", "dump-plans", "replay-plans"]


def run(*arguments: str, stdin: str | None = None):
    return CliRunner().invoke(main, arguments, input=stdin)


def start(*arguments: str, **options) -> subprocess.Popen:
    env = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
    return subprocess.Popen(
        [sys.executable, "-m", "tercet", *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=env,
        **options,
    )


def test_help_lists_every_command():
    shown = run("--help").output
    assert all(re.search(rf"^  {name} ", shown, re.MULTILINE) for name in COMMANDS)
    assert run("--version").output == f"tercet, version {tercet.__version__}\n"


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(command):
    done = run(command, "--help")
    assert done.exit_code == 0
    assert "Usage:" in done.output


def test_an_unknown_command_is_an_error():
    assert run("serve").exit_code == 2


def test_help_needs_neither_torch_nor_services():
    code = (
        "import sys\n"
        "from click.testing import CliRunner\n"
        "from tercet.cli import main\n"
        f"for name in {COMMANDS!r}: CliRunner().invoke(main, [name, '--help'])\n"
        "print([m for m in ('torch', 'gateway', 'scheduler', 'worker', 'tokenizers') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert done.stdout.strip() == "[]"


def _flags_of(command: str) -> str:
    return CliRunner().invoke(main, [command, "--help"], terminal_width=200).output


def test_up_has_a_flag_for_every_setting_but_the_links():
    shown = _flags_of("up")
    for key in setting_keys():
        if key not in ("gateway.scheduler", "scheduler.workers"):
            assert any(f"--{flag}" in shown for flag in _possible(key)), key
    assert "--gateway-port" in shown
    assert "--worker-port" in shown
    assert " --port" not in shown


@pytest.mark.parametrize("service", ["gateway", "scheduler", "worker"])
def test_a_service_has_its_own_settings_unprefixed_and_no_others(service):
    shown = _flags_of(service)
    for key in setting_keys():
        section, _, name = key.partition(".")
        flag = f"--{name.replace('_', '-')}"
        if section == service or (section == "model" and service != "scheduler"):
            assert f"{flag} " in shown or f"{flag}/" in shown, key
    assert ("[model]" in shown) == (service != "scheduler")
    assert "--log-level" in shown
    assert "--worker-port" not in shown


def _possible(key: str) -> set[str]:
    section, _, name = key.replace("_", "-").partition(".")
    return {name, f"{section}-{name}"}


def test_flag_names_are_bare_where_unique():
    assert flag_names(["gateway.port", "worker.port", "worker.dtype", "log.level"]) == [
        "gateway-port",
        "worker-port",
        "dtype",
        "log-level",
    ]
    assert flag_names(["worker.port", "worker.max_num_seqs"]) == ["port", "max-num-seqs"]


def test_flags_override_environment_and_file(tmp_path):
    seen = []

    @click.command()
    @with_config(["worker", "model"])
    def probe(config: MeshConfig) -> None:
        seen.append(config)

    file = tmp_path / "mesh.toml"
    file.write_text("[worker]\nport = 1\nmax_num_seqs = 1\nblock_size = 8\nenable_prefix_caching = true\n")
    arguments = ["--config", str(file), "--port", "3", "--kv-cache-memory", "2GiB", "--no-enable-prefix-caching"]
    arguments += ["--served-model-name", "a,b", "--served-model-name", "c"]
    env = {"TERCET_WORKER_PORT": "2", "TERCET_WORKER_MAX_NUM_SEQS": "2"}
    done = CliRunner().invoke(probe, arguments, env=env, catch_exceptions=False)
    assert done.exit_code == 0
    worker = seen[0].worker
    assert (worker.port, worker.max_num_seqs, worker.block_size) == (3, 2, 8)
    assert worker.kv_cache_memory == 2 << 30
    assert worker.enable_prefix_caching is False
    assert seen[0].model.served_model_name == ("a", "b", "c")


@pytest.mark.parametrize(
    ("arguments", "key"),
    [
        (["worker", "--max-num-seqs", "many"], "worker.max_num_seqs"),
        (["worker", "--dtype", "float8"], "worker.dtype"),
        (["gateway", "--port", "99999"], "gateway.port"),
        (["scheduler", "--workers", "nowhere"], "scheduler.workers"),
        (["up", "--worker-port", "-1"], "worker.port"),
        (["up", "--log-level", "loud"], "log.level"),
        (["demo", "--block-size", "3"], "worker.block_size"),
        (["worker", "--config", "/no/such/file.toml"], "config"),
    ],
)
def test_a_wrong_flag_is_one_line_that_names_the_key_and_exit_code_2(arguments, key):
    done = run(*arguments)
    assert done.exit_code == 2
    assert done.stderr.startswith(f"tercet: {key}: ")
    assert len(done.stderr.splitlines()) == 1
    assert done.stdout == ""


@pytest.mark.parametrize("variable", ["TERCET_WORKER_PROT", "TERCET_WORKR_PORT", "TERCET_FOO"])
def test_a_wrong_variable_names_itself(variable):
    done = CliRunner().invoke(main, ["worker"], env={variable: "1"})
    assert done.exit_code == 2
    assert done.stderr.startswith(f"tercet: {variable}: ")


def test_every_wrong_setting_has_its_line():
    done = CliRunner().invoke(main, ["doctor", "--gateway-port", "abc"], env={"TERCET_MODEL_MODEL": ""})
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr.splitlines() == [
        "tercet: model.model: must not be empty",
        "tercet: gateway.port: must be a whole number, is 'abc'",
    ]


# ------------------------------------------------------------------------------------------ what standard output bears


@pytest.mark.parametrize(
    "arguments",
    [["generate", "forever", "--raw"], ["generate", "count 3000", "--raw", "--json"], ["fleet"], ["tokenize", "a b"]],
)
def test_a_reader_that_leaves_ends_the_command_quietly(gateway, arguments):
    with start(*arguments, "--address", gateway.address) as process:
        if "forever" in arguments:
            assert process.stdout.read(5) == "again"
        process.stdout.close()
        problem = process.stderr.read()
    assert problem == ""
    if "forever" in arguments:
        assert process.returncode == 1
        assert gateway.cancelled.wait(10)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is full")
@pytest.mark.parametrize("arguments", [["generate", "hi", "--json"], ["generate", "forever", "--raw"], ["fleet"]])
def test_a_full_disk_is_one_line(gateway, arguments):
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "tercet", *arguments, "--address", gateway.address],
            stdout=full, stderr=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)}, timeout=60,
        )  # fmt: skip
    assert (done.returncode, done.stderr) == (1, "tercet: cannot write: No space left on device\n")


@pytest.mark.parametrize("command", [["generate", "-"], ["tokenize", "-"], ["chat"]])
@pytest.mark.parametrize("locale", ["C.UTF-8", "C", "POSIX"])
def test_input_that_is_not_utf_8_is_said_to_be(gateway, command, locale):
    done = subprocess.run(
        [sys.executable, "-m", "tercet", *command, "--address", gateway.address],
        input=b"a\xffb\n", capture_output=True, timeout=60,
        env={**os.environ, "PYTHONPATH": str(ROOT), "LC_ALL": locale},
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (1, b"")
    assert done.stderr == b"tercet: INVALID_FIELD: standard input is not UTF-8 (byte 1)\n"


# ---------------------------------------------------------------------------------------------------------- generate


def test_generate_streams_text_as_a_user_message(gateway):
    done = run("generate", "Hello there", "--address", gateway.address)
    assert (done.exit_code, done.stdout) == (0, "1: Hello there\n")
    (message,) = gateway.requests[0].chat.messages
    assert (message.role, message.content) == ("user", "Hello there")


def test_generate_raw_and_models_without_template_send_the_prompt_as_it_stands(gateway):
    assert run("generate", "count 2", "--raw", "--address", gateway.address).stdout == "0 1 \n"
    gateway.chat = False
    assert run("generate", "count 2", "--address", gateway.address).stdout == "0 1 \n"
    assert run("generate", "x", "--chat", "--address", gateway.address).stdout == "1: x\n"


def test_generate_reads_standard_input(gateway):
    assert run("generate", "-", "--raw", "--address", gateway.address, stdin="count 1").stdout == "0 \n"


def test_generate_passes_every_option(gateway):
    flags = {
        "--temperature": "0.5", "--top-p": "0.25", "--top-k": "7", "--min-p": "0.125", "--seed": str(2**63),
        "--max-tokens": "9", "--stop-token-id": "5", "--timeout": "30", "--model": "fake", "-n": "2",
        "--class": "batch", "--priority": "-3", "--cache-salt": "mine",
    }  # fmt: skip
    pairs = [part for pair in flags.items() for part in pair]
    done = run("generate", "hi", "--address", gateway.address, *pairs, "--stop", "a b", "--stop", "c", "--ignore-eos")
    assert done.exit_code == 0, done.output
    request = gateway.requests[0]
    sampling = request.sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p) == (0.5, 0.25, 7, 0.125)
    assert (sampling.seed, request.stop.max_tokens, request.stop.ignore_eos) == (2**63, 9, True)
    assert (list(request.stop.strings), list(request.stop.token_ids)) == (["a b", "c"], [5])
    assert (request.model, sampling.n, request.traffic_class, request.priority) == ("fake", 2, "batch", -3)
    assert request.cache_salt == "mine"


def test_generate_wants_a_token_at_least(gateway):
    done = run("generate", "hi", "--max-tokens", "0", "--address", gateway.address)
    assert done.exit_code == 2
    assert "0 is not in the range 1<=x<=4294967295" in done.stderr
    assert gateway.requests == []


def test_generate_json_is_one_object(gateway):
    done = run("generate", "count 2", "--raw", "--json", "--address", gateway.address)
    answer = json.loads(done.stdout)
    assert len(done.stdout.splitlines()) == 1
    assert {"text", "token_ids", "finish_reason", "usage", "timings"} <= set(answer)
    assert (answer["text"], answer["token_ids"], answer["finish_reason"]) == ("0 1 ", [100, 101], "stop")
    assert answer["usage"]["completion_tokens"] == 2
    assert answer["timings"]["time_to_first_token_seconds"] == 0.5


def test_generate_shows_several_outputs_under_headings(gateway):
    done = run("generate", "count 2", "--raw", "-n", "3", "--address", gateway.address)
    assert done.exit_code == 0
    assert done.stdout == "--- 1 of 3\n0 1 \n--- 2 of 3\n1:0 1:1 more\n--- 3 of 3\n2:0 2:1 more\n"
    done = run("generate", "refuse", "--raw", "-n", "3", "--address", gateway.address)
    assert (done.exit_code, done.stdout) == (1, "")


def test_generate_json_has_all_outputs_and_the_first_beside_them(gateway):
    done = run("generate", "count 1", "--raw", "--json", "-n", "2", "--address", gateway.address)
    answer = json.loads(done.stdout)
    assert answer["outputs"] == [
        {"text": "0 ", "token_ids": [100], "finish_reason": "stop", "stop": "!", "seed": 9},
        {"text": "1:0 more", "token_ids": [1000, 7], "finish_reason": "length", "stop": None, "seed": 10},
    ]
    assert {**answer["outputs"][0], **answer} == answer


@pytest.mark.parametrize("flags", [["-n", "0"], ["-n", "129"], ["--priority", "101"], ["--priority", "x"]])
def test_a_flag_out_of_range_is_refused_before_anything_is_asked(gateway, flags):
    assert run("generate", "hi", *flags, "--address", gateway.address).exit_code == 2
    assert gateway.requests == []


def test_an_empty_prompt_is_left_to_the_gateway_to_refuse(gateway):
    run("generate", "", "--address", gateway.address)
    assert gateway.requests[0].WhichOneof("input") == "prompt"


@pytest.mark.parametrize("as_json", [[], ["--json"]])
def test_generate_reports_reason_and_message_with_exit_code_1(gateway, as_json):
    done = run("generate", "refuse", "--raw", "--address", gateway.address, *as_json)
    assert (done.exit_code, done.stdout, done.stderr) == (1, "", "tercet: QUEUE_FULL: full up\n")
    done = run("generate", "x", "--model", "other", "--address", gateway.address, *as_json)
    assert (done.exit_code, done.stderr) == (1, "tercet: MODEL_NOT_FOUND: no model other\n")
    done = run("generate", "silent", "--raw", "--timeout", "0.2", "--address", gateway.address, *as_json)
    assert (done.exit_code, done.stderr.split(": ")[1]) == (1, "DEADLINE_PASSED")


@pytest.mark.parametrize("command", [["generate", "x"], ["fleet"], ["tokenize", "x"]])
def test_no_gateway_is_said_at_once(command):
    (port,) = free_ports(1)
    done = run(*command, "--address", f"127.0.0.1:{port}")
    assert done.exit_code == 1
    assert done.stderr.startswith(f"tercet: GATEWAY_LOST: no gateway answers at 127.0.0.1:{port}")


def test_ctrl_c_cancels_the_request_and_exits_with_130(gateway):
    with start("generate", "forever", "--raw", "--address", gateway.address) as process:
        assert process.stdout.read(6) == "again "
        process.send_signal(signal.SIGINT)
        _, problem = process.communicate(timeout=20)
    assert process.returncode == 130
    assert problem.strip() == ""
    assert gateway.cancelled.wait(10)


# -------------------------------------------------------------------------------------------------------------- chat


def test_chat_keeps_the_conversation_until_reset(gateway):
    flags = ["--address", gateway.address, "--system", "be brief", "--cache-salt", "mine"]
    done = run("chat", *flags, stdin="one\n\ntwo\n/reset\nthree\n/quit\nx\n")
    assert done.exit_code == 0
    assert done.stdout.split("\n")[:3] == ["2: one", "4: two", "2: three"]
    roles = [[message.role for message in request.chat.messages] for request in gateway.requests]
    assert roles == [["system", "user"], ["system", "user", "assistant", "user"], ["system", "user"]]
    assert gateway.requests[1].chat.messages[2].content == "2: one"
    assert [request.cache_salt for request in gateway.requests] == ["mine"] * 3


def test_chat_ends_with_its_input_and_when_the_gateway_is_lost(gateway):
    assert run("chat", "--address", gateway.address, stdin="one").exit_code == 0
    (port,) = free_ports(1)
    done = run("chat", "--address", f"127.0.0.1:{port}", stdin="one\ntwo\n")
    assert done.exit_code == 1
    assert "GATEWAY_LOST" in done.stderr


def test_chat_finds_out_at_once_whether_it_can_talk(gateway):
    (port,) = free_ports(1)
    done = run("chat", "--address", f"127.0.0.1:{port}", stdin="")
    assert done.exit_code == 1
    assert done.stderr.startswith(f"tercet: GATEWAY_LOST: no gateway answers at 127.0.0.1:{port}")
    done = run("chat", "--address", gateway.address, "--model", "other", stdin="")
    assert (done.exit_code, done.stderr) == (1, "tercet: MODEL_NOT_FOUND: no model other\n")


@pytest.mark.parametrize("line", ["/help", "/help me", "/halp", "/"])
def test_chat_answers_a_command_that_it_does_not_know_with_those_it_knows(gateway, line):
    done = run("chat", "--address", gateway.address, stdin=f"{line}\n")
    assert (done.exit_code, done.stdout) == (0, "")
    assert "/reset" in done.stderr
    assert "/quit" in done.stderr
    assert (f"{line} is not a command" in done.stderr) == ("help" not in line)
    assert gateway.requests == []


def test_chat_lets_a_path_through(gateway):
    assert run("chat", "--address", gateway.address, stdin="/etc/hosts is what?\n").stdout == "1: /etc/hosts is what?\n"


def test_ctrl_c_in_chat_stops_the_answer_and_keeps_talking(gateway):
    with start("chat", "--address", gateway.address) as process:
        process.stdin.write("forever\n")
        process.stdin.flush()
        assert process.stdout.read(len("1: forever")) == "1: forever"
        process.send_signal(signal.SIGINT)
        assert gateway.cancelled.wait(20)
        rest, problem = process.communicate("and now\n", timeout=20)
    assert process.returncode == 0
    assert "[stopped]" in problem
    assert rest.rstrip().endswith("3: and now")
    assert gateway.requests[1].chat.messages[1].content.startswith("1: forever")


# ------------------------------------------------------------------------------------------------- fleet, tokenize


def test_fleet_shows_workers_and_blocks(gateway):
    done = run("fleet", "--address", gateway.address)
    assert done.exit_code == 0
    assert "0 waiting, 0 running, 0 finished" in done.stdout
    assert "worker 127.0.0.1:1: fake on cpu, 0 sequences" in done.stdout
    assert "KV blocks: 0 used, 2 cached, 8 free of 10" in done.stdout
    state = json.loads(run("fleet", "--json", "--address", gateway.address).stdout)
    assert state["workers"][0]["blocks_total"] == 10


def test_fleet_shows_swaps_and_who_drains(gateway):
    shown = run("fleet", "--address", gateway.address).stdout
    assert "5 preemptions, 3 by swap" in shown
    assert "swapped" not in shown
    assert "draining" not in shown
    gateway.swap_blocks, gateway.draining = 8, True
    shown = run("fleet", "--address", gateway.address).stdout
    assert "swapped to host memory: 4 of 8 blocks" in shown
    assert "0 tokens in 0 steps, draining" in shown
    state = json.loads(run("fleet", "--json", "--address", gateway.address).stdout)
    assert (state["swaps"], state["workers"][0]["swap_blocks_used"], state["workers"][0]["draining"]) == (3, 4, True)


def test_tokenize_prints_ids(gateway):
    assert json.loads(run("tokenize", "ab cde", "--address", gateway.address).stdout) == [2, 3]
    assert json.loads(run("tokenize", "-", "--chat", "--address", gateway.address, stdin="abcd").stdout) == [4]


# ---------------------------------------------------------------------------------------------------------- up, demo


def test_the_demo_runs_beside_anything():
    config = private(load_config(None, None, {"gateway.host": "0.0.0.0", "worker.port": 9}))
    assert {config.gateway.port, config.scheduler.port, config.worker.port} == {0}
    assert config.gateway.host == "127.0.0.1"
    assert len({member.settings.port for member in layout(config)}) == 3


def _answer(tokens: int, first_s: float, total_s: float) -> Answer:
    ends = (OutputEnd("stop", None),)
    finished = Finished(ends, Usage(5, 0, tokens, 3, 2), Timings(0.0, first_s, total_s, 0.0))
    return to_answer([("Paris.", (1,) * tokens)], Accepted("r", "m", "v", 0, 1, 5), finished)


def test_the_demo_sums_up_in_one_line():
    worker = WorkerInfo("a:1", True, "m", "cpu", 0, 100, 90, 10, 0, 8, 8)
    line = summary(_answer(9, 0.25, 2.25), FleetInfo(0, 0, 1, 0, (worker,)))
    assert line == (
        "9 tokens · first token after 250 ms · 4.0 tokens/s · KV blocks: 3 used, 2 freed, 0 of 100 in use now"
    )
    assert " - tokens/s" in summary(_answer(1, 0.25, 0.25), FleetInfo(0, 0, 1, 0, ()))


def test_up_that_cannot_listen_starts_nothing_and_leaves_no_folder(tmp_path):
    """A port in use, an address of another host, two services on one port: all are known before anything starts."""
    ports = free_ports(3)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        used = taken.getsockname()[1]
        for flags, key in (
            ([f"--gateway-port={used}", f"--scheduler-port={ports[1]}"], "gateway.port"),
            (["--worker-host=192.0.2.1", f"--gateway-port={ports[0]}", f"--scheduler-port={ports[1]}"], "worker.port"),
            ([f"--gateway-port={ports[0]}", f"--scheduler-port={ports[0]}"], "scheduler.port"),
        ):
            done = subprocess.run(
                [sys.executable, "-m", "tercet", "up", *flags, f"--worker-port={ports[2]}"],
                capture_output=True, text=True, timeout=60,
                env={**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)},
            )  # fmt: skip
            assert (done.returncode, done.stdout) == (2, "")
            assert done.stderr.startswith(f"tercet: {key}: ")
            assert len(done.stderr.splitlines()) == 1
            assert "choose another port" not in done.stderr or f"with --{key.replace('.', '-')}" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_service_alone_that_cannot_listen_names_the_flag_it_has():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        done = subprocess.run(
            [sys.executable, "-m", "tercet", "scheduler", f"--port={taken.getsockname()[1]}"],
            capture_output=True, text=True, timeout=60, env={**os.environ, "PYTHONPATH": str(ROOT)},
        )  # fmt: skip
    assert done.returncode == 2
    assert "scheduler.port: cannot listen on" in done.stderr
    assert done.stderr.endswith("choose another port with --port\n")
    assert "--port " in run("scheduler", "--help").stdout


def test_up_whose_reader_left_before_the_start_leaves_no_folder(tmp_path):
    reader, writer = os.pipe()
    os.close(reader)
    flags = [f"--{name}-port=0" for name in ("gateway", "scheduler", "worker")]
    done = subprocess.run(
        [sys.executable, "-m", "tercet", "up", *flags],
        stdout=writer, stderr=subprocess.PIPE, text=True, timeout=60,
        env={**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)},
    )  # fmt: skip
    os.close(writer)
    assert (done.returncode, done.stderr) == (1, "")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("host", "public"),
    [("127.0.0.1", False), ("127.9.9.9", False), ("::1", False), ("localhost", False), ("0.0.0.0", True), ("::", True),
     ("192.0.2.1", True), ("no.such.host.invalid", False)],
)  # fmt: skip
def test_what_other_hosts_can_reach_is_known(host, public):
    assert is_public(host) == public


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_a_service_that_others_can_reach_says_so(host):
    with start("scheduler", "--host", host, "--port", "0", "--log-format", "json") as process:
        lines = []
        for line in process.stderr:
            lines.append(json.loads(line))
            if lines[-1]["event"] == "ready":
                break
        process.terminate()
        process.communicate(timeout=30)
    warnings = [(line["level"], line["host"]) for line in lines if line["event"] == "listens_publicly"]
    assert warnings == ([] if host == "127.0.0.1" else [("warning", host)])


def test_up_says_why_a_service_failed_and_leaves_nothing(tmp_path):
    """Real services: a model that is not there fails the start of gateway or worker."""
    ports = free_ports(3)
    flags = [f"--{name}-port={port}" for name, port in zip(("gateway", "scheduler", "worker"), ports, strict=True)]
    with start("up", "--model", str(tmp_path / "absent"), *flags, "--log-dir", str(tmp_path / "logs")) as process:
        out, problem = process.communicate(timeout=120)
    assert process.returncode == 2, (out, problem)
    assert "failed" in out
    assert f"{tmp_path}/absent does not exist" in out
    assert "Traceback" not in out + problem
    for port in ports:
        check_port_free("up", "127.0.0.1", port)
