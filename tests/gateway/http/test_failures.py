"""Typed errors as HTTP answers."""

from __future__ import annotations

import json
from pathlib import Path

import openai
import pytest
from openai.types import completion_create_params
from openai.types.chat import completion_create_params as chat_create_params

from gateway.http.asked import read_chat, read_completion
from gateway.http.failures import KINDS, failure_of
from tercet import errors
from tercet.mesh.v1 import sequence_pb2


def test_every_error_has_a_status():
    assert KINDS.keys() == errors.request_error_types().keys()
    assert {status for status, _ in KINDS.values()} <= {400, 401, 403, 404, 408, 409, 429, 499, 500, 501, 503, 504}


@pytest.mark.parametrize("reason", list(KINDS))
def test_an_answer_has_openais_form(reason):
    error = errors.from_reason(reason, "what happened", {"field": "sampling.top_p"}, retry_after_s=1.0001)
    failure = failure_of(error)
    assert failure.status == KINDS[reason][0]
    body = json.loads(failure.body)["error"]
    assert body.keys() == {"message", "type", "param", "code"}
    assert (body["message"], body["param"]) == ("what happened", "top_p")
    assert (failure.headers["retry-after"], failure.headers["retry-after-ms"]) == ("2", "1001")
    assert failure.headers["x-should-retry"] == "true"
    assert failure_of(errors.from_reason(reason, "")).headers["x-should-retry"] == "false"


@pytest.mark.parametrize(
    ("field", "parameter"),
    [
        ("", None),
        ("prompt", "prompt"),
        ("token_ids[3]", "prompt"),
        ("chat", "messages"),
        ("chat.messages[3].role", "messages[3].role"),
        ("chat.messages[3].tool_calls[1].arguments", "messages[3].tool_calls[1].function.arguments"),
        ("chat.tools[3].parameters", "tools[3].function.parameters"),
        ("chat.tools", "tools"),
        ("chat.forced_tool", "tool_choice"),
        ("chat.template_kwargs", "chat_template_kwargs"),
        ("messages[3].content", "messages[3].content"),
        ("sampling.logit_bias[3].token_id", "logit_bias"),
        ("stop.strings[1]", "stop"),
        ("stop.max_tokens", "max_completion_tokens"),
        ("traffic_class", "x-tercet-class"),
    ],
)
def test_a_field_is_called_as_the_client_called_it(field, parameter):
    error = errors.InvalidFieldError("wrong", field=field)
    assert failure_of(error, {"max_tokens": "max_completion_tokens"}).parameter == parameter


