"""Forecasts of the first token against what then happens in a simulated mesh."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from statistics import median
from typing import Any

import pytest
from outcomes import prepared

from bench.forecast import CASES, figures, run
from scheduler.admission import AdmissionMode
from scheduler.events import TenantsChanged
from scheduler.foresight import Foresight
from scheduler.outlook import Outlook, Regime
from scheduler.policy import Policy
from scheduler.sequence import Request
from scheduler.simulator.cost import StepCost
from scheduler.simulator.gateway import VirtualGateway
from scheduler.simulator.mesh import VirtualMesh, submission
from scheduler.simulator.small import worker_info
from scheduler.tenant import NamedPlan
from scheduler.traffic_class import CLASSES, TrafficClass

COST = StepCost(4e-3, 25e-6, 40e-9)
KEYS = iter(range(1_000, 10_000_000))

Seen = list[tuple[Request, Outlook, float]]


@pytest.fixture(autouse=True)
def seen(monkeypatch: pytest.MonkeyPatch) -> Seen:
    """Requests that got their first token, what was expected of them, and the seconds that it took."""
    found: Seen = []
    first_token = Foresight.first_token

    def noted(self: Foresight, request: Request, now: float) -> None:
        if request.outlook is not None:
            found.append((request, request.outlook, now - request.arrived_at))
        first_token(self, request, now)

    monkeypatch.setattr(Foresight, "first_token", noted)
    return found


def known_mesh(
    mode: AdmissionMode = AdmissionMode.SHADOW,
    classes: Sequence[TrafficClass] = tuple(CLASSES.values()),
    **changes: int,
) -> tuple[VirtualMesh, VirtualGateway]:
    """One that has seen a few prompts, so that it knows what steps take."""
    options: dict[str, Any] = {"policy": Policy(0, 0), "admission_mode": mode, "delay": 0.0002, "classes": classes}
    options |= {"bundling": True, "audited": False, "recorded": False, "verify": False, "caching": False}
    count = changes.pop("workers", 1)
    info = {"block_size": 16, "num_blocks": 4096, "max_num_seqs": 64, "max_num_batched_tokens": 2048}
    infos = [worker_info(**{**info, "max_model_len": 8000, **changes})] * count
    mesh, gateway = prepared(infos=infos, costs=[COST] * count, **options)
    for index in range(1, count):
        mesh.attach_worker(index)
    for length in (40, 900, 300, 1500) * count:
        for _ in range(count):
            ask(mesh, gateway, length, 12)
        mesh.run(until=mesh.now + 1.0)
    return mesh, gateway


def ask(mesh: VirtualMesh, gateway: VirtualGateway, length: int, output: int, **changes: Any) -> int:
    """Returns its key."""
    key = next(KEYS)
    mesh.submit(gateway, submission(key, [key % 50] * length, output, **changes))
    return key


def of(seen: Seen, key: int) -> tuple[Outlook, float]:
    """What was expected of a request, and what it took."""
    return next((outlook, took) for request, outlook, took in seen if request.submission.request_key == key)


def settle(mesh: VirtualMesh) -> None:
    mesh.run(until=mesh.now + 60.0)
    assert mesh.core.idle


def test_nothing_is_forecast_until_steps_are_known(seen: Seen) -> None:
    mesh, gateway = prepared(admission_mode=AdmissionMode.SHADOW)
    mesh.submit(gateway, submission(1))
    mesh.run(until=5.0)
    assert not seen


@pytest.mark.parametrize("length", [20, 400, 2000, 5000])
def test_idle(seen: Seen, length: int) -> None:
    mesh, gateway = known_mesh()
    key = ask(mesh, gateway, length, 4)
    settle(mesh)
    outlook, took = of(seen, key)
    assert outlook.first_token.regime is Regime.IDLE
    assert outlook.first_token.seconds == pytest.approx(took, rel=0.1)
    assert outlook.first_token.alone_s == pytest.approx(took, rel=0.1)


def test_beside_streams_a_long_prompt_takes_many_short_steps(seen: Seen) -> None:
    mesh, gateway = known_mesh()
    for _ in range(20):
        ask(mesh, gateway, 60, 1000)
    mesh.run(until=mesh.now + 0.2)
    key = ask(mesh, gateway, 6000, 4)
    settle(mesh)
    outlook, took = of(seen, key)
    assert outlook.first_token.seconds == pytest.approx(took, rel=0.1)


def test_behind_a_long_prompt(seen: Seen) -> None:
    mesh, gateway = known_mesh()
    ask(mesh, gateway, 7000, 4)
    mesh.run(until=mesh.now + 0.01)
    key = ask(mesh, gateway, 50, 4)
    settle(mesh)
    outlook, took = of(seen, key)
    assert outlook.first_token.regime is Regime.PREFILL
    assert outlook.first_token.seconds == pytest.approx(took, rel=0.15)
    assert took > 0.1


def test_places_that_are_kept_for_who_asks_for_less_are_not_forecast_for_others(seen: Seen) -> None:
    mesh, gateway = known_mesh(max_num_seqs=64)
    mesh.post(TenantsChanged(gateway.number, 1, (NamedPlan("flood"), NamedPlan("quiet"))))
    ask(mesh, gateway, 20, 4, tenant="quiet")
    mesh.run(until=mesh.now + 0.5)
    for _ in range(62):
        ask(mesh, gateway, 20, 300, tenant="flood")
    mesh.run(until=mesh.now + 1.2)
    key = ask(mesh, gateway, 20, 4, tenant="flood")
    # Two of 64 are free.
    other = ask(mesh, gateway, 20, 4, tenant="quiet")
    settle(mesh)
    outlook, took = of(seen, key)
    assert outlook.first_token.regime is Regime.PLACE
    assert took > 20 * of(seen, other)[1]
    assert of(seen, other)[0].first_token.regime is Regime.IDLE


def test_what_is_less_urgent_is_passed(seen: Seen) -> None:
    mesh, gateway = known_mesh()
    for _ in range(5):
        ask(mesh, gateway, 7000, 4, traffic_class="batch")
    mesh.run(until=mesh.now + 0.01)
    urgent = ask(mesh, gateway, 50, 4)
    patient = ask(mesh, gateway, 50, 4, traffic_class="batch")
    settle(mesh)
    (hurried, soon), (waiting, late) = of(seen, urgent), of(seen, patient)
    assert hurried.first_token.seconds == pytest.approx(soon, rel=0.3)
    assert waiting.first_token.seconds == pytest.approx(late, rel=0.3)
    assert soon < 0.15 < 0.6 < late


def test_full_slots(seen: Seen) -> None:
    mesh, gateway = known_mesh(max_num_seqs=8)
    # Outputs of 100 tokens are what it knows then.
    for _ in range(40):
        ask(mesh, gateway, 50, 100)
    settle(mesh)
    began = mesh.now
    for _ in range(8):
        ask(mesh, gateway, 50, 100)
    mesh.run(until=began + 0.1)
    keys = [ask(mesh, gateway, 50, 100) for _ in range(24)]
    settle(mesh)
    outcomes = [of(seen, key) for key in keys]
    assert {outlook.first_token.regime for outlook, _ in outcomes} == {Regime.PLACE}
    ratios = [took / outlook.first_token.seconds for outlook, took in outcomes]
    assert 0.75 < median(ratios) < 1.3
    assert all(0.3 < ratio < 3.0 for ratio in ratios)


def test_full_blocks(seen: Seen) -> None:
    mesh, gateway = known_mesh(num_blocks=256)
    for _ in range(30):
        ask(mesh, gateway, 400, 100)
    settle(mesh)
    for _ in range(12):
        ask(mesh, gateway, 400, 100)
    mesh.run(until=mesh.now + 0.2)
    keys = [ask(mesh, gateway, 400, 100) for _ in range(14)]
    settle(mesh)
    outcomes = [of(seen, key) for key in keys]
    assert {outlook.first_token.regime for outlook, _ in outcomes} == {Regime.PLACE}
    assert 0.6 < median(took / outlook.first_token.seconds for outlook, took in outcomes) < 1.6


def test_one_that_is_too_large_for_what_is_free_waits_for_all_to_leave_and_no_longer(seen: Seen) -> None:
    mesh, gateway = known_mesh(num_blocks=256)
    for _ in range(10):
        ask(mesh, gateway, 100, 60)
    settle(mesh)
    for _ in range(6):
        ask(mesh, gateway, 100, 60)
    mesh.run(until=mesh.now + 0.1)
    key = ask(mesh, gateway, 4000, 20)
    settle(mesh)
    outlook, took = of(seen, key)
    assert outlook.first_token.regime is Regime.PLACE
    assert 0.4 < took / outlook.first_token.seconds < 2.5


def test_the_next_of_many_tenants_is_served_before_the_next_of_the_one_that_floods(seen: Seen) -> None:
    mesh, gateway = known_mesh(max_num_seqs=4)
    plans = tuple(NamedPlan(f"t{index}") for index in range(50))
    mesh.post(TenantsChanged(gateway.number, 1, plans))
    for _ in range(60):
        ask(mesh, gateway, 400, 20, tenant="t0")
    settle(mesh)
    for _ in range(40):
        ask(mesh, gateway, 400, 20, tenant="t0")
    for index in range(1, 20):
        ask(mesh, gateway, 400, 20, tenant=f"t{index}")
    mesh.run(until=mesh.now + 0.05)
    flooding = ask(mesh, gateway, 400, 20, tenant="t0")
    new = ask(mesh, gateway, 400, 20, tenant="t40")
    settle(mesh)
    (last, late), (first, soon) = of(seen, flooding), of(seen, new)
    assert 2 * soon < late
    assert 2 * first.first_token.seconds < last.first_token.seconds
    assert last.first_token.seconds == pytest.approx(late, rel=0.4)


def outcomes(seen: Seen, tenant: str) -> list[tuple[Regime, float, float]]:
    """What a tenant's requests were believed to wait for, the forecasts, and what they took."""
    return [
        (outlook.first_token.regime, outlook.first_token.seconds, took)
        for request, outlook, took in seen
        if request.tenant.tenant == tenant
    ]


