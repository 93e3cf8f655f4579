"""The salt that the mesh is told, from the one that a request chose."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gateway.prefix_salt import prefix_salt
from tercet.grammar.grammar import OWNER_BYTES

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=128)


def test_without_a_salt_there_is_none() -> None:
    assert prefix_salt("") == b""


def test_gateways_agree() -> None:
    # Pinned: gateways of one mesh, restarted one by one, must find each other's prefixes.
    assert prefix_salt("é").hex() == "4173eeb309e292b9577b32ad255a2a5a3fec8c0ccd412f6b92996cd50de6ac09"


@given(TEXTS, TEXTS)
def test_other_salts_are_other_digests_of_one_size(one: str, other: str) -> None:
    assert (prefix_salt(one) == prefix_salt(other)) is (one == other)
    assert {len(prefix_salt(one)), len(prefix_salt(other))} <= {0, 32}
    # No client can name a salt that the mesh was told, and be told the same.
    assert prefix_salt(prefix_salt(one).hex()) != prefix_salt(one) or not one


@given(TEXTS, TEXTS)
def test_all_of_a_tenant_begin_alike_and_no_other_ones(one: str, other: str) -> None:
    keys = [bytes([count]) * 32 for count in range(2)]
    ours, theirs = ([prefix_salt(text, key) for text in (one, other)] for key in keys)
    assert (ours[0] == ours[1]) is (one == other)
    assert {len(salt) for salt in (*ours, *theirs)} == {32}
    assert ours[0][:OWNER_BYTES] == ours[1][:OWNER_BYTES] != theirs[0][:OWNER_BYTES]
    assert not {salt[OWNER_BYTES:] for salt in ours} & {salt[OWNER_BYTES:] for salt in theirs}
