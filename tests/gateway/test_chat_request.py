"""Chats from the wire: what is taken, and what is refused by which name."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.chat import Chat, Message, Tool, ToolCall
from gateway.chat_request import read_chat, written_texts
from tercet.errors import InvalidFieldError
from tercet.v1 import inference_pb2 as pb

USER = pb.ChatMessage(role="user", content="hi")


def text(value: str) -> pb.ContentPart:
    return pb.ContentPart(type="text", text=value)


def test_everything_is_taken() -> None:
    chat = read_chat(
        pb.Chat(
            messages=[
                pb.ChatMessage(role="system", content="s"),
                pb.ChatMessage(role="developer", parts=[text("a"), text(""), text("b")]),
                pb.ChatMessage(role="user", content="u", name="Ada"),
                pb.ChatMessage(
                    role="assistant",
                    tool_calls=[
                        pb.ToolCall(id="c1", name="weather.get", arguments='{"city": "\\u00e9"}'),
                        pb.ToolCall(name="now"),
                    ],
                ),
                pb.ChatMessage(role="tool", content="42", tool_call_id="c1", name="weather.get"),
            ],
            tools=[
                pb.Tool(name="weather.get", description="d", parameters='{"type": "object"}'),
                pb.Tool(name="now"),
            ],
            documents=['{"title": "t", "text": "x"}'],
            add_generation_prompt=False,
            template_kwargs='{"thinking": false}',
        )
    )
    assert chat == Chat(
        messages=(
            Message("system", "s"),
            Message("developer", "a\n\nb"),
            Message("user", "u", name="Ada"),
            Message("assistant", "", (ToolCall("weather.get", {"city": "é"}, "c1"), ToolCall("now", {}))),
            Message("tool", "42", tool_call_id="c1", name="weather.get"),
        ),
        tools=(
            Tool("weather.get", "d", {"type": "object"}),
            Tool("now", "", {"type": "object", "properties": {}}),
        ),
        documents=({"title": "t", "text": "x"},),
        variables={"thinking": False},
        generation_prompt=False,
    )


def test_what_is_not_said() -> None:
    assert read_chat(pb.Chat(messages=[USER])) == Chat((Message("user", "hi"),))


def test_without_tools_none_can_be_wanted() -> None:
    assert read_chat(pb.Chat(messages=[USER], tool_choice=pb.TOOL_CHOICE_NONE)) == read_chat(pb.Chat(messages=[USER]))


def test_of_tools_that_it_may_not_call_the_assistant_is_not_told() -> None:
    chat = pb.Chat(messages=[USER], tools=[pb.Tool(name="f")], tool_choice=pb.TOOL_CHOICE_NONE)
    assert read_chat(chat).tools == ()


@pytest.mark.parametrize(("parallel", "single"), [(None, False), (True, False), (False, True)])
def test_one_call_is_all_or_not(parallel: bool | None, single: bool) -> None:
    given_chat = pb.Chat(messages=[USER], tools=[pb.Tool(name="f")], parallel_tool_calls=parallel)
    assert read_chat(given_chat).single_call is single


def test_a_last_turn_that_goes_on() -> None:
    chat = pb.Chat(messages=[USER, pb.ChatMessage(role="assistant", content="well")], continue_final_message=True)
    assert (read_chat(chat).continues, read_chat(chat).generation_prompt) == (True, False)
    chat.add_generation_prompt = False
    assert read_chat(chat).continues


@pytest.mark.parametrize(
    ("fields", "field", "says"),
    [
        ({"messages": []}, "chat.messages", "no messages"),
        ({"messages": [USER] * 10_001}, "chat.messages", "at most 10000"),
        ({"messages": [pb.ChatMessage(role="function")]}, "chat.messages[0].role", "developer"),
        (
            {"messages": [USER, pb.ChatMessage(role="user", parts=[text("a"), pb.ContentPart(type="image_url")])]},
            "chat.messages[1].parts[1].type",
            "image_url",
        ),
        (
            {"messages": [pb.ChatMessage(role="user", parts=[pb.ContentPart(text="a")])]},
            "chat.messages[0].parts[0].type",
            "''",
        ),
        ({"messages": [pb.ChatMessage(role="user", content="a", parts=[text("b")])]}, "chat.messages[0].parts", "both"),
        (
            {"messages": [pb.ChatMessage(role="user", tool_calls=[pb.ToolCall(name="f")])]},
            "chat.messages[0].tool_calls",
            "only an assistant",
        ),
        ({"messages": [pb.ChatMessage(role="user", tool_call_id="x")]}, "chat.messages[0].tool_call_id", "only a tool"),
        (
            {"messages": [pb.ChatMessage(role="assistant", tool_calls=[pb.ToolCall(name="")])]},
            "chat.messages[0].tool_calls[0].name",
            "name of a tool",
        ),
        (
            {"messages": [pb.ChatMessage(role="assistant", tool_calls=[pb.ToolCall(name="f", arguments="[1]")])]},
            "chat.messages[0].tool_calls[0].arguments",
            "JSON object",
        ),
        ({"messages": [USER], "tools": [pb.Tool(name="f"), pb.Tool(name="f")]}, "chat.tools[1].name", "two tools"),
        ({"messages": [USER], "tools": [pb.Tool(name="a b")]}, "chat.tools[0].name", "'a b'"),
        ({"messages": [USER], "tools": [pb.Tool(name=f"f{i}") for i in range(129)]}, "chat.tools", "at most 128"),
        (
            {"messages": [USER], "tools": [pb.Tool(name="f", parameters='{"a": NaN}')]},
            "chat.tools[0].parameters",
            "NaN",
        ),
        ({"messages": [USER], "tools": [pb.Tool(name="f", parameters="{")]}, "chat.tools[0].parameters", "not JSON"),
        ({"messages": [USER], "documents": ["{}"] * 1025}, "chat.documents", "at most 1024"),
        ({"messages": [USER], "documents": ["{}", '"text"']}, "chat.documents[1]", "JSON object"),
        ({"messages": [USER], "template_kwargs": '{"a": 1e999}'}, "chat.template_kwargs", "too large"),
        ({"messages": [USER], "template_kwargs": '{"a": "\\ud800"}'}, "chat.template_kwargs", "surrogate"),
        ({"messages": [USER], "template_kwargs": '{"\\udfff": 1}'}, "chat.template_kwargs", "surrogate"),
        ({"messages": [USER], "template_kwargs": '{"a":' + "[" * 64 + "]" * 64 + "}"}, "chat.template_kwargs", "deep"),
        ({"messages": [USER], "template_kwargs": '{"a":' + "[" * 99_999}, "chat.template_kwargs", ""),
        ({"messages": [USER], "template_kwargs": '{"a":' + "9" * 9_999 + "}"}, "chat.template_kwargs", "not JSON"),
        ({"messages": [USER], "tool_choice": pb.TOOL_CHOICE_REQUIRED}, "chat.tool_choice", "there is none"),
        ({"messages": [USER], "tool_choice": pb.TOOL_CHOICE_AUTO}, "chat.tool_choice", "there is none"),
        ({"messages": [USER], "parallel_tool_calls": True}, "chat.parallel_tool_calls", "there is none"),
        ({"messages": [USER], "parallel_tool_calls": False}, "chat.parallel_tool_calls", "there is none"),
        ({"messages": [USER], "tool_choice": 99}, "chat.tool_choice", "99"),
        ({"messages": [USER], "forced_tool": "f"}, "chat.forced_tool", "no such tool"),
        ({"messages": [USER], "continue_final_message": True}, "chat.continue_final_message", "assistant"),
        (
            {
                "messages": [pb.ChatMessage(role="assistant", content="a")],
                "continue_final_message": True,
                "add_generation_prompt": True,
            },
            "chat.continue_final_message",
            "new turn",
        ),
    ],
)
def test_what_is_refused(fields: dict[str, Any], field: str, says: str) -> None:
    with pytest.raises(InvalidFieldError) as caught:
        read_chat(pb.Chat(**fields))
    assert caught.value.metadata["field"] == field
    assert says in caught.value.message
    assert len(caught.value.message) < 300


short = st.text(st.characters(codec="utf-8"), max_size=6) | st.sampled_from(["{}", '{"a": ["b"]}', "text", "tool"])
roles = st.sampled_from(["system", "developer", "user", "assistant", "tool", "else"])
chats = st.builds(
    pb.Chat,
    messages=st.lists(
        st.builds(
            pb.ChatMessage,
            role=roles,
            content=short,
            parts=st.lists(st.builds(pb.ContentPart, type=st.just("text") | short, text=short), max_size=2),
            tool_calls=st.lists(st.builds(pb.ToolCall, id=short, name=short, arguments=short), max_size=2),
            tool_call_id=short,
            name=short,
        ),
        max_size=3,
    ),
    tools=st.lists(st.builds(pb.Tool, name=short, description=short, parameters=short), max_size=2),
    documents=st.lists(short, max_size=2),
    template_kwargs=short,
    tool_choice=st.integers(0, 4),
    parallel_tool_calls=st.none() | st.booleans(),
    continue_final_message=st.booleans(),
)


def outcome(given_chat: pb.Chat) -> Chat | str:
    """The chat, or the field to blame."""
    try:
        return read_chat(given_chat)
    except InvalidFieldError as error:
        return error.metadata["field"]


@settings(max_examples=100, deadline=None)
@given(chats)
def test_whatever_comes_is_a_chat_or_an_error_that_names_a_field(given_chat: pb.Chat) -> None:
    found = outcome(given_chat)
    if isinstance(found, str):
        assert found.startswith("chat.")
        return
    assert [message.role for message in found.messages] == [message.role for message in given_chat.messages]
    written = "".join(written_texts(given_chat))
    assert all(part in written for message in found.messages for part in message.content.split("\n"))


@settings(max_examples=50, deadline=None)
@given(chats)
def test_each_text_of_a_chat_is_changed_once(given_chat: pb.Chat) -> None:
    chat = outcome(given_chat)
    if isinstance(chat, Chat):
        assert list(chat.with_texts(lambda value: value + "!").texts()) == [value + "!" for value in chat.texts()]
