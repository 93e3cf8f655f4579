"""tercet generate."""

from __future__ import annotations

import json
import math
import signal

import pytest
from command_line import run, start

from tercet.ports import free_ports
from tercet.v1 import inference_pb2 as pb


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
        "--class": "batch", "--priority": "-3", "--cache-salt": "mine", "--repetition-penalty": "1.5",
        "--logprobs": "4", "--prompt-logprobs": "3", "--frequency-penalty": "-0.5", "--presence-penalty": "0.25",
        "--min-tokens": "3", "--request-id": "mine",
    }  # fmt: skip
    pairs = [part for pair in flags.items() for part in pair]
    lists = ["--stop", "a b", "--stop", "c", "--bad-word", "d", "--bad-word", "e f"]
    lists += ["--logit-bias", "7=-2.5", "--logit-bias", "9=1e1", "--allowed-token-id", "7", "--allowed-token-id", "9"]
    done = run("generate", "hi", "--address", gateway.address, *pairs, *lists, "--ignore-eos", "--include-stop")
    assert done.exit_code == 0, done.output
    request = gateway.requests[0]
    sampling = request.sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p) == (0.5, 0.25, 7, 0.125)
    assert (sampling.seed, request.stop.max_tokens, request.stop.ignore_eos) == (2**63, 9, True)
    assert (list(request.stop.strings), list(request.stop.token_ids)) == (["a b", "c"], [5])
    assert (request.model, sampling.n, request.traffic_class, request.priority) == ("fake", 2, "batch", -3)
    assert (request.cache_salt, request.request_id) == ("mine", "mine")
    assert [(each.token_id, each.bias) for each in sampling.logit_bias] == [(7, -2.5), (9, 10)]
    assert list(sampling.allowed_token_ids) == [7, 9]
    assert (sampling.repetition_penalty, sampling.frequency_penalty, sampling.presence_penalty) == (1.5, -0.5, 0.25)
    assert (request.stop.min_tokens, sampling.logprobs, sampling.prompt_logprobs) == (3, 4, 3)
    assert (list(sampling.bad_words), request.stop.include_stop_string) == (["d", "e f"], True)


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        (["--logit-bias", "7"], "'7' is not ID=X"),
        (["--logit-bias", "x=1"], "'x' is not a valid int"),
        (["--logit-bias", "-1=1"], "-1 is not in the range"),
        (["--logit-bias", "7=nan"], "nan is not a finite number"),
        (["--logit-bias", "7="], "'' is not a valid float"),
        (["--logit-bias", "7=1", "--logit-bias", "7=2"], "there are two of token 7"),
        (["--allowed-token-id", "-1"], "-1 is not in the range"),
    ],
)
def test_generate_says_what_is_wrong_with_tokens(gateway, flags, problem):
    done = run("generate", "hi", "--address", gateway.address, *flags)
    assert (done.exit_code, gateway.requests) == (2, [])
    assert problem in done.stderr


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


def test_generate_json_has_the_logprobs_of_the_prompt(gateway):
    logprobs = [pb.TokenLogprobs(logprob=-math.inf, top_token_ids=[7, 8], top_logprobs=[-0.25, -math.inf])]
    gateway.prompt_logprobs = [pb.PromptLogprobs(token_offset=1, token_ids=[5], logprobs=logprobs)]
    flags = ["--raw", "--json", "--address", gateway.address]
    answer = json.loads(run("generate", "count 1", "--prompt-logprobs", "1", *flags).stdout)
    assert answer["prompt_logprobs"] == {
        "token_offset": 1,
        "token_ids": [5],
        "logprobs": [{"logprob": -9999.0, "top": [[7, -0.25], [8, -9999.0]]}],
    }
    assert json.loads(run("generate", "count 1", *flags).stdout)["prompt_logprobs"] is None


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
        {
            "text": "0 ",
            "token_ids": [100],
            "finish_reason": "stop",
            "stop": "!",
            "logprobs": [],
            "tool_calls": [],
            "seed": 9,
        },
        {
            "text": "1:0 more",
            "token_ids": [1000, 7],
            "finish_reason": "length",
            "stop": None,
            "logprobs": [],
            "tool_calls": [],
            "seed": 10,
        },
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
    assert (done.exit_code, done.stdout, done.stderr) == (1, "", "tercet: QUEUE_FULL: full up; try again in 1.5 s\n")
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


def test_the_longest_deadline_is_one(gateway):
    done = run("generate", "count 2", "--raw", "--address", gateway.address, "--timeout", "31536000")
    assert (done.exit_code, done.stdout) == (0, "0 1 \n")
