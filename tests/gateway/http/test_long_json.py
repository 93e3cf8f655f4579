"""JSON of many rows is what it would be in one go, and others have their turns while it is made."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.http import long_json
from gateway.http.exchange import encode_json
from gateway.http.long_json import Rows, encode_in_turns

leaves = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.text())
values = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=4).map(lambda items: Rows(lambda: items)),
        st.dictionaries(st.text(), inner, max_size=4),
    ),
    max_leaves=12,
)


@given(value=values)
def test_it_is_the_same_in_one_go(value: Any) -> None:
    assert asyncio.run(encode_in_turns(value)) == encode_json(value)


def test_rows_are_made_each_time_and_can_be_joined() -> None:
    rows = Rows(lambda: (number for number in range(3)))
    assert [*rows, *rows] == [0, 1, 2, 0, 1, 2]
    assert encode_json(rows + Rows(lambda: ["x"])) == b'[0,1,2,"x"]'


async def test_others_have_their_turn_between_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(long_json, "_TURN_S", 0.0)
    made: list[int] = []
    seen: list[int] = []

    def rows() -> Any:
        for number in range(50):
            made.append(number)
            yield number

    async def look() -> None:
        while len(made) < 50:
            seen.append(len(made))
            await asyncio.sleep(0)

    looking = asyncio.create_task(look())
    await encode_in_turns({"choices": [{"rows": Rows(rows)}]})
    await looking
    assert len(set(seen)) > 40
