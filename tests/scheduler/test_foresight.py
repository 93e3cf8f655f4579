"""What is expected of newcomers, what comes of it, and what is learned: in simulated meshes."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
from outcomes import prepared

from scheduler.admission import AdmissionMode, make_request
from scheduler.calibration import SPACING_SECONDS, Ratios
from scheduler.events import CancelReason, Sampling
from scheduler.foresight import ForecastView, Foresight
from scheduler.inflow import INFLOW_SECONDS, Inflow
from scheduler.outlook import FirstToken, Kind, Outlook, Regime
from scheduler.policy import Policy
from scheduler.sequence import Request
from scheduler.simulator.cost import StepCost
from scheduler.simulator.gateway import Call, VirtualGateway
from scheduler.simulator.mesh import VirtualMesh, submission
from scheduler.simulator.small import GREEDY, worker_info
from scheduler.tenant import NamedPlan
from scheduler.traffic_class import CLASSES

# A token of a prompt takes 1 ms: 1,000 of them as long as a class may promise.
COST = StepCost(1e-3, 1e-3)
KEYS = iter(range(1_000, 10_000_000))


def mesh_that_knows(mode: AdmissionMode, **info: int) -> tuple[VirtualMesh, VirtualGateway]:
    """Its steps."""
    sizes = {"block_size": 16, "num_blocks": 4096, "max_num_seqs": 64, "max_num_batched_tokens": 256}
    mesh, gateway = prepared(
        infos=[worker_info(**{**sizes, "max_model_len": 20_000, **info})],
        costs=[COST],
        policy=Policy(0, 0),
        delay=0.0002,
        admission_mode=mode,
    )
    for length in (16, 200, 90):
        ask(mesh, gateway, length, 5)
        mesh.run(until=mesh.now + 1.0)
    return mesh, gateway


def ask(mesh: VirtualMesh, gateway: VirtualGateway, length: int, output: int = 2, **changes: Any) -> Call:
    key = next(KEYS)
    # No two prompts have a block in common, unless they are told to.
    first = changes.pop("first", key)
    prompt = [first // 50**digit % 50 for digit in range(5)] + [7] * length
    return mesh.submit(gateway, submission(key, prompt[:length], output, **changes))


def foresight(mesh: VirtualMesh) -> Foresight:
    (found,) = mesh.core._mesh.foresights.values()
    return found


def request_of(tenant: str) -> Request:
    asked = submission(next(KEYS), [7] * 100)
    return make_request(1, asked, NamedPlan(tenant), CLASSES["interactive"], 1, 0.0)


def believe(mesh: VirtualMesh, traffic_class: str, ratio: float, regime: Regime = Regime.PREFILL) -> None:
    """All forecasts of a kind turned out so much too low."""
    for far in (False, True):
        ratios = foresight(mesh).ratios[Kind(traffic_class, regime, False, far)] = Ratios()
        for index in range(300):
            ratios.add(ratio, mesh.now + (index - 300) * SPACING_SECONDS)


def settle(mesh: VirtualMesh) -> None:
    mesh.run(until=mesh.now + 120.0)
    assert mesh.core.idle


def test_enforced_what_would_be_late_is_refused_with_a_time_to_retry() -> None:
    mesh, gateway = mesh_that_knows(AdmissionMode.ENFORCE)
    at = mesh.now
    calls = [ask(mesh, gateway, 200) for _ in range(12)]
    settle(mesh)
    refused = [call.refused for call in calls]
    assert refused[:4] == [None] * 4
    assert set(refused[6:]) == {"SLO_UNREACHABLE"}
    (log, *_) = [log for log in mesh.logs if log.event == "request_refused"]
    assert 0.0 < log.fields["retry_after_s"] < 2.0
    assert "promises 1 s" in log.fields["why"]
    took = [call.times[0] - at for call in calls if call.accepted]
    assert sum(each > 1.0 for each in took) <= 2


def test_a_refusal_says_when_it_would_be_let_in() -> None:
    mesh, gateway = mesh_that_knows(AdmissionMode.ENFORCE)
    for _ in range(12):
        ask(mesh, gateway, 200)
    mesh.run(until=mesh.now + 0.001)
    log = [log for log in mesh.logs if log.event == "request_refused"][-1]
    mesh.run(until=mesh.now + log.fields["retry_after_s"])
    again = ask(mesh, gateway, 200)
    mesh.run(until=mesh.now + 0.001)
    assert again.accepted


def test_in_shadow_nothing_is_refused_and_it_shows_who_would_have_been_in_time() -> None:
    mesh, gateway = mesh_that_knows(AdmissionMode.SHADOW)
    calls = [ask(mesh, gateway, 200) for _ in range(12)]
    settle(mesh)
    assert not any(call.refused for call in calls)
    foreseen = [log for log in mesh.logs if log.event == "refusal_foreseen"]
    finished = [log for log in mesh.logs if log.event == "request_finished" and log.fields["to_be_refused"]]
    view = foresight(mesh).view()
    # The first of its kind would have been let in to see.
    assert len(foreseen) + 1 == view.tried == len(finished) >= 5
    assert view.tried_in_time == sum(log.fields["first_token_ms"] <= 1000 for log in finished) < view.tried


def test_off_nothing_is_forecast() -> None:
    mesh, gateway = mesh_that_knows(AdmissionMode.OFF)
    calls = [ask(mesh, gateway, 200) for _ in range(12)]
    settle(mesh)
    assert not any(call.refused for call in calls)
    finished = [log for log in mesh.logs if log.event == "request_finished"]
    assert {log.fields["forecast_ms"] for log in finished} == {None}
    assert foresight(mesh).view() == ForecastView(None, 0, 0)


def test_a_class_without_a_target_is_told_when_and_never_refused() -> None:
    mesh, gateway = mesh_that_knows(AdmissionMode.ENFORCE)
    calls = [ask(mesh, gateway, 200, traffic_class="batch") for _ in range(20)]
    settle(mesh)
    assert all(call.accepted for call in calls)
    forecasts = [log.fields["forecast_ms"] for log in mesh.logs if log.event == "request_finished"][-20:]
    assert min(forecasts) > 0.0
    assert max(forecasts) > 2000


@pytest.mark.parametrize("mode", [AdmissionMode.ENFORCE, AdmissionMode.SHADOW])
def test_a_deadline_that_cannot_be_met(mode: AdmissionMode) -> None:
    mesh, gateway = mesh_that_knows(mode)
    ask(mesh, gateway, 5000, traffic_class="batch")
    mesh.run(until=mesh.now + 0.001)
    # Nothing was ever learned of what waits for prompts: the first one is let in to see.
    tried, hopeless = (ask(mesh, gateway, 100, deadline_s=1.0, traffic_class="batch") for _ in range(2))
    possible = ask(mesh, gateway, 100, deadline_s=30.0, traffic_class="batch")
    settle(mesh)
    assert hopeless.refused == ("DEADLINE_UNREACHABLE" if mode is AdmissionMode.ENFORCE else None)
    assert possible.times
    assert tried.accepted
    assert not tried.times
    view = foresight(mesh).view()
    assert (view.tried, view.tried_in_time) == (1 if mode is AdmissionMode.ENFORCE else 2, 0)


@pytest.mark.parametrize(("reason", "tried"), [(CancelReason.DEADLINE, 1), (CancelReason.CLIENT, 0)])
def test_whoever_is_given_up_for_the_deadline_was_not_in_time(reason: CancelReason, tried: int) -> None:
    mesh, gateway = mesh_that_knows(AdmissionMode.ENFORCE)
    ask(mesh, gateway, 5000, traffic_class="batch")
    mesh.run(until=mesh.now + 0.001)
    call = ask(mesh, gateway, 100, deadline_s=1.0, traffic_class="batch")
    mesh.run(until=mesh.now + 0.9)
    # The gateway's clock is a little ahead.
    mesh.cancel(gateway, call, reason)
    settle(mesh)
    view = foresight(mesh).view()
    assert (view.tried, view.tried_in_time) == (tried, 0)


def test_in_shadow_it_shows_whether_a_deadline_could_be_met() -> None:
    mesh, gateway = mesh_that_knows(AdmissionMode.SHADOW)
    believe(mesh, "batch", 100.0)
    ask(mesh, gateway, 300, traffic_class="batch")
    mesh.run(until=mesh.now + 0.01)
    calls = [ask(mesh, gateway, 20, deadline_s=2.0, traffic_class="batch") for _ in range(2)]
    settle(mesh)
    assert all(call.times for call in calls)
    # The first of its kind would have been let in to see.
    (log,) = [log for log in mesh.logs if log.event == "refusal_foreseen"]
    assert log.fields["reason"] == "DEADLINE_UNREACHABLE"
    view = foresight(mesh).view()
    assert (view.tried, view.tried_in_time) == (2, 2)


def test_an_idle_mesh_that_was_slow_refuses_nobody_for_a_deadline() -> None:
    mesh, gateway = mesh_that_knows(AdmissionMode.ENFORCE)
    believe(mesh, "interactive", 100.0, Regime.IDLE)
    for _ in range(20):
        call = ask(mesh, gateway, 20, deadline_s=0.3)
        mesh.run(until=mesh.now + 0.5)
        assert call.times


def test_a_belief_that_no_deadline_can_be_met_is_tried() -> None:
    mesh, gateway = mesh_that_knows(AdmissionMode.ENFORCE)
    believe(mesh, "batch", 100.0)
    outcomes = []
    for _ in range(150):
        ask(mesh, gateway, 300, traffic_class="batch")
        mesh.run(until=mesh.now + 0.01)
        outcomes.append(ask(mesh, gateway, 20, deadline_s=2.0, traffic_class="batch"))
        mesh.run(until=mesh.now + 0.5)
    refused = [call.refused for call in outcomes]
    # The first is let in, since nothing was known of its kind.
    assert refused[0] is None
    assert set(refused[1:8]) == {"DEADLINE_UNREACHABLE"}
    assert set(refused[-8:]) == {None}


def test_a_request_that_is_refused_all_the_same_is_no_try() -> None:
    mesh, gateway = mesh_that_knows(AdmissionMode.ENFORCE)
    ask(mesh, gateway, 5000)
    mesh.run(until=mesh.now + 0.001)
    learned_at = dict(foresight(mesh).learned_at)
    unknown = mesh.submit(gateway, submission(next(KEYS), [10**6] * 100))
    mesh.run(until=mesh.now + 0.001)
    assert unknown.refused == "INVALID_FIELD"
    assert foresight(mesh).learned_at == learned_at
    tried, refused = (ask(mesh, gateway, 100) for _ in range(2))
    mesh.run(until=mesh.now + 0.001)
    assert tried.accepted
    assert refused.refused == "SLO_UNREACHABLE"


def test_many_tenants_that_ask_are_not_looked_at_for_every_request(monkeypatch: pytest.MonkeyPatch) -> None:
    looked = 0
    per_second = Inflow.per_second

    def counted(inflow: Inflow, now: float) -> float:
        nonlocal looked
        looked += 1
        return per_second(inflow, now)

    monkeypatch.setattr(Inflow, "per_second", counted)
    found = Foresight()
    for number in range(5000):
        found.queued(request_of(f"tenant-{number}"), number * 1e-4)
    assert len(found.tenant_inflows) == 5000
    assert 0 < looked < 2 * 5000
    # A minute later all of them are silent.
    for number in range(6000):
        found.queued(request_of(f"other-{number}"), 60.0)
    assert len(found.tenant_inflows) == 6000


def test_an_idle_mesh_takes_what_is_late_even_alone() -> None:
    mesh, gateway = mesh_that_knows(AdmissionMode.ENFORCE)
    call = ask(mesh, gateway, 6000)
    settle(mesh)
    assert call.accepted
    assert call.times[0] - 3.0 > 6.0


def test_a_belief_that_refuses_all_is_tried() -> None:
    """Refusals teach nothing: now and then one is let in."""
    mesh, gateway = mesh_that_knows(AdmissionMode.ENFORCE)
    believe(mesh, "interactive", 100.0)
    outcomes = []
    for _ in range(150):
        ask(mesh, gateway, 300)
        mesh.run(until=mesh.now + 0.01)
        outcomes.append(ask(mesh, gateway, 20))
        mesh.run(until=mesh.now + 0.5)
    refused = [call.refused for call in outcomes]
    # The first is let in, since nothing was known of its kind.
    assert refused[0] is None
    assert set(refused[1:8]) == {"SLO_UNREACHABLE"}
    assert set(refused[-8:]) == {None}


def tries(found: Foresight, seconds: float, in_time: bool, now: float = 0.0, spare: float = 0.0) -> list[float]:
    """When somebody was let in to see, where all are to be refused."""
    kind, waits = Kind("interactive", Regime.PLACE, False, True), FirstToken(Regime.PLACE, 0.0, 2.0, 0.1, 0.1)
    moments, end = [], now + seconds
    while now < end:
        request = request_of("a")
        request.arrived_at = now
        request.outlook = Outlook(kind, waits, waits.seconds, 0.0, limit_s=1.0)
        found.spare[request.whose] = spare
        if found._to_be_tried(request, request.outlook, now):
            found.queued(request, now)
            found.first_token(request, now + (0.5 if in_time else 2.0))
            moments.append(now)
        now += 0.5
    return moments


def test_tries_become_rare_as_long_as_all_are_late() -> None:
    found = Foresight()
    # Each is twice as far from what was last learned as the one before.
    assert [round(each) for each in tries(found, 650.0, in_time=False)] == [0, 12, 34, 76, 158, 320, 642]
    # At most six times.
    assert len(tries(found, 3600.0, in_time=False, now=650.0)) == pytest.approx(3600 / 322, abs=1.0)
    # Once one was in time they are as often as they were.
    again = tries(found, 700.0, in_time=True, now=5000.0)
    assert len(again) == pytest.approx(700 / 5.5, abs=2.0)


def test_whoever_owes_misses_is_seldom_tried() -> None:
    often, seldom = (len(tries(Foresight(), 600.0, in_time=True, spare=spare)) for spare in (5.0, -2.0))
    assert often == pytest.approx(600 / 5.5, abs=2.0)
    assert seldom == pytest.approx(600 / 20.5, abs=2.0)
    # Never so seldom that what is believed would be believed for ever.
    assert len(tries(Foresight(), 600.0, in_time=True, spare=-40.0)) > 10


def test_whoever_leaves_before_he_was_late_was_no_try() -> None:
    found = Foresight()
    tries(found, 1.0, in_time=False)
    ((kind, missed),) = found.tries_missed.items()
    request = request_of("a")
    request.outlook = Outlook(kind, FirstToken(Regime.PLACE, 0.0, 2.0, 0.1, 0.1), 2.1, 0.0, limit_s=1.0)
    request.arrived_at = 100.0
    found.queued(request, 100.0)
    assert found.tries_missed[kind] == missed + 1
    found.gave_up(request, 100.5)
    assert found.tries_missed[kind] == missed


def test_tries_leave_a_slow_pool_its_promise() -> None:
    """One at a time for a second each, asked for three times as much."""
    mesh, gateway = prepared(
        infos=[
            worker_info(block_size=16, num_blocks=4096, max_num_seqs=1, max_num_batched_tokens=2048, max_model_len=8000)
        ],
        costs=[StepCost(10e-3, 25e-6)],
        policy=Policy(0, 0),
        delay=0.0002,
        admission_mode=AdmissionMode.ENFORCE,
        audited=False,
        verify=False,
        recorded=False,
    )
    rng, calls, at = random.Random(1), [], mesh.now
    while (at := at + rng.expovariate(3.0)) < 250.0:
        mesh.at(at, lambda at=at: calls.append((at, ask(mesh, gateway, 50, 100))))
    mesh.run(until=250.0)
    settle(mesh)
    took = [call.times[0] - at for at, call in calls if call.accepted]
    assert len(took) > 200
    assert sum(each > 1.0 for each in took) <= 0.05 * len(took)
    assert sum(call.refused == "SLO_UNREACHABLE" for _, call in calls) > 400


def test_misses_are_counted_as_they_happen() -> None:
    mesh, gateway = mesh_that_knows(AdmissionMode.ENFORCE)
    found = foresight(mesh)
    found.spare["interactive", ""] = 0.0
    ask(mesh, gateway, 100)
    settle(mesh)
    # It was in time for sure, where 0.03 of a miss was aimed at.
    assert found.spare["interactive", ""] == pytest.approx(0.03)
    # What is late even alone says nothing of those who wait.
    ask(mesh, gateway, 3000)
    settle(mesh)
    assert found.spare["interactive", ""] == pytest.approx(0.03)
    # Its worker is slower than it was.
    mesh.workers[1]._cost = StepCost(1e-3, 3e-3)
    ask(mesh, gateway, 500)
    settle(mesh)
    assert mesh.logs[-1].fields["first_token_ms"] > 1000
    assert found.spare["interactive", ""] == pytest.approx(0.03 - 0.97)


@pytest.mark.parametrize("mode", [AdmissionMode.ENFORCE, AdmissionMode.SHADOW])
def test_a_try_is_booked_as_what_came_of_it(mode: AdmissionMode) -> None:
    mesh, gateway = mesh_that_knows(mode)
    believe(mesh, "interactive", 100.0)
    found = foresight(mesh)
    found.spare["interactive", ""] = 0.0
    ask(mesh, gateway, 300)
    mesh.run(until=mesh.now + 0.01)
    tried, other = (ask(mesh, gateway, 20) for _ in range(2))
    mesh.run(until=mesh.now + 0.001)
    assert found.spare["interactive", ""] < -0.9
    settle(mesh)
    assert tried.times
    assert (other.refused is None) is (mode is AdmissionMode.SHADOW)
    # In time were the first and the try; what runs although it was refused is no part of the account.
    assert found.spare["interactive", ""] == pytest.approx(2 * 0.03)


@pytest.mark.parametrize(
    ("after_s", "deadline_s", "spare"), [(1.2, None, -0.97), (None, 1.2, -0.97), (0.5, None, 0.0), (None, 0.5, 0.0)]
)
def test_whoever_gives_up_after_the_target_was_late(
    after_s: float | None, deadline_s: float | None, spare: float
) -> None:
    mesh, gateway = mesh_that_knows(AdmissionMode.ENFORCE, max_num_batched_tokens=32)
    found = foresight(mesh)
    found.spare["interactive", ""] = 0.0
    mesh.workers[1]._cost = StepCost(1e-3, 6e-3)
    call = ask(mesh, gateway, 300, deadline_s=deadline_s)
    mesh.run(until=mesh.now + 0.001)
    assert found.spare["interactive", ""] != 0.0
    if after_s is not None:
        mesh.run(until=mesh.now + after_s)
        mesh.cancel(gateway, call)
    settle(mesh)
    assert call.accepted
    assert not call.times
    # Who left before the target was over showed nothing.
    assert found.spare["interactive", ""] == pytest.approx(spare)


@pytest.mark.parametrize(("after_s", "learned"), [(0.01, False), (0.2, True)])
def test_whoever_gives_up_waiting_says_that_it_takes_longer(after_s: float, learned: bool) -> None:
    mesh, gateway = mesh_that_knows(AdmissionMode.SHADOW, max_num_batched_tokens=16)

    def known() -> list[tuple[float, float]]:
        return sorted(each for ratios in foresight(mesh).ratios.values() for each in ratios._recent)

    before = known()
    # A tenth of a second is forecast, and three are needed.
    mesh.workers[1]._cost = StepCost(1e-3, 3e-3)
    call = ask(mesh, gateway, 100)
    mesh.run(until=mesh.now + after_s)
    mesh.cancel(gateway, call)
    settle(mesh)
    assert not call.times
    # Whoever leaves sooner shows nothing.
    *others, (_, ratio) = known()
    assert (others if learned else known()) == before
    assert (1.5 < ratio < 3.0) is learned


FOLLOWING = replace(GREEDY, grammar=b"any", has_grammar=True)


@pytest.mark.parametrize("after_s", [None, 0.2])
@pytest.mark.parametrize(("sampling", "learned"), [(GREEDY, True), (FOLLOWING, False)])
def test_nothing_is_learned_from_who_follows_a_grammar(
    after_s: float | None, sampling: Sampling, learned: bool
) -> None:
    mesh, gateway = mesh_that_knows(AdmissionMode.SHADOW, max_num_batched_tokens=16)

    def known() -> list[Any]:
        found = foresight(mesh)
        ratios = sorted(each for ratios in found.ratios.values() for each in ratios._recent)
        return [ratios, dict(found.spare), found.off.view()]

    before = known()
    # As if its grammar was compiled meanwhile.
    mesh.workers[1]._cost = StepCost(1e-3, 3e-3)
    call = ask(mesh, gateway, 100, sampling=sampling)
    if after_s is not None:
        mesh.run(until=mesh.now + after_s)
        mesh.cancel(gateway, call)
    settle(mesh)
    assert call.accepted
    assert (known() != before) is learned


def test_of_those_that_follow_a_grammar_few_are_let_in_to_see() -> None:
    mesh, gateway = mesh_that_knows(AdmissionMode.ENFORCE)
    believe(mesh, "interactive", 100.0)
    behind = []
    for _ in range(25):
        # Who finds nobody, or shares a step with the one that runs, is never refused.
        calls = [ask(mesh, gateway, 250, sampling=FOLLOWING) for _ in range(4)]
        mesh.run(until=mesh.now + 1.2)
        assert calls[0].accepted
        behind += calls[2:]
    settle(mesh)
    # In 30 s, one in PROBE_SECONDS.
    assert 3 <= sum(call.accepted for call in behind) <= 7


def test_cached_prompts_are_looked_up_where_there_are_any() -> None:
    mesh, gateway = mesh_that_knows(AdmissionMode.SHADOW)
    for _ in range(20):
        ask(mesh, gateway, 2000, first=1)
        settle(mesh)
    assert foresight(mesh).cached_share > 0.7
    ask(mesh, gateway, 2000, first=1)
    settle(mesh)
    ask(mesh, gateway, 2000)
    settle(mesh)
    same, other = [log.fields for log in mesh.logs if log.event == "request_finished"][-2:]
    assert same["forecast_ms"] < 100 < 1500 < other["forecast_ms"]
    assert other["forecast_ms"] == pytest.approx(other["first_token_ms"], rel=0.2)


def test_what_arrives_in_a_second() -> None:
    inflow = Inflow(0.0)
    for tenth in range(300):
        inflow.add(10.0, tenth / 10)
        if tenth > 20:
            assert inflow.per_second(tenth / 10) == pytest.approx(100.0, rel=0.05)
    assert inflow.per_second(30.0 + 3 * INFLOW_SECONDS) < 6.0