@pytest.mark.parametrize(
    ("path", "body", "parameter"),
    [
        ("completions", {}, "prompt"),
        ("completions", {"prompt": []}, "prompt"),
        ("completions", {"prompt": [[1], "a"]}, "prompt[1]"),
        ("completions", {"prompt": [1, "a"]}, "prompt[1]"),
        ("completions", {"prompt": [280]}, "prompt"),
        ("completions", {"prompt": "a", "max_tokens": 0}, "max_tokens"),
        ("completions", {"prompt": "a", "max_tokens": "9"}, "max_tokens"),
        ("completions", {"prompt": "a", "temperature": -1}, "temperature"),
        ("completions", {"prompt": "a", "temperature": True}, "temperature"),
        ("completions", {"prompt": "a", "temperature": 10**400}, "temperature"),
        ("completions", {"prompt": "a", "n": 1.5}, "n"),
        ("completions", {"prompt": "a", "n": 2, "best_of": 3}, "best_of"),
        ("completions", {"prompt": "a", "echo": True, "logprobs": 21}, "logprobs"),
        ("completions", {"prompt": "a", "prompt_logprobs": 21}, "prompt_logprobs"),
        ("completions", {"prompt": "a", "prompt_logprobs": -1}, "prompt_logprobs"),
        ("completions", {"prompt": "a", "prompt_logprobs": 1, "stream": True}, "prompt_logprobs"),
        ("completions", {"prompt": "a", "prompt_logprobs": 21, "echo": True, "logprobs": 1}, "prompt_logprobs"),
        ("completions", {"prompt": "a", "bad_words": ["a", 1]}, "bad_words[1]"),
        ("completions", {"prompt": "a", "bad_words": ["a", ""]}, "bad_words"),
        ("completions", {"prompt": "a", "suffix": "b"}, "suffix"),
        ("completions", {"prompt": "a", "stop": [""]}, "stop"),
        ("completions", {"prompt": "a", "stop": ["a", 1]}, "stop[1]"),
        ("completions", {"prompt": "a", "logit_bias": {"x": 1}}, "logit_bias"),
        ("completions", {"prompt": "a", "logit_bias": {"-1": 1}}, "logit_bias"),
        ("completions", {"prompt": "a", "logit_bias": {"1": "1"}}, "logit_bias.1"),
        ("completions", {"prompt": "a", "seed": 2**64}, "seed"),
        ("completions", {"prompt": "a", "stream_options": {}}, "stream_options"),
        ("completions", {"prompt": "a", "stream": True, "stream_options": {"x": 1}}, "stream_options.x"),
        ("completions", {"prompt": "a", "guided_regex": "a*("}, "guided_regex"),
        ("completions", {"prompt": "a", "structured_outputs": {"json": {"multipleOf": 2}}}, "structured_outputs"),
        ("completions", {"prompt": "a", "guided_regex": "a", "guided_choice": ["a"]}, "guided_choice"),
        ("completions", {"prompt": "a", "include_stop_str_in_output": 1}, "include_stop_str_in_output"),
        ("completions", {"prompt": "a", "messages": []}, "messages"),
        ("completions", {"prompt": "\ud800"}, "prompt"),
        ("chat/completions", {}, "messages"),
        ("chat/completions", {"messages": []}, "messages"),
        ("chat/completions", {"messages": ["hello"]}, "messages[0]"),
        ("chat/completions", {"messages": [{"role": "user"}]}, "messages[0].content"),
        ("chat/completions", {"messages": [{"content": "a"}]}, "messages[0].role"),
        ("chat/completions", {"messages": [{"role": "me", "content": "a"}]}, "messages[0].role"),
        ("chat/completions", {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
         "messages[0].content[0].type"),
        ("chat/completions", {"messages": [{"role": "user", "content": "a"}],
                              "tools": [{"type": "function", "function": {"name": "f"}}]}, "tools"),
        ("chat/completions", {"messages": [{"role": "user", "content": "a"}],
                              "response_format": {"type": "xml"}}, "response_format"),
        ("chat/completions", {"messages": [{"role": "user", "content": "a"}], "top_logprobs": 1}, "top_logprobs"),
        ("chat/completions", {"messages": [{"role": "user", "content": "a"}], "logprobs": True, "top_logprobs": 21},
         "top_logprobs"),
        ("chat/completions", {"messages": [{"role": "user", "content": "a"}], "max_completion_tokens": 0},
         "max_completion_tokens"),
        ("chat/completions", {"messages": [{"role": "user", "content": "a"}], "frobnicate": 1}, "frobnicate"),
    ],
)  # fmt: skip
async def test_what_is_wrong_is_named(http, path, body, parameter):
    # Python's json writes half a surrogate pair as JSON may have it.
    answer = await http.post(
        f"/v1/{path}", content=json.dumps(body).encode(), headers={"content-type": "application/json"}
    )
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert (error["type"], error["code"]) == ("invalid_request_error", "invalid_field")
    assert error["param"] == parameter


def test_a_message_names_what_the_client_wrote():
    def told(message, field, renamed=None):
        return failure_of(errors.InvalidFieldError(message, field=field), renamed).message

    call = "chat.messages[1].tool_calls[0].arguments"
    assert told(f"{call} is not JSON", call) == "messages[1].tool_calls[0].function.arguments is not JSON"
    renamed = {"structured_output": "response_format"}
    assert told("structured_output has 9 bytes", "structured_output", renamed) == "response_format has 9 bytes"
    # A word that is one of the language as well.
    assert told("m has no chat template", "chat") == "m has no chat template"


@pytest.mark.parametrize(
    ("path", "content", "status"),
    [
        ("/v1/completions", b'{"prompt": "a", "top_p": 2}', 400),
        ("/v1/completions", b"{", 400),
        ("/v1/embeddings", b"{}", 404),
        ("/nothing", b"{}", 404),
        ("/health", b"{}", 405),
        ("/v1/chat/completions", b'{"messages": [{"role": "user", "content": "a"}]}', 429),
    ],
)
async def test_an_error_names_its_request(http, scheduler, path, content, status):
    scheduler.refuse = sequence_pb2.Failure(reason="QUEUE_FULL", message="full")
    kind = {"content-type": "application/json"}
    named = await http.post(path, content=content, headers={**kind, "x-request-id": "mine"})
    assert (named.status_code, named.headers["x-request-id"]) == (status, "mine")
    made = await http.post(path, content=content, headers={**kind, "x-request-id": "has spaces"})
    assert made.headers["x-request-id"].startswith("req-")


async def test_openais_client_raises_its_own_errors(client):
    with pytest.raises(openai.NotFoundError) as lost:
        await client.completions.create(model="gone", prompt="a")
    assert (lost.value.code, lost.value.param) == ("model_not_found", "model")
    assert "bytes" in lost.value.message
    with pytest.raises(openai.BadRequestError) as long:
        await client.completions.create(model="bytes", prompt="a" * 1000)
    assert long.value.code == "context_length_exceeded"
    with pytest.raises(openai.BadRequestError) as odd:
        await client.chat.completions.create(model="bytes", messages=[{"role": "user", "content": "a"}], top_p=0)
    assert (odd.value.param, odd.value.code) == ("top_p", "invalid_field")
    with pytest.raises(openai.NotFoundError, match="not offered"):
        await client.embeddings.create(model="bytes", input="a")


async def test_each_error_is_one_of_openais(client, scheduler):
    classes = {
        400: openai.BadRequestError, 401: openai.AuthenticationError, 403: openai.PermissionDeniedError,
        404: openai.NotFoundError, 409: openai.ConflictError, 429: openai.RateLimitError,
    }  # fmt: skip
    for reason, (status, kind) in KINDS.items():
        scheduler.refuse = sequence_pb2.Failure(reason=reason, message="so it is")
        with pytest.raises(openai.APIStatusError, match="so it is") as caught:
            await client.chat.completions.create(model="bytes", messages=[{"role": "user", "content": reason}])
        error = caught.value
        rest = openai.InternalServerError if status >= 500 else openai.APIStatusError
        assert type(error) is classes.get(status, rest)
        assert (error.status_code, error.type, error.code) == (
            status,
            kind,
            failure_of(errors.from_reason(reason, "")).code,
        )
        assert error.response.headers["x-should-retry"] == "false"


@pytest.mark.parametrize(
    ("read", "least", "parameters"),
    [
        (read_completion, {"prompt": "a"}, completion_create_params.CompletionCreateParamsStreaming),
        (
            read_chat,
            {"messages": [{"role": "user", "content": "a"}]},
            chat_create_params.CompletionCreateParamsStreaming,
        ),
    ],
)
def test_every_parameter_of_openais_client_is_known(read, least, parameters):
    """Taken, or refused as what it is, or ignored and named: not refused as something that nobody knows."""
    unknown = []
    for name in parameters.__annotations__:
        try:
            read({**least, name: {"odd": 1}})
        except errors.InvalidFieldError as error:
            unknown += [name] if error.message.startswith(f"there is no parameter {name!r}") else []
    assert {"stream", "temperature"} <= parameters.__annotations__.keys()
    assert unknown == []


@pytest.mark.parametrize(
    ("content", "kind", "status"),
    [
        (b"", "application/json", 400),
        (b"{", "application/json", 400),
        (b"[]", "application/json", 400),
        (b"\xff\xfe", "application/json", 400),
        (b'{"prompt": NaN}', "application/json", 400),
        (b'{"prompt": "a", "prompt": "b"}', "application/json", 400),
        (b'{"n": 1' + b"0" * 5000 + b"}", "application/json", 400),
        (b"[" * 100_000, "application/json", 400),
        (b'{"a": [' + b"[]," * 1_000_000 + b"1]}", "application/json", 400),
        (b'{"a": [' + b'"",' * 1_000_000 + b'""]}', "application/json", 400),
        (b'{"prompt": "a"}', "text/plain", 415),
        (b'{"prompt": "a"}', "", 415),
        (b" " * (8 * 1024 * 1024 + 1), "application/json", 413),
    ],
)
async def test_a_body_that_is_no_request_is_refused(http, content, kind, status):
    answer = await http.post("/v1/completions", content=content, headers={"content-type": kind} if kind else {})
    assert answer.status_code == status, answer.text
    assert answer.json()["error"]["type"] == "invalid_request_error"


async def test_a_compressed_body_is_refused(http):
    answer = await http.post("/v1/completions", json={}, headers={"content-encoding": "gzip"})
    assert answer.status_code == 415


async def test_a_large_prompt_of_marks_is_no_large_number_of_values(http):
    answer = await http.post("/v1/completions", json={"prompt": '[{,"\\' * 100_000})
    assert answer.json()["error"]["code"] == "context_length_exceeded"


async def test_other_paths_and_methods_are_refused(http):
    lost = await http.get("/v1/responses")
    assert (lost.status_code, lost.json()["error"]["code"]) == (404, "not_found")
    wrong = await http.get("/v1/completions")
    assert (wrong.status_code, wrong.json()["error"]["code"]) == (405, "method_not_allowed")
    assert wrong.headers["allow"] == "POST"


def test_every_code_has_its_place_on_the_page():
    page = (Path(__file__).parents[3] / "docs" / "openai.md").read_text(encoding="utf-8")
    # Clients alone say the first; one that does not read is not told.
    for reason in KINDS.keys() - {"GATEWAY_LOST", "SLOW_CONSUMER"}:
        assert f"`{failure_of(errors.from_reason(reason, '')).code}`" in page, reason
