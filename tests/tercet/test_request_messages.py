"""What a client can ask is what the contract offers."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import pytest
from google.protobuf.descriptor import Descriptor
from google.protobuf.message import Message

from tercet.client.option_names import OptionNames
from tercet.errors import InvalidFieldError
from tercet.messages import ChatMessage, Options, Tool, ToolCall
from tercet.request_messages import to_request
from tercet.v1 import inference_pb2 as pb

# None of them has its default.
EVERYTHING = Options(
    model="m",
    temperature=0.5,
    top_p=0.5,
    top_k=5,
    min_p=0.5,
    seed=5,
    max_tokens=5,
    stop=("a", "b"),
    include_stop_string=True,
    stop_token_ids=(5,),
    ignore_eos=True,
    repetition_penalty=0.5,
    frequency_penalty=0.5,
    presence_penalty=0.5,
    logit_bias={5: 0.5},
    allowed_token_ids=(5,),
    bad_words=("c", "d"),
    min_tokens=5,
    request_id="r",
    n=5,
    logprobs=5,
    prompt_logprobs=5,
    priority=5,
    traffic_class="batch",
    cache_salt="s",
    tools=(Tool("get", "gets", "{}"),),
    tool_choice="required",
    forced_tool="get",
    parallel_tool_calls=False,
    documents=("{}",),
    add_generation_prompt=False,
    continue_final_message=True,
    template_kwargs="{}",
)
# Of which a request can have one.
FORMS: dict[str, Any] = {
    "json_object": True, "json_schema": "{}", "regex": "a+", "choice": ("a", "b"), "ebnf": 'root ::= "a"',
}  # fmt: skip
# There is nothing to ask for by it: it is refused unless it equals n.
LEFT_OUT = {"sampling.best_of"}
OF_CHATS = {
    "tools", "tool_choice", "forced_tool", "parallel_tool_calls", "documents", "add_generation_prompt",
    "continue_final_message", "template_kwargs",
}  # fmt: skip


def _offered(message: Descriptor, path: str = "") -> Iterator[str]:
    for field in message.fields:
        yield path + field.name
        if field.message_type is not None:
            yield from _offered(field.message_type, f"{path}{field.name}.")


def _sent(message: Message, path: str = "") -> Iterator[str]:
    for field, value in message.ListFields():
        yield path + field.name
        if field.message_type is not None:
            for item in value if field.is_repeated else [value]:
                yield from _sent(item, f"{path}{field.name}.")


def _plain(options: Options) -> Options:
    """Without what only chats have."""
    none: dict[str, Any] = {name: getattr(Options(), name) for name in OF_CHATS}
    return dataclasses.replace(options, **none)


def test_all_that_is_offered_can_be_asked_for():
    call = ToolCall("c1", "get", "{}")
    chat = [
        ChatMessage("user", "x", name="ann"),
        ChatMessage("assistant", "", (call,)),
        ChatMessage("tool", "y", tool_call_id="c1"),
        ChatMessage("user", "", parts=("a", "b")),
    ]
    requests = [to_request(chat, EVERYTHING), to_request("x", _plain(EVERYTHING)), to_request([5], _plain(EVERYTHING))]
    requests += [to_request("x", Options(**{name: value})) for name, value in FORMS.items()]
    sent = {path for request in requests for path in _sent(request)}
    assert sent == set(_offered(pb.GenerateRequest.DESCRIPTOR)) - LEFT_OUT


def test_nothing_is_sent_that_was_not_asked_for():
    assert set(_sent(to_request("x", Options()))) == {"prompt", "sampling", "stop"}
    assert to_request("x", Options()) == pb.GenerateRequest(prompt="x", sampling={}, stop={})


def test_the_example_leaves_no_option_out():
    for item in dataclasses.fields(Options):
        given = FORMS.get(item.name, getattr(EVERYTHING, item.name))
        assert given != getattr(Options(), item.name), item.name


def test_a_text_has_one_form():
    for name, value in FORMS.items():
        for other, another in FORMS.items():
            if name != other:
                with pytest.raises(InvalidFieldError, match="exclude each other") as caught:
                    to_request("x", Options(**{name: value, other: another}))
                assert caught.value.metadata == {"field": "structured_output"}


def test_one_text_is_a_list_of_one():
    request = to_request("x", Options(stop="ab", bad_words="cd"))
    assert (list(request.stop.strings), list(request.sampling.bad_words)) == (["ab"], ["cd"])


def test_every_option_has_a_typed_name():
    """A sequence is taken where Options has a tuple."""
    fields = {
        item.name: str(item.type).replace("tuple[", "").replace(", ...]", "") for item in dataclasses.fields(Options)
    }
    names = {
        name: (given if isinstance(given, str) else given.__forward_arg__).replace("Sequence[", "").replace("]", "")
        for name, given in OptionNames.__annotations__.items()
    }
    assert {name: kind.replace("]", "") for name, kind in fields.items()} == names


def test_what_is_no_tool_is_named():
    tools: Any = ({"name": "clock"},)
    with pytest.raises(InvalidFieldError, match="dict") as caught:
        to_request([ChatMessage("user", "x")], Options(tools=tools))
    assert caught.value.metadata["field"] == "chat.tools"


def test_a_tool_choice_that_there_is_not_is_named():
    choice: Any = "always"
    with pytest.raises(InvalidFieldError, match="'always'") as caught:
        to_request([ChatMessage("user", "hi")], Options(tool_choice=choice))
    assert caught.value.metadata["field"] == "chat.tool_choice"
