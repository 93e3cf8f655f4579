"""What all commands share: help, flags, and the lines that say what is wrong with them."""

from __future__ import annotations

import re
import subprocess
import sys

import click
import pytest
from click.testing import CliRunner
from click.types import FloatParamType
from command_line import ROOT, run

import tercet
from tercet.cli import main
from tercet.cli.finite import FiniteNumber, FiniteRange
from tercet.cli.root import to_text
from tercet.cli.settings import flag_names, with_config
from tercet.config import setting_keys
from tercet.errors import QueueFullError
from tercet.sections import MeshConfig

COMMANDS = ["up", "gateway", "scheduler", "worker", "generate", "chat", "tokenize", "fleet", "doctor", "demo"]
COMMANDS += ["tenant", "top", "simulate", "dump-plans", "replay-plans"]


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
        if key not in ("gateway.scheduler", "scheduler.workers", "scheduler.peers"):
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


def test_one_flag_sets_all_there_is_of_classes(tmp_path):
    seen = []

    @click.command()
    @with_config(["scheduler"])
    def probe(config: MeshConfig) -> None:
        seen.append(config.classes)

    file = tmp_path / "mesh.toml"
    file.write_text("[classes.batch]\nweight = 2\nmax_steps = 4\n")
    arguments = [
        "--config",
        str(file),
        "--class",
        "batch.weight=3",
        "--class",
        "rag.enabled=no",
        "--class",
        "own.rank=7",
    ]
    env = {"TERCET_CLASSES_BATCH_MAX_STEPS": "5", "TERCET_CLASSES_OWN_WEIGHT": "0.5"}
    done = CliRunner().invoke(probe, arguments, env=env, catch_exceptions=False)
    assert done.exit_code == 0
    classes = seen[0]
    assert list(classes) == ["interactive", "batch", "own"]
    assert (classes["batch"].weight, classes["batch"].max_steps) == (3.0, 5)
    assert (classes["own"].rank, classes["own"].weight) == (7, 0.5)
    # Only where a scheduler is started.
    assert "--class" in _flags_of("scheduler")
    assert "--class NAME" not in _flags_of("worker")


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
        (["scheduler", "--class", "batch.weight=0"], "classes.batch.weight"),
        (["up", "--class", "batch.weight"], "--class"),
        (["up", "--class", "weight=3"], "classes.weight"),
        (["scheduler", "--default-class", "none"], "scheduler.default_class"),
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


def _options(command: click.Command):
    if isinstance(command, click.Group):
        for name in command.list_commands(click.Context(command)):
            yield from _options(command.get_command(click.Context(command), name))
    else:
        yield from ((command.name, parameter) for parameter in command.params)


def test_no_number_of_an_option_is_infinite():
    floats = [
        (command, option)
        for command, option in _options(main)
        if isinstance(option.type, FloatParamType | click.FloatRange)
    ]
    assert {"simulate", "rotate", "generate", "top", "up"} <= {command for command, _ in floats}
    for command, option in floats:
        assert isinstance(option.type, FiniteNumber | FiniteRange), (command, option.name)
        for value in ("nan", "inf", "-inf"):
            with pytest.raises(click.BadParameter):
                option.type.convert(value, option, None)


@pytest.mark.parametrize("address", ["127.0.0.1:99999", "127.0.0.1", "127.0.0.1:0", "::1:50051", ":1", ""])
@pytest.mark.parametrize("command", ["fleet", "chat", "top"])
def test_an_address_that_cannot_be_is_named(command, address):
    done = run(command, "--address", address)
    assert (done.exit_code, done.stdout) == (2, "")
    assert "Invalid value for '--address': must be host:port" in done.stderr


@pytest.mark.parametrize("timeout", ["nan", "inf", "1e300", "0"])
def test_a_timeout_is_a_time(timeout):
    done = run("generate", "hello", "--timeout", timeout)
    assert (done.exit_code, "Invalid value for '--timeout'" in done.stderr) == (2, True)


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(None, "full"), (0.0, "full"), (0.003, "full; try again in 0.003 s"), (61.5, "full; try again in 61.5 s")],
)
def test_an_error_says_when_another_try_may_succeed(seconds, said):
    assert to_text(QueueFullError("full", retry_after_s=seconds)) == f"QUEUE_FULL: {said}"
