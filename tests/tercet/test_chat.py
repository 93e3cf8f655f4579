"""tercet chat."""

from __future__ import annotations

import signal

import pytest
from command_line import run, start

from tercet import errors
from tercet.ports import free_ports


def test_chat_keeps_the_conversation_until_reset(gateway):
    flags = ["--address", gateway.address, "--system", "be brief", "--cache-salt", "mine"]
    done = run("chat", *flags, stdin="one\n\ntwo\n/reset\nthree\n/quit\nx\n")
    assert done.exit_code == 0
    assert done.stdout.split("\n")[:3] == ["2: one", "4: two", "2: three"]
    roles = [[message.role for message in request.chat.messages] for request in gateway.requests]
    assert roles == [["system", "user"], ["system", "user", "assistant", "user"], ["system", "user"]]
    assert gateway.requests[1].chat.messages[2].content == "2: one"
    assert [request.cache_salt for request in gateway.requests] == ["mine"] * 3


def test_a_turn_that_fails_is_not_in_the_conversation(gateway):
    gateway.failures = [errors.QueueFullError("full up")]
    done = run("chat", "--address", gateway.address, stdin="one\ntwo\nthree\n")
    assert (done.exit_code, done.stdout) == (0, "1: two\n3: three\n")
    assert "QUEUE_FULL" in done.stderr
    turns = [(message.role, message.content) for message in gateway.requests[-1].chat.messages]
    assert turns == [("user", "two"), ("assistant", "1: two"), ("user", "three")]


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
    question, answer, _ = gateway.requests[1].chat.messages
    assert (question.role, question.content, answer.role) == ("user", "forever", "assistant")
    assert answer.content.startswith("1: forever")
