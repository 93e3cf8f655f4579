"""What forecasts do in the real core, and what is left of a request that is refused."""

from __future__ import annotations

import gc

import pytest
from outcomes import judge, prepared, settle

from scheduler.admission import AdmissionMode
from scheduler.sequence import Request
from scheduler.simulator.mesh import VirtualMesh
from scheduler.simulator.small import submission, worker_info
from scheduler.traffic_class import Target, TrafficClass


@pytest.mark.parametrize("mode", list(AdmissionMode))
def test_what_a_forecast_does_is_a_setting(mode: AdmissionMode) -> None:
    """Four times as many as the worker can serve, with a promise that the queue breaks."""
    classes = (TrafficClass("interactive", 0, 0.0, ttft=Target(0.3)),)
    mesh = VirtualMesh([worker_info(max_num_seqs=1)], classes=classes, admission_mode=mode, step_time=0.02)
    gateway = mesh.attach_gateway()
    mesh.attach_worker()
    calls = []
    for key in range(100):
        mesh.at(0.05 * key, lambda key=key: calls.append(mesh.submit(gateway, submission(key, (5, key % 50), 10))))
    settle(mesh)
    for call in calls:
        judge(call, refusals={"SLO_UNREACHABLE"})
    refused = [call for call in calls if call.refused]
    foreseen = [log for log in mesh.logs if log.event == "refusal_foreseen"]
    told = [log for log in mesh.logs if log.event == "request_refused"]
    assert len(told) == len(refused)
    if mode is AdmissionMode.ENFORCE:
        assert len(refused) > 50
        assert all(log.fields["retry_after_s"] for log in told)
    else:
        assert not refused
    assert (len(foreseen) > 50) == (mode is AdmissionMode.SHADOW)
    forecasts = [log.fields["forecast_ms"] for log in mesh.logs if log.event == "request_finished"]
    assert any(forecasts) == (mode is not AdmissionMode.OFF)


def test_who_is_more_urgent_is_not_forecast_to_wait_for_its_own_line() -> None:
    mesh, gateway = prepared(infos=[worker_info(max_num_seqs=1)], admission_mode=AdmissionMode.SHADOW, step_time=0.02)
    line = [mesh.submit(gateway, submission(key, (5, key), 10)) for key in range(40)]
    mesh.run(until=1.0)
    plain, urgent = (mesh.submit(gateway, submission(key, (7, 7), 10, priority=50 - key)) for key in (50, 60))
    settle(mesh)
    for call in (*line, plain, urgent):
        judge(call)
    forecast_s = {
        log.fields["request_id"]: log.fields["forecast_ms"] / 1e3
        for log in mesh.logs
        if log.event == "request_finished" and log.fields["forecast_ms"]
    }
    assert plain.times[0] - 1.0 > 20 * (urgent.times[0] - 1.0)
    # But for two steps.
    for call in (plain, urgent):
        assert forecast_s[call.submission.request_id] == pytest.approx(call.times[0] - 1.0, rel=0.3, abs=0.04)


@pytest.mark.parametrize(("reason", "ahead", "token_id"), [("INVALID_FIELD", 0, 10**6), ("SLO_UNREACHABLE", 10, 9)])
def test_a_refused_request_is_not_left_to_the_garbage_collector(reason: str, ahead: int, token_id: int) -> None:
    classes = (TrafficClass("interactive", 0, 0.0, ttft=Target(0.3)),)
    mesh, gateway = prepared(infos=[worker_info(max_num_seqs=1)], classes=classes, step_time=0.02)
    for key in range(ahead):
        mesh.submit(gateway, submission(key, (5, key), 100))
        mesh.run(until=mesh.now + 0.2)
    gc.collect()
    gc.disable()
    try:
        before = _num_requests()
        calls = [mesh.submit(gateway, submission(key, (token_id,) * 50)) for key in range(100, 150)]
        mesh.run(until=mesh.now + 0.01)
        assert {call.refused for call in calls} == {reason}
        assert _num_requests() <= before
    finally:
        gc.enable()


def _num_requests() -> int:
    return sum(type(each) is Request for each in gc.get_objects())
