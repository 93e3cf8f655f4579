"""A store of tenants in a real SQLite file."""

from __future__ import annotations

import pytest

from tercet.tenants.store import Store

from .clock import Clock


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def path(tmp_path):
    # A name that is something else in a URL.
    return tmp_path / "te nants?mode=ro&#1%20.db"


@pytest.fixture
def store(path, clock):
    made = Store(str(path), clock)
    made.create()
    yield made
    made.close()
