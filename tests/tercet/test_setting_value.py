from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tercet.errors import ConfigError
from tercet.setting_value import convert, list_text

texts = st.text(st.characters(blacklist_characters="\0", blacklist_categories=["Cs"]))


def parsed(text: str) -> object:
    return convert("a.b", tuple[str, ...], text, in_bytes=False)


@given(st.lists(texts))
def test_a_list_comes_out_of_an_environment_as_it_went_in(values: list[str]) -> None:
    assert parsed(list_text(values)) == tuple(values)


def test_lists_are_parts_between_commas_or_json() -> None:
    assert parsed(" a, b ,,c") == ("a", "b", "c")
    assert parsed("[::1]:80,[::2]:80") == ("[::1]:80", "[::2]:80")
    assert parsed('["a,b", "c"]') == ("a,b", "c")
    # What is no JSON after all is parts.
    assert parsed('["a,b"') == ('["a', 'b"')
    assert list_text(("a", "b")) == "a,b"


@pytest.mark.parametrize("text", ['["a", 1]', '["a", null]', '["a", ["b"]]'])
def test_a_json_list_is_of_strings(text: str) -> None:
    with pytest.raises(ConfigError, match="must be a list of strings"):
        parsed(text)
