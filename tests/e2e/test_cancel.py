"""Cancelled work stops costing: every process lets go of it, each says so in its log, and soon."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tercet import errors
from tercet.client import Accepted, AsyncClient, Delta

from .conftest import Mesh, wait_until

pytestmark = pytest.mark.e2e


def freed_at_every_hop(mesh: Mesh, request_id: str, reason: str, tokens: int | None = None) -> dict[str, Any]:
    """Follows one cancelled request through the logs, down to the worker and back up; each line once and no more.

    Returns the scheduler's line about its end. `tokens`: how many had been generated before.
    """

    def line(service: str, event: str, **fields: Any) -> dict[str, Any]:
        found = mesh.records(service, event, **fields)
        assert len(found) == 1, (service, event, fields, found)
        return found[0]

    # Log lines are the last that a service does about a request.
    wait_until(lambda: bool(mesh.records("gateway", "request_ended", request_id=request_id)), "the gateway's last line")
    wait_until(
        lambda: bool(mesh.records("scheduler", "request_finished", request_id=request_id)), "the scheduler's last line"
    )
    sent = line("scheduler", "release_sent", request_id=request_id)
    assert sent["reason"] == reason
    dropped = line("worker", "sequence_released", sequence_id=sent["sequence_id"])
    assert (dropped["cause"], dropped["found"]) == ("cancel", True)
    released = line("scheduler", "released", request_id=request_id)
    assert released["sequence_id"] == sent["sequence_id"]
    assert released["blocks_freed"] == dropped["blocks_freed"]
    finished = line("scheduler", "request_finished", request_id=request_id)
    assert finished["outcome"] == "CANCELLED"
    # Who asked for it; if nobody asked and the scheduler's own clock was first, what the client is told.
    assert finished["reason"] in ({reason, errors.DeadlineError.reason} if reason == "DEADLINE" else {reason})
    assert finished["blocks_freed"] == dropped["blocks_freed"]
    outcome = line("gateway", "request_ended", request_id=request_id)["outcome"]
    assert outcome == ("expired" if reason == "DEADLINE" else "cancelled")
    if tokens is not None:
        assert finished["tokens"] == tokens
    mesh.wait_idle()
    return finished


def cancelled_by_gateway(mesh: Mesh, request_id: str, cause: str) -> None:
    """The part of the way between gateway and scheduler, there and back."""
    wait_until(
        lambda: bool(mesh.records("gateway", "cancel_done", request_id=request_id)), "the gateway knows it is done"
    )
    (sent,) = mesh.records("gateway", "cancel_sent", request_id=request_id)
    (received,) = mesh.records("scheduler", "cancel_received", request_id=request_id)
    (done,) = mesh.records("gateway", "cancel_done", request_id=request_id)
    (finished,) = mesh.records("scheduler", "request_finished", request_id=request_id)
    assert (sent["origin"], received["reason"]) == (cause, cause.upper())
    assert (done["origin"], done["found"]) == (cause, True)
    assert done["blocks_freed"] == finished["blocks_freed"]


async def test_cancel_before_the_first_token(mesh: Mesh, client: AsyncClient) -> None:
    # Many steps of prefill, so that there is time.
    async with client.generate([5] * 7000, max_tokens=64, request_id="before-first") as generation:
        async for event in generation:
            assert isinstance(event, Accepted)
            break
    freed_at_every_hop(mesh, "before-first", "CLIENT", tokens=0)
    cancelled_by_gateway(mesh, "before-first", "client")


async def test_cancel_in_mid_generation(mesh: Mesh, client: AsyncClient) -> None:
    deltas = 0
    async with client.generate(
        "Once upon a time", max_tokens=2000, ignore_eos=True, request_id="mid-generation"
    ) as generation:
        async for event in generation:
            deltas += isinstance(event, Delta)
            if deltas == 5:
                break
    finished = freed_at_every_hop(mesh, "mid-generation", "CLIENT")
    assert 5 <= finished["tokens"] < 2000
    assert finished["blocks_freed"] > 0
    cancelled_by_gateway(mesh, "mid-generation", "client")


async def test_deadline(mesh: Mesh, client: AsyncClient) -> None:
    generation = client.generate(
        "Once upon a time", max_tokens=4000, ignore_eos=True, timeout_s=0.7, request_id="too-late"
    )
    with pytest.raises(errors.DeadlineError):
        await generation.answer()
    # Gateway and scheduler each have a clock; whichever is first, the rest of the way is the same.
    freed_at_every_hop(mesh, "too-late", "DEADLINE")
    for sent in mesh.records("gateway", "cancel_sent", request_id="too-late"):
        assert sent["origin"] == "deadline"


async def test_an_operator_cancels(mesh: Mesh, client: AsyncClient) -> None:
    generation = client.generate("Once upon a time", max_tokens=4000, ignore_eos=True, request_id="by-operator")
    with pytest.raises(errors.RequestCancelledError):
        async for event in generation:
            if isinstance(event, Accepted):
                assert await client.cancel("by-operator")
    assert not await client.cancel("by-operator")
    freed_at_every_hop(mesh, "by-operator", "OPERATOR")
    cancelled_by_gateway(mesh, "by-operator", "operator")


async def test_a_cancel_frees_within_two_steps(own_mesh: Callable[..., Mesh]) -> None:
    # Plans of 64 steps: a cancel that took effect at the end of a plan would waste dozens of steps. And steps that are
    # long beside a message's way from process to process, so that it is steps that are counted, not the machine's load.
    mesh = own_mesh(
        TERCET_SCHEDULER_NUM_SCHEDULER_STEPS="64", TERCET_WORKER_DTYPE="float32", TERCET_WORKER_NUM_THREADS="1"
    )
    mesh.start()
    wasted = []
    async with AsyncClient(mesh.address) as client:
        for number in range(15):
            request_id = f"cut-{number}"
            before = mesh.fleet().workers[0].steps
            deltas = 0
            async with client.generate("Once", max_tokens=1000, ignore_eos=True, request_id=request_id) as generation:
                async for event in generation:
                    deltas += isinstance(event, Delta)
                    if deltas == 2 + number:
                        break
            finished = freed_at_every_hop(mesh, request_id, "CLIENT")
            # Nothing else ran: each step is a token, and what was generated after the cancel is accounted for.
            assert mesh.fleet().workers[0].steps - before == finished["tokens"] + finished["wasted_tokens"]
            wasted.append(finished["wasted_tokens"])
    # A process that is kept from running for a while may let a few more pass; that is the exception.
    assert sorted(wasted)[len(wasted) // 2] <= 2, wasted
