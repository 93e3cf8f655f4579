"""What another tenant has left in prefix caches is worth nothing: no tokens, no plans, no forecasts, no time."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import pytest

from scheduler.actions import Accepted, NewSequence, Plan, ToWorker
from scheduler.events import TenantsChanged
from scheduler.simulator.cost import StepCost
from scheduler.simulator.gateway import Call
from scheduler.simulator.mesh import VirtualMesh, submission
from scheduler.simulator.small import worker_info
from scheduler.tenant import NamedPlan

LENGTH = 200
# Every token costs, so that whatever need not be computed would show.
COST = StepCost(0.002, 0.0001, 0.000001)
ASKED_AT = 3.0


@dataclass(frozen=True)
class Told:
    """All that a tenant, or whoever watches the mesh, can tell of a request."""

    cached_tokens: int
    forecast_s: float | None
    times: tuple[float, ...]
    # From its arrival on, with the links they went to.
    plans: tuple[tuple[int, Plan], ...]
    placed: int


def run(asked: list[int], tenant: str, num_workers: int, seed: int) -> Told:
    """What becomes of a prompt beside streams of others, after alice has left another one in every cache."""
    rng = random.Random(seed)
    info = worker_info(num_blocks=400, max_num_batched_tokens=64, max_model_len=512)
    mesh = VirtualMesh([info] * num_workers, costs=[COST] * num_workers, seed=seed)
    for index in range(num_workers):
        mesh.attach_worker(index)
    gateway = mesh.attach_gateway()
    told: dict[int, Accepted] = {}
    receive = gateway.receive

    def note(message: Any, now: float) -> None:
        if isinstance(message, Accepted):
            told[message.request_key] = message
        receive(message, now)

    gateway.receive = note  # type: ignore[method-assign]
    mesh.post(TenantsChanged(1, 1, (NamedPlan("alice"), NamedPlan("bob"))))
    secret, keys = prompt(seed), iter(range(1, 1000))

    def send(tokens: list[int], max_tokens: int, who: str) -> Call:
        return mesh.submit(gateway, submission(next(keys), tokens, max_tokens, tenant=who, prefix_salt=who.encode()))

    # Several at a time, so that each worker gets one.
    for moment in (0.1, 0.1, 0.1, 0.6, 1.1):
        mesh.at(moment, lambda: send(secret, 4, "alice"))
    for _ in range(40):
        other = [rng.randrange(50) for _ in range(rng.randrange(5, 60))]
        mesh.at(rng.uniform(0.0, 4.0), lambda other=other: send(other, 30, "bob"))
    calls: list[Call] = []
    mesh.at(ASKED_AT, lambda: calls.append(send(asked, 16, tenant)))
    mesh.run(ASKED_AT - 1e-9)
    before = len(mesh.sent)
    mesh.run()
    (call,) = calls
    sent = mesh.sent[before:]
    mine = call.submission.request_key
    (new,) = [each for each in sent if _starts(each, call.sequence_ids)]
    return Told(
        cached_tokens=call.ends[0].account.cached_tokens,
        forecast_s=told[mine].forecast_s,
        times=tuple(call.times),
        plans=tuple((each.link, each.command) for each in sent if isinstance(each.command, Plan)),
        placed=new.link,
    )


def _starts(action: ToWorker, sequence_ids: tuple[int, ...]) -> bool:
    return isinstance(action.command, NewSequence) and action.command.sequence_id in sequence_ids


def prompt(seed: int) -> list[int]:
    rng = random.Random(f"prompt {seed}")
    return [rng.randrange(50) for _ in range(LENGTH)]


@pytest.mark.parametrize("num_workers", [1, 3])
@pytest.mark.parametrize("seed", range(3))
def test_a_foreign_prefix_is_as_one_that_never_was(num_workers: int, seed: int) -> None:
    secret, never_seen = prompt(seed), prompt(seed + 1000)
    foreign = run(secret, "bob", num_workers, seed)
    assert foreign.cached_tokens == 0
    assert foreign.forecast_s is not None
    # To the last digit, the plans of all others included.
    assert foreign == run(never_seen, "bob", num_workers, seed)


@pytest.mark.parametrize("num_workers", [1, 3])
def test_her_own_prefix_shows_in_all_of_it(num_workers: int) -> None:
    """So the same look finds a prefix that is there."""
    own, new = run(prompt(1), "alice", num_workers, 1), run(prompt(1001), "alice", num_workers, 1)
    assert own.cached_tokens > LENGTH / 2
    assert own.times[0] < new.times[0]
    assert own.forecast_s is not None
    assert new.forecast_s is not None
    assert own.forecast_s < new.forecast_s
    assert own.plans != new.plans