def test_a_class_that_is_full_waits_for_its_own_though_slots_are_free(seen: Seen) -> None:
    chat = replace(CLASSES["interactive"], max_running=4)
    mesh, gateway = known_mesh(classes=(chat, CLASSES["rag"]))
    for _ in range(40):
        ask(mesh, gateway, 50, 100)
    settle(mesh)
    seen.clear()
    keys = [ask(mesh, gateway, 50, 100) for _ in range(16)]
    mesh.run(until=mesh.now + 0.3)
    other = ask(mesh, gateway, 50, 100, traffic_class="rag")
    settle(mesh)
    first, later = ([of(seen, key) for key in part] for part in (keys[:4], keys[6:]))
    assert {outlook.first_token.regime for outlook, _ in first} <= {Regime.IDLE, Regime.PREFILL}
    assert {outlook.first_token.regime for outlook, _ in later} == {Regime.PLACE}
    assert all(took > 0.3 for _, took in later)
    assert 0.6 < median(took / outlook.first_token.seconds for outlook, took in later) < 1.6
    # Those who wait for their own are not before one of another class.
    outlook, took = of(seen, other)
    assert outlook.first_token.seconds == pytest.approx(took, rel=0.5)
    assert took < 0.05


def test_a_tenant_at_its_share_waits_for_its_own_though_blocks_are_free(seen: Seen) -> None:
    mesh, gateway = known_mesh()
    # Room for five of 200 + 100 tokens.
    mesh.post(TenantsChanged(gateway.number, 1, (NamedPlan("a", kv_share=0.025), NamedPlan("b"))))
    for _ in range(40):
        ask(mesh, gateway, 200, 100, tenant="a")
    settle(mesh)
    seen.clear()
    for _ in range(24):
        ask(mesh, gateway, 200, 100, tenant="a")
    mesh.run(until=mesh.now + 0.3)
    ask(mesh, gateway, 200, 100, tenant="a")
    ask(mesh, gateway, 200, 100, tenant="b")
    settle(mesh)
    *own, (_, _, last) = outcomes(seen, "a")
    ((_, soon, took),) = outcomes(seen, "b")
    assert {regime for regime, _, _ in own[8:]} == {Regime.PLACE}
    assert 0.6 < median(took / forecast for _, forecast, took in own[8:]) < 1.6
    assert max(soon, took) < 0.1 < last


