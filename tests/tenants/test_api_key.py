"""Keys: their form, their digest, and that their secret shows nowhere."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tercet.tenants.api_key import NO_DIGEST, ApiKey, new_key, read_key


def test_a_key_is_read_back():
    key = new_key()
    assert read_key(key.text) == key
    assert key.matches(key.digest)
    assert key.text.startswith(f"tct_{key.id}_")
    # 256 bits, and nothing that a shell or a double click would cut.
    assert len(bytes.fromhex(key.secret)) == 32
    assert key.text.replace("_", "").isalnum()


def test_no_two_are_the_same():
    keys = [new_key() for _ in range(100)]
    assert len({key.id for key in keys}) == len({key.secret for key in keys}) == 100


def test_the_secret_is_in_no_text_of_it_and_not_in_its_digest():
    key = new_key()
    for text in (repr(key), str(key), f"{key}", repr([key]), key.digest.hex()):
        assert key.secret not in text
    assert key.id in repr(key)


def test_another_secret_does_not_match():
    key, other = new_key(), new_key()
    assert not key.matches(other.digest)
    assert not key.matches(NO_DIGEST)
    assert not ApiKey(key.id, key.secret[:-1]).matches(key.digest)
    assert not key.matches(key.digest[:-1])


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text[:-1], lambda text: f"{text}0", lambda text: text.upper(), lambda text: f" {text}",
        lambda text: f"{text}\n", lambda text: text.replace("tct", "sk"), lambda text: text.replace("_", "-"),
        lambda text: text[:-1] + "g", lambda text: text[:-1] + "٣",
    ],
)  # fmt: skip
def test_what_has_not_the_form_is_no_key(change):
    assert read_key(change(new_key().text)) is None


@given(st.text())
def test_any_text_is_read_without_a_fault(text):
    key = read_key(text)
    assert key is None or key.text == text
