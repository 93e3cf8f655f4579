"""What is counted of requests: each exactly once, by class and by tenant, and what was promised."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from outcomes import prepared, settle
from recorded import FOREVER, live
from sequences import sequence_of

from scheduler.events import TenantsChanged
from scheduler.sequence import Request
from scheduler.simulator.mesh import VirtualMesh
from scheduler.simulator.small import submission, worker_info
from scheduler.tenant import ANYONE, NamedPlan
from scheduler.traffic import RECENT_SPANS, SPAN_SECONDS, Counts, Kept, Traffic
from scheduler.traffic_class import CLASSES, Target, TrafficClass
from scheduler.traffic_messages import traffic_to_proto
from scheduler.traffic_view import ClassView, Load, TrafficView
from tercet.traffic import ForecastQuality, from_traffic

CHAT = TrafficClass("chat", 0, 0.0, ttft=Target(1.0), gap=Target(0.1))


def request_of(
    arrived_at: float = 10.0,
    traffic_class: TrafficClass = CHAT,
    tenant: NamedPlan = ANYONE,
    *,
    generated: tuple[int, ...] = (),
    cached: int = 0,
) -> Request:
    """A request with one output for each count of generated tokens."""
    asked = submission(1, (1, 2, 3, 4), 100, n=max(1, len(generated)))
    request = Request(1, asked, arrived_at, None, tenant, traffic_class)
    request.sequences = tuple(
        sequence_of(request, index, [*asked.prompt_token_ids, *[5] * count], 104, cached_tokens=cached)
        for index, count in enumerate(generated or (0,))
    )
    return request


def of_class(traffic: Traffic, name: str = "chat") -> Counts:
    return traffic.classes[name].counts


def served(traffic: Traffic, ttft: float, gap: float, tokens: int = 11, **more: Any) -> None:
    request = request_of(generated=(tokens,), **more)
    traffic.accepted(request)
    request.first_token_at = request.arrived_at + ttft
    traffic.first_token(request, request.first_token_at)
    traffic.ended(request, "LENGTH", "", request.first_token_at + gap * (tokens - 1))


def test_a_request_that_is_served_in_time_keeps_its_promises() -> None:
    traffic = Traffic()
    served(traffic, 0.5, 0.05)
    counts = of_class(traffic)
    assert (counts.accepted, counts.served, counts.cancelled, counts.failed) == (1, 1, 0, {})
    assert counts.promises.ttft == counts.promises.gap == counts.promises.request == Kept(1, 0)
    assert (counts.prompt_tokens, counts.generated_tokens) == (4, 11)


@pytest.mark.parametrize(
    ("ttft", "gap", "kept"), [(1.0, 0.1, (1, 1, 1)), (1.01, 0.05, (0, 1, 0)), (0.5, 0.11, (1, 0, 0))]
)
def test_each_part_is_judged_by_itself(ttft: float, gap: float, kept: tuple[int, ...]) -> None:
    traffic = Traffic()
    served(traffic, ttft, gap)
    promises = of_class(traffic).promises
    assert tuple(each.kept for each in (promises.ttft, promises.gap, promises.request)) == kept
    assert all(each.kept + each.broken == 1 for each in (promises.ttft, promises.gap, promises.request))


def test_a_class_that_promises_nothing_breaks_nothing() -> None:
    traffic = Traffic()
    served(traffic, 100.0, 10.0, traffic_class=CLASSES["batch"])
    promises = of_class(traffic, "batch").promises
    assert promises.ttft == promises.gap == Kept()
    assert promises.request == Kept(1, 0)


def test_one_token_has_no_gap() -> None:
    traffic = Traffic()
    served(traffic, 0.5, 0.0, tokens=1)
    assert of_class(traffic).promises.gap == Kept()
    assert of_class(traffic).promises.request == Kept(1, 0)


@pytest.mark.parametrize(
    ("outcome", "reason", "served", "cancelled", "failed"),
    [
        ("STOP", "", 1, 0, {}),
        ("LENGTH", "", 1, 0, {}),
        ("CANCELLED", "STOP_STRING", 1, 0, {}),
        ("CANCELLED", "CLIENT", 0, 1, {}),
        ("CANCELLED", "OPERATOR", 0, 1, {}),
        ("CANCELLED", "LINK_LOST", 0, 1, {}),
        ("CANCELLED", "SLOW_CONSUMER", 0, 1, {}),
        ("CANCELLED", "DEADLINE", 0, 0, {"DEADLINE_PASSED": 1}),
        ("CANCELLED", "DEADLINE_PASSED", 0, 0, {"DEADLINE_PASSED": 1}),
        ("CANCELLED", "QUEUE_EXPIRED", 0, 0, {"QUEUE_EXPIRED": 1}),
        ("FAILED", "WORKER_LOST", 0, 0, {"WORKER_LOST": 1}),
    ],
)
def test_ends(outcome: str, reason: str, served: int, cancelled: int, failed: dict[str, int]) -> None:
    traffic = Traffic()
    request = request_of(generated=(3, 2))
    traffic.accepted(request)
    traffic.ended(request, outcome, reason, 10.5)
    counts = of_class(traffic)
    assert (counts.served, counts.cancelled, counts.failed) == (served, cancelled, failed)
    assert counts.generated_tokens == 5
    # Who nobody wanted any more was neither served well nor badly.
    assert counts.promises.request == Kept(served, len(failed))


@pytest.mark.parametrize(("waited", "broken"), [(0.9, 0), (1.1, 1)])
@pytest.mark.parametrize("reason", ["CLIENT", "QUEUE_EXPIRED"])
def test_whoever_leaves_late_without_a_token_had_a_promise_broken(waited: float, broken: int, reason: str) -> None:
    traffic = Traffic()
    request = request_of()
    traffic.accepted(request)
    traffic.ended(request, "CANCELLED", reason, request.arrived_at + waited)
    assert of_class(traffic).promises.ttft == Kept(0, broken)
    assert traffic.classes["chat"].recent(11.0).promises.ttft == Kept(0, broken)


def test_what_is_recent_passes() -> None:
    traffic = Traffic()
    served(traffic, 0.5, 0.05)
    minute = RECENT_SPANS * SPAN_SECONDS
    recent = traffic.classes["chat"].recent(11.0)
    assert recent.ttft.count == 1
    assert recent.promises.request == Kept(1, 0)
    assert traffic.classes["chat"].recent(11.0 + minute - 2 * SPAN_SECONDS).ttft.count == 1
    assert traffic.classes["chat"].recent(11.0 + minute).ttft.count == 0
    served(traffic, 0.5, 0.05, arrived_at=10.0 + minute)
    assert traffic.classes["chat"].recent(11.0 + minute).ttft.count == 1
    for index in range(100):
        served(traffic, 0.5, 0.05, arrived_at=1000.0 + 7 * index)
    assert len(traffic.classes["chat"].spans) == RECENT_SPANS
    assert of_class(traffic).promises.request == Kept(102, 0)


def test_tenants_that_are_gone_are_one() -> None:
    acme, globex = NamedPlan("acme"), NamedPlan("globex")
    traffic = Traffic()
    for tenant in (acme, globex, globex):
        served(traffic, 0.5, 0.05, tenant=tenant)
    late = request_of(tenant=globex, generated=(7,))
    traffic.accepted(late)
    traffic.refused("globex", "chat", "TENANT_QUOTA")
    traffic.refused(None, "", "PERMISSION_DENIED")
    traffic.keep({"acme", "new"})
    assert set(traffic.tenants) == {"acme", None}
    gone = traffic.tenants[None]["chat"]
    assert (gone.accepted, gone.served, gone.refused) == (3, 2, {"TENANT_QUOTA": 1})
    # It was accepted when its tenant was there.
    traffic.ended(late, "LENGTH", "", 20.0)
    assert (gone.served, gone.generated_tokens) == (3, 29)
    assert traffic.tenants[None][""].refused == {"PERMISSION_DENIED": 1}
    assert set(traffic.tenants) == {"acme", None}


def numbers(counts: Counts) -> Counter[str]:
    """All that can be added, by name."""
    names = ("accepted", "served", "cancelled", "generated_tokens", "wasted_tokens", "prompt_tokens", "cached_tokens")
    found = Counter({name: getattr(counts, name) for name in names})
    for kind, by_reason in (("refused", counts.refused), ("failed", counts.failed)):
        found.update({f"{kind} {reason}": count for reason, count in by_reason.items()})
    for name in ("ttft", "gap", "request"):
        promise = getattr(counts.promises, name)
        found.update({f"{name} kept": promise.kept, f"{name} broken": promise.broken})
    return +found


@pytest.mark.parametrize("seed", range(8))
def test_whatever_happens_every_request_is_counted_once(seed: int) -> None:
    mesh, _ = live(seed, FOREVER, requests=60)
    mesh.run()
    calls = [call for gateway in mesh.gateways.values() for call in gateway.calls.values()]
    view = mesh.core.traffic(mesh.now, 10)
    classes = {"" if each.traffic_class is None else each.traffic_class.name: each.counts for each in view.classes}
    for name, counts in classes.items():
        assert counts.accepted == counts.served + counts.cancelled + sum(counts.failed.values())
        of_tenants = [numbers(each.counts) for each in view.tenants if each.traffic_class == name]
        assert sum(of_tenants, Counter()) == numbers(counts)
    assert sum(counts.accepted for counts in classes.values()) == sum(call.accepted for call in calls)
    assert sum(counts.accepted for counts in classes.values()) == mesh.core.view().requests_finished
    reasons = Counter(call.refused for call in calls if call.refused is not None)
    assert sum((Counter(counts.refused) for counts in classes.values()), Counter()) == reasons
    # What was sent is what was counted, but for gateways that went away: they saw less.
    sent = sum(len(output.tokens) for call in calls for output in call.outputs)
    generated = sum(counts.generated_tokens for counts in classes.values())
    lost = any(gateway.lost for gateway in mesh.gateways.values())
    assert generated >= sent if lost else generated == sent
    assert all(each.load == Load() for each in (*view.classes, *view.tenants))


def class_of(view: TrafficView, name: str) -> ClassView:
    return next(each for each in view.classes if each.traffic_class is not None and each.traffic_class.name == name)


def watch(mesh: VirtualMesh, name: str = "interactive") -> ClassView:
    return class_of(mesh.core.traffic(mesh.now, 10), name)


def test_the_load_is_what_waits_and_what_runs() -> None:
    mesh, gateway = prepared(infos=[worker_info(max_num_seqs=3)])
    for key in range(1, 7):
        mesh.submit(gateway, submission(key, [key] * 5, 40, traffic_class="interactive"))
    mesh.run(0.1)
    first = watch(mesh)
    fleet = mesh.core.view()
    assert first.load.requests_running == fleet.requests_running > 0
    assert first.load.requests_waiting == fleet.requests_waiting > 0
    assert first.load.tokens_waiting == 5 * fleet.requests_waiting
    assert first.load.oldest == 0.0
    assert first.load.blocks == sum(worker.blocks.used for worker in fleet.workers)
    # Tokens are told of while they come, and none twice when their request has ended.
    seen = []
    for _ in range(40):
        mesh.run(mesh.now + 0.02)
        view = watch(mesh)
        seen.append(view.counts.generated_tokens + view.load.generated_tokens)
        sent = sum(len(call.tokens) for call in gateway.calls.values())
        assert seen[-1] == sent
    assert seen == sorted(seen)
    settle(mesh)
    assert watch(mesh).counts.generated_tokens == 6 * 40
    assert watch(mesh).load.oldest is None


def test_tenants_are_told_of_from_the_busiest_on() -> None:
    mesh, gateway = prepared()
    plans = tuple(NamedPlan(name) for name in ("acme", "globex", "initech"))
    mesh.post(TenantsChanged(gateway.number, 1, plans))
    for key, tenant in enumerate(["acme", "globex", "globex", "initech", "initech", "initech"]):
        mesh.submit(gateway, submission(key, (1, 2), 40, tenant=tenant))
    mesh.run(0.05)
    view = mesh.core.traffic(mesh.now, 2)
    assert [each.tenant for each in view.tenants] == ["initech", "globex"]
    assert view.tenants_omitted == 1
    assert class_of(view, "interactive").counts.accepted == 6
    settle(mesh)
    everybody = mesh.core.traffic(mesh.now, 10)
    assert sorted((each.tenant or "", each.counts.served) for each in everybody.tenants) == [
        ("acme", 1), ("globex", 2), ("initech", 3),
    ]  # fmt: skip


def test_a_name_that_is_not_known_is_not_kept() -> None:
    mesh, gateway = prepared()
    for key in range(20):
        mesh.submit(gateway, submission(key, traffic_class=f"made-up-{key}"))
    view = mesh.core.traffic(mesh.now, 10)
    nameless = view.classes[-1]
    assert nameless.traffic_class is None
    assert nameless.counts.refused == {"INVALID_FIELD": 20}
    assert len(view.classes) == 4


def test_it_says_how_good_forecasts_were() -> None:
    mesh, gateway = prepared()
    assert all(view.error is None for _, _, view in mesh.core.traffic(mesh.now, 10).forecasts)
    for key in range(20):
        mesh.at(0.05 * key, lambda key=key: mesh.submit(gateway, submission(key, [key] * 9, 8)))
    settle(mesh)
    view = mesh.core.traffic(mesh.now, 10)
    told = from_traffic(traffic_to_proto(view, 1, 2.0)).forecasts
    ((model, revision, forecasts),) = view.forecasts
    assert forecasts.error is not None
    # What a step takes is not known at the first.
    assert 10 <= forecasts.error.forecasts < 20
    assert told == (
        ForecastQuality(model, revision, forecasts.error.forecasts, forecasts.error.median, forecasts.error.bias, 0, 0),
    )
