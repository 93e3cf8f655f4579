"""Which hosts are this machine, by what a client says that it asks."""

from __future__ import annotations

import pytest

from tercet.own_host import is_own_host


@pytest.mark.parametrize(
    "header",
    [
        "localhost",
        "LOCALHOST:8000",
        "localhost.",
        "chat.localhost:1",
        "127.0.0.1:8000",
        "127.9.9.9",
        "[::1]:8000",
        "10.1.2.3",
        "Own.Example:80",
    ],
)
def test_own_hosts(header: str) -> None:
    assert is_own_host(header, "own.example")


@pytest.mark.parametrize(
    "header",
    [
        "",
        "evil.example",
        "evil.example:8000",
        "localhost.evil.example",
        "127.0.0.1.evil.example",
        "localhost@evil.example",
        "[::1",
        "a b",
        "127.1",
    ],
)
def test_other_hosts(header: str) -> None:
    assert not is_own_host(header, "own.example")
