"""What a database is called, to people and to the names of journals."""

from __future__ import annotations

import pytest

from tercet.database import Database
from tercet.errors import StoreError

POSTGRES = "postgresql+psycopg://"


def name(where: str) -> str:
    return Database(where, StoreError, "nobody").name


@pytest.mark.parametrize(
    ("where", "shown"),
    [
        ("u:geheim@db/ledger", "u:***@db/ledger"),
        ("db/ledger?user=u&password=geheim", "db/ledger?password=...&user=u"),
        ("/ledger?host=db&sslpassword=geheim&sslmode=require", "/ledger?host=db&sslmode=require&sslpassword=..."),
        # A host may be given several times.
        ("/ledger?host=a:1&host=b:2&PASSWORD=geheim", "/ledger?PASSWORD=...&host=a%3A1&host=b%3A2"),
    ],
)
def test_a_password_is_not_in_a_name_wherever_it_is_in_the_url(where: str, shown: str) -> None:
    pytest.importorskip("psycopg")
    assert name(POSTGRES + where) == POSTGRES + shown


def test_databases_of_two_hosts_have_two_names() -> None:
    pytest.importorskip("psycopg")
    assert name(f"{POSTGRES}/ledger?host=/run/a") != name(f"{POSTGRES}/ledger?host=/run/b")


def test_a_file_is_called_as_it_is() -> None:
    assert name("sqlite:////var/lib/x.db") == name("/var/lib/x.db") == "/var/lib/x.db"
