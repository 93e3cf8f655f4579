"""Numbers and names as people read them."""

from __future__ import annotations

import math

import pytest

from tercet.load.report import words


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        (words.amount(None), "–"),
        (words.amount(0), "0"),
        (words.amount(1234), "1,234"),
        (words.amount(0.12345), "0.123"),
        (words.amount(1234.56), "1,235"),
        (words.milliseconds(0.456), "0.46 ms"),
        (words.milliseconds(456), "456 ms"),
        (words.milliseconds(999.6), "1 s"),
        (words.milliseconds(12_345), "12.3 s"),
        (words.milliseconds(600_000), "10 min"),
        (words.milliseconds(math.nan), "–"),
        (words.seconds(None), "–"),
        (words.percent(99.97), "100 %"),
        (words.percent(12.345), "12.3 %"),
        (words.percent(95.0), "95 %"),
        (words.money(0), "0.00"),
        (words.money(1234.5), "1,234.50"),
        (words.money(0.0000985), "0.0000985"),
        (words.signed(-3.21), "-3.2 %"),
        (words.signed(math.inf), "+∞ %"),
        (words.value(None), "–"),
        (words.value(True), "yes"),
        (words.value([1, 2.5, "x"]), "1, 2.5, x"),
        (words.name("a\nb\x1b[0m"), "a�b�[0m"),
        (words.name("x" * 100, 10), "xxxxxxxxx…"),
        (words.listed(["a"]), "a"),
        (words.listed(["a", "b", "c"]), "a, b and c"),
    ],
)
def test_as_people_read_them(shown: str, expected: str) -> None:
    assert shown == expected
