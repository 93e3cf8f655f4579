"""Whatever comes, each call is answered as OpenAI's are: never with a bug's status, and streamed as at once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st

from gateway.served_model import ServedModel, load_model
from tercet.sections import ModelSettings

from ..calling_model import answering, write_calling_model

PATHS = ["/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize", "/v1/embeddings"]
# Calls cost too much to look for a smaller failure, and none is large.
FUZZ = settings(
    max_examples=60,
    deadline=None,
    phases=(Phase.explicit, Phase.reuse, Phase.generate),
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)

texts = st.text(max_size=8) | st.sampled_from(["", "auto", "none", "user", "function", "now", "text", "\ud800", "{}"])
leaves = (
    st.none() | st.booleans() | st.integers(-2, 3) | st.sampled_from([10**400, -(2**63), 2**64, 0.5, 1e308]) | texts
)
values = st.recursive(
    leaves, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3), max_leaves=6
)


def objects(likely: dict[str, Any], unlikely: dict[str, Any] | None = None) -> st.SearchStrategy[dict[str, Any]]:
    """Objects with most of the fields, one of which may be anything."""
    right = st.fixed_dictionaries(likely, optional=unlikely)
    odd = st.tuples(right, st.sampled_from(sorted({*likely, *(unlikely or {}), "frobnicate"})), values)
    return right | odd.map(lambda each: each[0] | {each[1]: each[2]})


functions = objects({"name": st.sampled_from(["now", "get"])}, {"description": texts, "parameters": values})
tools = objects({"type": st.just("function"), "function": functions})
calls = objects(
    {
        "id": texts,
        "type": st.just("function"),
        "function": objects({"name": st.just("now"), "arguments": st.sampled_from(["", "{}", '{"a": 1}', "[", "1"])}),
    }
)
messages = objects(
    {"role": st.sampled_from(["user", "system", "developer", "assistant", "tool"]), "content": texts},
    {"name": texts, "tool_calls": st.lists(calls, max_size=2), "tool_call_id": texts},
)
schemas = objects(
    {"type": st.sampled_from(["object", "string", "integer", "array"])},
    {"enum": st.lists(values, max_size=2), "properties": st.dictionaries(texts, values, max_size=2), "pattern": texts},
)
settings_of_all = {
    "model": st.sampled_from(["", "bytes", "alias"]),
    "n": st.integers(1, 3),
    "max_tokens": st.integers(1, 60),
    "temperature": st.floats(0, 2),
    "stop": st.lists(texts, max_size=2),
    "logit_bias": st.dictionaries(st.integers(0, 9).map(str), st.floats(-1, 1), max_size=2),
    "seed": st.integers(0, 9),
    "response_format": objects({"type": st.just("json_schema"), "json_schema": objects({"schema": schemas})}),
    "structured_outputs": objects({}, {"json": schemas, "regex": texts, "choice": st.lists(texts, max_size=2)}),
    "guided_grammar": st.sampled_from(['root ::= "a"', "root ::= root", "("]),
}
bodies = {
    "/v1/completions": objects(
        {"prompt": texts | st.lists(texts, max_size=3) | st.lists(st.integers(0, 300), max_size=4)},
        {**settings_of_all, "logprobs": st.integers(0, 2), "echo": st.booleans(), "prompt_logprobs": st.integers(0, 2)},
    ),
    "/v1/chat/completions": objects(
        {"messages": st.lists(messages, max_size=3)},
        {
            **settings_of_all,
            "tools": st.lists(tools, max_size=3),
            "tool_choice": st.sampled_from(["auto", "none", "required"]) | tools,
            "parallel_tool_calls": st.booleans(),
            "documents": st.lists(objects({"text": texts}), max_size=2),
            "chat_template_kwargs": objects({}, {"mood": values}),
            "add_generation_prompt": st.booleans(),
            "continue_final_message": st.booleans(),
            "logprobs": st.booleans(),
            "top_logprobs": st.integers(0, 1),
            "max_completion_tokens": st.integers(1, 60),
        },
    ),
    "/tokenize": objects({}, {"prompt": texts, "messages": st.lists(messages, max_size=3)}),
    "/detokenize": objects({"tokens": st.lists(st.integers(0, 300), max_size=3)}),
    "/v1/embeddings": objects({"input": texts}),
}
# Those that are answered.
plain = st.text(min_size=1, max_size=8)
asked = {
    "n": st.integers(1, 3),
    "max_tokens": st.integers(1, 150),
    "stop": plain | st.lists(plain | st.sampled_from(["STOP", '"}]', "}"]), max_size=2),
}
completions = st.fixed_dictionaries(
    {"prompt": plain | st.lists(plain, min_size=1, max_size=3) | st.lists(st.integers(0, 262), min_size=1, max_size=4)},
    optional={**asked, "logprobs": st.integers(0, 2), "echo": st.booleans()},
)
CALLING = {
    "messages": [{"role": "user", "content": "hello"}],
    "tools": [{"type": "function", "function": {"name": "now"}}],
}
chats = st.fixed_dictionaries(
    {name: st.just(value) for name, value in CALLING.items()},
    optional={**asked, "logprobs": st.booleans(), "parallel_tool_calls": st.booleans()},
)
NOW = '{"name": "now", "arguments": {"a": [1, "}"]}}'
CALL = f"[TOOL_CALLS][{NOW}"
answers = st.lists(
    st.sampled_from([CALL, f", {NOW}", "[TOOL_CALLS]", "[", "]", ", ", NOW[:20], "世🙂", "hello ", "STOP", "}", " "]),
    max_size=6,
).map("".join)


@pytest.fixture(scope="module")
def model_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_calling_model(tmp_path_factory.mktemp("models") / "calls")


@pytest.fixture(scope="module")
def model(model_path: Path) -> ServedModel:
    return load_model(ModelSettings(model=str(model_path), served_model_name=("bytes", "alias")))


def check(answer: Any) -> None:
    """That an answer is one of those that a client may get."""
    assert answer.status_code in (200, 400, 404), f"{answer.status_code} {answer.text}"
    if answer.status_code != 200:
        error = answer.json()["error"]
        assert error.keys() == {"message", "type", "param", "code"}
        assert error["message"]


def encode(body: Any) -> bytes:
    return json.dumps(body).encode()


async def post(http: Any, path: str, data: bytes, headers: dict[str, str] | None = None) -> Any:
    return await http.post(path, content=data, headers={"content-type": "application/json", **(headers or {})})


def shown(choice: dict[str, Any]) -> list[Any]:
    """Tokens with their logprobs, of a choice or a piece of one."""
    logprobs = choice["logprobs"] or {"content": []}
    if "content" in logprobs:
        return [(each["token"], each["logprob"], each["bytes"]) for each in logprobs["content"]]
    return list(zip(*(logprobs[name] for name in ("tokens", "token_logprobs", "text_offset")), strict=True))


def whole(answer: Any) -> list[dict[str, Any]]:
    """The choices of an answer at once: text, names and arguments of calls, tokens, end."""
    return [
        {
            "text": choice["text"] if "text" in choice else choice["message"]["content"] or "",
            "calls": [
                (call["function"]["name"], call["function"]["arguments"])
                for call in choice.get("message", {}).get("tool_calls", ())
            ],
            "tokens": shown(choice),
            "ends": [(choice["finish_reason"], choice["stop_reason"])],
        }
        for choice in answer.json()["choices"]
    ]


def joined(answer: Any) -> list[dict[str, Any]]:
    """The same of an answer in events."""
    *lines, done, rest = answer.text.split("\n\n")
    assert (done, rest) == ("data: [DONE]", "")
    choices: dict[int, dict[str, Any]] = {}
    for event in map(json.loads, (line.removeprefix("data: ") for line in lines)):
        for choice in event["choices"]:
            found = choices.setdefault(choice["index"], {"text": "", "calls": [], "tokens": [], "ends": []})
            delta = choice.get("delta", {})
            assert not found["ends"]
            found["text"] += choice["text"] if "text" in choice else delta.get("content", "")
            found["tokens"] += shown(choice)
            for call in delta.get("tool_calls", ()):
                if "id" in call:
                    found["calls"].append((call["function"]["name"], ""))
                name, arguments = found["calls"][call["index"]]
                found["calls"][call["index"]] = (name, arguments + call["function"]["arguments"])
            if choice["finish_reason"] is not None:
                found["ends"].append((choice["finish_reason"], choice["stop_reason"]))
    return [choices[index] for index in sorted(choices)]


@FUZZ
@given(
    st.tuples(st.just(PATHS[0]), completions) | st.tuples(st.just(PATHS[1]), chats),
    st.lists(answers, min_size=1, max_size=3),
)
@example((PATHS[1], {**CALLING, "n": 2}), [f"hello {CALL}, {NOW}] x", "STOP"])
@example((PATHS[1], {**CALLING, "parallel_tool_calls": False, "logprobs": True}), [f"{CALL}, {NOW}]"])
async def test_streamed_as_at_once(gateway, http, scheduler, model, call, said):
    path, body = call
    answering(scheduler, model, *said)
    once = await post(http, path, encode(body))
    streamed = await post(http, path, encode({**body, "stream": True}))
    assert (once.status_code, streamed.status_code) == (200, 200), once.text
    assert joined(streamed) == whole(once)
    for choice in whole(once):
        if choice["ends"][0][0] == "tool_calls":
            assert all(isinstance(json.loads(arguments), dict) for _, arguments in choice["calls"])
            assert choice["calls"]


@FUZZ
@given(st.sampled_from(PATHS), st.data())
async def test_any_body(gateway, http, scheduler, model, path, data):
    """Nearly right, any JSON at all, and bytes in which something is broken."""
    answering(scheduler, model, "hello")
    sent = bytearray(encode(data.draw(bodies[path] | values)))
    for _ in range(data.draw(st.integers(0, 2))):
        at = data.draw(st.integers(0, len(sent)))
        sent[at : at + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
    check(await post(http, path, bytes(sent)))


marks = st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=12).map(str.strip)


@FUZZ
@given(
    st.fixed_dictionaries(
        {},
        optional={
            "x-request-id": marks,
            "x-tercet-class": marks,
            "x-tercet-deadline-ms": marks | st.integers(-1, 10**12).map(str),
            "authorization": marks.map("Bearer {}".format).map(str.strip),
            "content-type": st.sampled_from(["application/json", "application/json; charset=utf-8", "text/plain", ""]),
            "content-encoding": st.sampled_from(["identity", "gzip", "br"]),
            "accept": marks,
            "expect": st.just("100-continue"),
            "connection": st.sampled_from(["close", "keep-alive", "upgrade"]),
        },
    )
)
async def test_any_headers(gateway, http, headers):
    answer = await post(http, "/v1/completions", b'{"prompt": "hello", "max_tokens": 3}', headers)
    if answer.status_code == 415:
        assert headers.keys() & {"content-type", "content-encoding"}
    elif answer.status_code in (409, 504):
        assert headers.keys() & {"x-request-id", "x-tercet-deadline-ms"}
    else:
        check(answer)


async def test_paths_that_are_not_there(gateway, http):
    for path in ("/v1", "/v1/", "/v1/completions/", "/V1/MODELS", "/%00", "/metrics/"):
        for method in ("GET", "POST", "PUT", "DELETE", "PATCH", "OPTIONS"):
            answer = await http.request(method, path)
            assert answer.status_code in (404, 405), f"{method} {path}"
            assert answer.json()["error"]["code"] in ("not_found", "method_not_allowed")