def test_a_request_that_is_more_than_its_class_may_have_is_waited_for(seen: Seen) -> None:
    mesh, gateway = known_mesh(classes=(replace(CLASSES["interactive"], max_running=2),))
    large = ask(mesh, gateway, 50, 200, n=8)
    mesh.run(until=mesh.now + 0.2)
    keys = [ask(mesh, gateway, 50, 20) for _ in range(6)]
    settle(mesh)
    assert of(seen, large)[0].first_token.regime is Regime.IDLE
    waited = [of(seen, key) for key in keys]
    assert {outlook.first_token.regime for outlook, _ in waited} == {Regime.PLACE}
    forecasts = [outlook.first_token.seconds for outlook, _ in waited]
    assert forecasts == sorted(forecasts)
    assert all(0.2 < took / outlook.first_token.seconds < 5.0 for outlook, took in waited)


@pytest.mark.parametrize("max_running", [1, 3])
def test_a_class_that_is_full_keeps_its_promise(seen: Seen, max_running: int) -> None:
    """Asked for three times what it may have, beside many free slots."""
    chat = replace(CLASSES["interactive"], max_running=max_running)
    mesh, gateway = known_mesh(AdmissionMode.ENFORCE, (chat,))
    seen.clear()
    rng, began = random.Random(5), mesh.now
    at = began
    # Of 100 tokens in steps of 4 ms.
    while (at := at + rng.expovariate(3 * max_running / 0.42)) < began + 90.0:
        mesh.at(at, lambda: ask(mesh, gateway, 50, 100))
    mesh.run(until=began + 90.0)
    settle(mesh)
    assert len(seen) > 100 * max_running
    assert sum(took > 1.0 for _, _, took in seen) <= 0.05 * len(seen)


