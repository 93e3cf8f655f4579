"""Texts and token ids of several tenants: who waits for whom."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

import pytest

from gateway import tokenizing
from gateway.turns import Turns
from tercet.v1 import inference_pb2 as pb

from .guarded_gateway import GuardedGateway


@pytest.fixture
def turns_of(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Of each turn that is taken, whose it is."""
    seen: list[str] = []
    place = Turns.place

    @contextlib.asynccontextmanager
    async def noted(self: Turns, tenant: str) -> AsyncIterator[None]:
        seen.append(tenant)
        async with place(self, tenant):
            yield

    monkeypatch.setattr(Turns, "place", noted)
    return seen


async def test_each_tenant_has_its_turn(
    guarded: GuardedGateway, turns_of: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # The context of the model here is short.
    monkeypatch.setattr(tokenizing, "_INLINE_IDS", 199)
    text = "hello " * 1000
    for who in ("alice", "bob"):
        told = (await guarded.call("Inference/Tokenize", who, pb.TokenizeRequest(prompt=text)))[0]
        ids = told.token_ids[:200]
        back = (await guarded.call("Inference/Detokenize", who, pb.DetokenizeRequest(token_ids=ids)))[0]
        assert text.startswith(back.text.strip())
        assert len(back.text) > 190
    assert turns_of == ["alice", "alice", "bob", "bob"]


async def test_what_is_short_waits_for_nobody(guarded: GuardedGateway, turns_of: list[str]) -> None:
    told = (await guarded.call("Inference/Tokenize", "alice", pb.TokenizeRequest(prompt="hello")))[0]
    back = (await guarded.call("Inference/Detokenize", "alice", pb.DetokenizeRequest(token_ids=told.token_ids)))[0]
    assert back.text.strip() == "hello"
    assert turns_of == []
