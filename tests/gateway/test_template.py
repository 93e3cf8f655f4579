"""Chat templates: what they render, and what a broken or hostile one does."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

import pytest
from transformers.utils.chat_template_utils import render_jinja_template

from gateway.chat import Chat, Message, Tool, ToolCall
from gateway.template import ChatTemplate
from tercet.errors import InvalidFieldError, ModelError

MESSAGES = [Message("user", "Grüße & <b>"), Message("assistant", "x"), Message("user", "y")]


def render(text: str, *, max_chars: int = 10_000, messages: list[Message] = MESSAGES) -> str:
    template = ChatTemplate(
        text, source="file", variables={"bos_token": "<s>", "pad_token": None}, now=lambda: datetime(2026, 3, 4)
    )
    return template.render(Chat(tuple(messages)), max_chars=max_chars)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{{ bos_token }}{{ messages[0].content }}", "<s>Grüße & <b>"),
        ("{{ pad_token is defined }}", "False"),
        ("{{ messages[0] | tojson }}", '{"role": "user", "content": "Grüße & <b>"}'),
        (
            "{% for m in messages %}{% if loop.last %}{% continue %}{% endif %}{{ m.content[0] }}{% endfor %}",
            "Gx",
        ),
        ("{% for m in messages %}{{ loop.length }}{{ loop.last }}{% endfor %}", "3False3False3True"),
        ("{% for m in messages %}{% break %}{% endfor %}end", "end"),
        ("{% for m in nothing %}{% else %}none{% endfor %}", "none"),
        ("{% if true %}\n  a\n  {% endif %}\nb", "  a\nb"),
        ("{{ strftime_now('%Y-%m-%d') }}", "2026-03-04"),
        ("{% generation %}{{ messages|length }}{% endgeneration %}", "3"),
        ("{% if add_generation_prompt %}go{% endif %}", "go"),
        ("{{ 'a' ~ 1 ~ 'b' }}{{ ['x', 'y'] | join('-') }}{{ 'aXb'.replace('X', 'Y') }}{{ 'ab' * 2 }}", "a1bx-yaYbabab"),
        ("{% macro f(n) %}{% if n %}{{ n }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(3) }}", "321"),
        ("{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}", "3"),
    ],
)
def test_renders_as_model_files_expect(text: str, expected: str) -> None:
    assert render(text) == expected


@pytest.mark.parametrize(
    ("text", "line", "says"),
    [
        ("\n{{ raise_exception('roles must alternate') }}", 2, "roles must alternate"),
        ("{% for m in messages %}\n\n{{ m.content + 1 }}{% endfor %}", 3, "str"),
        ("{{ messages[9].content.strip() }}", 1, "no element 9"),
        ("{{ messages.__class__ }}{{ messages.append(1) }}", 1, "unsafe"),
        ("{{ ''.__class__.__mro__ }}", 1, "unsafe"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", 1, "without end"),
    ],
)
def test_failure_names_field_and_line(text: str, line: int, says: str) -> None:
    with pytest.raises(InvalidFieldError) as caught:
        render(text)
    assert caught.value.metadata["field"] == "chat"
    assert caught.value.metadata["template_line"] == str(line)
    assert f"line {line}" in caught.value.message
    assert says in caught.value.message


@pytest.mark.parametrize(
    "text",
    [
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
        "{% for i in range(10 ** 9) %}{% endfor %}",
        "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
        "{% set ns = namespace(s='ab') %}{% for i in range(99) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}",
        "{% set ns = namespace(s='ab') %}{% for i in range(99) %}{% set ns.s = ns.s + ns.s %}{% endfor %}",
        "{% set ns = namespace(s=[1]) %}{% for i in range(99) %}{% set ns.s = ns.s + ns.s %}{% endfor %}",
        "{% for i in range(9999) %}{{ messages[0].content }}{% endfor %}",
        "{{ 'a' * 10 ** 12 }}",
        "{{ 9 ** (9 ** 9) }}",
        "{{ 'a'.ljust(10 ** 12) }}",
        "{{ '%1000000000d' % 1 }}",
        "{{ '{:1000000000}'.format(1) }}",
        "{{ '%1000000000d' | format(1) }}",
        "{{ messages[0].content.replace('', 'x' * 9000) }}",
        "{{ messages[0].content | replace('', 'x' * 9000) }}",
        "{{ ('x' * 5000).join(['a', 'b', 'c', 'd']) }}",
        "{{ ('\n' * 5000) | indent(256) }}",
    ],
)
def test_a_bomb_ends_with_an_error(text: str) -> None:
    with pytest.raises(InvalidFieldError) as caught:
        render(text)
    assert caught.value.metadata["field"] == "chat"


def test_broken_template_is_found_at_start() -> None:
    with pytest.raises(ModelError, match=r"line 3.*model\.chat_template"):
        render("ok\n\n{% for %}")
    with pytest.raises(ModelError, match="no_such_filter"):
        render("{{ messages | no_such_filter }}")


def test_budget_is_per_rendering() -> None:
    text = "{% for i in range(90000) %}{% endfor %}done"
    template = ChatTemplate(text, source="file", variables={})
    assert [template.render(Chat(tuple(MESSAGES)), max_chars=100) for _ in range(8)] == ["done"] * 8


def test_long_conversations_fit_the_budget() -> None:
    text = "{% for m in messages %}{% for n in ['a', 'b'] %}{{ m.role.strip() }}{% endfor %}{% endfor %}"
    messages = [Message("user", "")] * 10_000
    assert render(text, messages=messages, max_chars=10**6) == "user" * 20_000


WITH_TOOLS = """{{ bos_token }}
{%- if not tools is defined %}{% set tools = none %}{% endif %}
{%- if tools is not none %}
<tools>{% for tool in tools %}
{{ tool | tojson(indent=2) }} {{ tool.function.name }}{% endfor %}</tools>
{%- endif %}
{%- for document in documents or [] %}[{{ document.title }}: {{ document["text"] }}]{% endfor %}
{%- for m in messages %}
{%- if m.role == "tool" %}
<result id={{ m.tool_call_id }} of={{ m.name }}>{{ m.content }}</result>
{%- elif m.tool_calls %}
{%- for call in m.tool_calls %}
<call>{{ {"name": call.function.name, "arguments": call.function.arguments} | tojson }}</call>
{%- endfor %}
{%- else %}
<{{ m["role"] }}>{{ m.content | trim if thinking is defined and thinking else m.content }}</{{ m.role }}>
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}<assistant>{% endif %}"""

SCHEMA = {"type": "object", "properties": {"city": {"type": "string", "enum": ["Zürich", "<b>"]}}, "required": ["city"]}
TOOLS = (Tool("weather", 'The weather "now".', SCHEMA), Tool("now", "", {"type": "object", "properties": {}}))
CONVERSATION = (
    Message("system", "Be brief."),
    Message("user", " Grüße "),
    Message(
        "assistant", "", (ToolCall("weather", {"city": "Zürich", "n": [1, 2.5, None]}, "abc"), ToolCall("now", {}))
    ),
    Message("tool", "sunny", tool_call_id="abc", name="weather"),
    Message("assistant", "It is sun"),
)


def template(text: str) -> ChatTemplate:
    return ChatTemplate(text, source="file", variables={"bos_token": "<s>"})


def plain(message: Message) -> dict[str, Any]:
    """A message as `transformers` takes it."""
    calls = [
        {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
        for call in message.tool_calls
    ]
    found = {"role": message.role, "content": message.content, "tool_calls": calls}
    found |= {"tool_call_id": message.tool_call_id, "name": message.name}
    return {key: value for key, value in found.items() if value or key == "content"}


@pytest.mark.parametrize(
    "chat",
    [
        Chat(CONVERSATION),
        Chat(CONVERSATION, TOOLS),
        Chat(CONVERSATION[:2], TOOLS[:1], variables={"thinking": True}),
        Chat(CONVERSATION[:2], documents=({"title": "t", "text": "x {{ y }}"}, {"text": "only"})),
        Chat(CONVERSATION[:2], generation_prompt=False),
        Chat(CONVERSATION, TOOLS, generation_prompt=False, continues=True),
    ],
)
def test_renders_as_transformers(chat: Chat) -> None:
    tools = [
        {"type": "function", "function": {"name": t.name, "description": t.description, "parameters": t.parameters}}
        for t in chat.tools
    ]
    (expected,), _ = render_jinja_template(
        [list(map(plain, chat.messages))],
        tools=tools or None,
        documents=list(map(dict, chat.documents)) or None,
        chat_template=WITH_TOOLS,
        add_generation_prompt=chat.generation_prompt,
        continue_final_message=chat.continues,
        bos_token="<s>",
        **chat.variables,
    )
    found = template(WITH_TOOLS)
    found.check(chat)
    assert found.render(chat, max_chars=10_000) == expected


@pytest.mark.parametrize(
    ("chat", "field", "says"),
    [
        (Chat(CONVERSATION[:2], TOOLS), "chat.tools", "no tools"),
        (Chat(CONVERSATION), "chat.messages", "no tools"),
        (Chat(CONVERSATION[3:4]), "chat.messages", "no tools"),
        (Chat(CONVERSATION[:2], documents=({},)), "chat.documents", "no documents"),
        (Chat(CONVERSATION[:2], variables={"thinking": True}), "chat.template_kwargs", "'thinking'"),
        (Chat(CONVERSATION[:2], variables={"messages": []}), "chat.template_kwargs", "may not set messages"),
        (Chat(CONVERSATION[:2], variables={"bos_token": ""}), "chat.template_kwargs", "may not set bos_token"),
    ],
)
def test_what_a_template_has_no_use_for_is_refused(chat: Chat, field: str, says: str) -> None:
    with pytest.raises(InvalidFieldError) as caught:
        template("{{ bos_token }}{% for m in messages %}{{ m.content }}{% endfor %}").check(chat)
    assert caught.value.metadata["field"] == field
    assert says in caught.value.message


def test_a_developer_is_the_system_where_a_template_does_not_know_one() -> None:
    chat = Chat((Message("developer", "x"),))
    assert template("{{ messages[0].role }}").render(chat, max_chars=99) == "system"
    knows = template("{% if messages[0].role in ['system', 'developer'] %}{{ messages[0].role }}{% endif %}")
    assert knows.render(chat, max_chars=99) == "developer"


@pytest.mark.parametrize(
    "text", ["{{ messages[0].content }}", "{% for i in (1, 2) %}{{ messages[1].content }}{% endfor %}"]
)
def test_a_turn_that_the_template_hides_cannot_go_on(text: str) -> None:
    chat = Chat((Message("user", "a"), Message("assistant", "b")), generation_prompt=False, continues=True)
    with pytest.raises(InvalidFieldError) as caught:
        template(text).render(chat, max_chars=99)
    assert caught.value.metadata["field"] == "chat.continue_final_message"


def test_a_turn_goes_on_where_it_stopped() -> None:
    text = "{% for m in messages %}<{{ m.role }}>{{ m.content }}</>{% endfor %}"
    chat = Chat((Message("user", "a"), Message("assistant", "and \n")), generation_prompt=False, continues=True)
    assert template(text).render(chat, max_chars=99) == "<user>a</><assistant>and \n"


@pytest.mark.parametrize("options", ["", "indent=4", "indent=4, ensure_ascii=true"])
def test_json_that_grows_without_bound_ends_with_an_error(options: str) -> None:
    nested: Any = list(range(50_000))
    for _ in range(20):
        nested = [nested]
    chat = Chat((Message("user", "a"),), (Tool("f", "", {"x": nested}),))
    text = f"{{% for i in range(99) %}}{{{{ tools | tojson({options}) }}}}{{% endfor %}}"
    with pytest.raises(InvalidFieldError):
        template(text).render(chat, max_chars=10**6)


def test_json_is_written_as_the_template_asks() -> None:
    chat = Chat((Message("user", "a"),), (Tool("f", "é", {"b": [1], "a": {}}),))
    written = template("{{ tools[0].function | tojson(indent=2) }}").render(chat, max_chars=999)
    assert written == json.dumps(
        {"name": "f", "description": "é", "parameters": {"b": [1], "a": {}}}, indent=2, ensure_ascii=False
    )
