"""Chat templates: what they render, and what a broken or hostile one does."""

from __future__ import annotations

from datetime import datetime

import pytest

from gateway.template import ChatTemplate, Message
from tercet.errors import InvalidFieldError, ModelError

MESSAGES = [Message("user", "Grüße & <b>"), Message("assistant", "x"), Message("user", "y")]


def render(text: str, *, max_chars: int = 10_000, messages: list[Message] = MESSAGES) -> str:
    template = ChatTemplate(
        text, source="file", variables={"bos_token": "<s>", "pad_token": None}, now=lambda: datetime(2026, 3, 4)
    )
    return template.render(messages, max_chars=max_chars)


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
    assert [template.render(MESSAGES, max_chars=100) for _ in range(8)] == ["done"] * 8


def test_long_conversations_fit_the_budget() -> None:
    text = "{% for m in messages %}{% for n in ['a', 'b'] %}{{ m.role.strip() }}{% endfor %}{% endfor %}"
    messages = [Message("user", "")] * 10_000
    assert render(text, messages=messages, max_chars=10**6) == "user" * 20_000