def test_a_free_worker_is_where_it_goes(seen: Seen) -> None:
    mesh, gateway = known_mesh(workers=2)
    ask(mesh, gateway, 7000, 4)
    mesh.run(until=mesh.now + 0.01)
    key = ask(mesh, gateway, 200, 4)
    settle(mesh)
    outlook, took = of(seen, key)
    assert outlook.first_token.regime is Regime.IDLE
    assert outlook.first_token.seconds == pytest.approx(took, rel=0.15)


def test_two_workers_share_what_waits(seen: Seen) -> None:
    mesh, gateway = known_mesh(workers=2)
    for _ in range(12):
        ask(mesh, gateway, 2000, 4)
    mesh.run(until=mesh.now + 0.01)
    key = ask(mesh, gateway, 200, 4)
    settle(mesh)
    outlook, took = of(seen, key)
    assert outlook.first_token.seconds == pytest.approx(took, rel=0.3)


# Seeds that were not used to tune anything. Of all with a target 2 in 100 may be refused wrongly, and no more are where
# the load is far beyond the capacity. A queue that grows slowly passes once through what is neither sure to be in time
# nor sure to be late: of a run as short as this that is a large part. docs/results.md has longer ones.
@pytest.mark.parametrize(
    ("name", "load", "seed", "most_wrong"),
    [("chat", 2.0, 101, 0.02), ("chat", 1.5, 101, 0.08), ("mix", 2.0, 102, 0.15)],
)
def test_accuracy(seen: Seen, name: str, load: float, seed: int, most_wrong: float) -> None:
    case = replace(next(case for case in CASES if case.name == name), requests=900)
    enforced = run(case, load, AdmissionMode.ENFORCE, seed)
    raw = [took / outlook.first_token.seconds for _, outlook, took in seen]
    shadow = run(case, load, AdmissionMode.SHADOW, seed)
    found = figures(shadow, enforced)
    # What the model says, without what it learns: one that was half as much, or twice, would be corrected.
    assert 0.8 < median(raw) < 1.3
    assert found["error"] < 0.2
    assert found["late"] <= 0.05
    assert found["interactive_p95_ms"] < 1000
    assert found["wrong_of_all"] <= most_wrong
    assert found["qualified"] > found["qualified_shadow"] + 0.1
