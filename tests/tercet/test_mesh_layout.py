import dataclasses
import re
import socket

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tercet import mesh_layout
from tercet.config import ConfigErrors, load_config
from tercet.errors import ConfigError
from tercet.mesh_layout import SERVICES, check_ports, layout, num_cores, stop_order
from tercet.ports import check_port_free, free_ports
from tercet.sections import MeshConfig

FREE = {"gateway.port": 0, "scheduler.port": 0, "worker.port": 0}


def _layout(num_workers=1, **flags):
    return layout(load_config(None, None, {key.replace("__", "."): value for key, value in flags.items()}), num_workers)


def _check(flags, num_workers=1):
    check_ports(layout(load_config(None, None, flags), num_workers))


def test_the_three_are_connected_by_ports_and_loopback():
    gateway, scheduler, worker = members = _layout(
        gateway__host="0.0.0.0", scheduler__host="::", worker__host="0.0.0.0", worker__port=7, scheduler__port=8
    )
    assert [member.name for member in members] == [member.service for member in members] == list(SERVICES)
    assert gateway.address == f"127.0.0.1:{MeshConfig().gateway.port}"
    assert (scheduler.address, worker.address) == ("[::1]:8", "127.0.0.1:7")
    for member in members:
        assert member.config.gateway.scheduler == ("[::1]:8",)
        assert member.config.scheduler.workers == ("127.0.0.1:7",)
    # One worker has the host for itself.
    assert worker.settings == load_config(None, None, {"worker.host": "0.0.0.0", "worker.port": 7}).worker


@pytest.mark.parametrize("num_workers", [1, 4])
def test_free_ports_are_different_and_free(num_workers):
    members = layout(load_config(None, None, FREE), num_workers)
    assert len({member.settings.port for member in members}) == num_workers + 2
    for member in members:
        check_port_free("x.port", "127.0.0.1", member.settings.port)


def test_several_workers_take_the_ports_that_follow():
    members = _layout(3, worker__port=700)
    assert [member.name for member in members] == ["gateway", "scheduler", "worker-1", "worker-2", "worker-3"]
    assert [member.address for member in members[2:]] == [f"127.0.0.1:{port}" for port in (700, 701, 702)]
    assert {member.config.scheduler.workers for member in members} == {tuple(m.address for m in members[2:])}
    with pytest.raises(ConfigError, match=r"^worker\.port: is 65534: 3 workers need the ports up to 65536"):
        _layout(3, worker__port=65534)
    assert _layout(2, worker__port=65534)[-1].settings.port == 65535


@settings(deadline=None)
@given(st.integers(1, 16), st.integers(2, 12))
def test_workers_divide_cores_and_memory(cores, num_workers):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mesh_layout, "num_cores", lambda: cores)
        workers = [member.settings for member in _layout(num_workers, worker__memory_fraction=0.8)[2:]]
    threads = [worker.num_threads for worker in workers]
    assert min(threads) >= 1
    assert max(threads) - min(threads) <= 1
    assert sum(threads) == max(cores, num_workers)
    assert sum(worker.memory_fraction for worker in workers) == pytest.approx(0.8)


def test_what_is_said_of_a_worker_holds_for_each():
    for worker in (member.settings for member in _layout(2, worker__num_threads=5, worker__kv_cache_memory="1MiB")[2:]):
        assert (worker.num_threads, worker.kv_cache_memory) == (5, 1 << 20)
    assert num_cores() >= 1


def test_each_worker_has_a_gpu_of_its_own_unless_one_is_named():
    each = [member.settings for member in _layout(2, worker__device="cuda")[2:]]
    assert [(worker.device, worker.gpu_memory_utilization) for worker in each] == [("cuda:0", 0.9), ("cuda:1", 0.9)]
    one = [member.settings for member in _layout(2, worker__device="cuda:1")[2:]]
    assert [(worker.device, worker.gpu_memory_utilization) for worker in one] == [("cuda:1", 0.45)] * 2
    assert {worker.num_threads for worker in (*each, *one)} == {0}


def test_a_gateway_has_time_for_its_clients_to_move():
    members = _layout(gateway__handover_seconds=7, gateway__drain_seconds=2, worker__drain_seconds=3)
    assert [member.grace_s for member in members] == [9.0, MeshConfig().scheduler.drain_seconds, 3.0]


def test_names_sort_as_the_members_stop():
    names = ["worker-10", "worker-2", "scheduler", "worker-1", "gateway"]
    assert sorted(names, key=stop_order) == ["gateway", "scheduler", "worker-1", "worker-2", "worker-10"]


def test_members_do_not_change():
    with pytest.raises(dataclasses.FrozenInstanceError):
        _layout()[0].name = "x"


def test_free_ports_differ():
    assert len(set(free_ports(20))) == 20


@pytest.mark.parametrize("host", ["192.0.2.1", "no.such.host.invalid"])
def test_an_address_that_is_not_ours_names_the_key(host):
    with pytest.raises(ConfigError, match=r"gateway\.port"):
        check_port_free("gateway.port", host, 0)


def test_services_on_one_port_of_one_host_are_found_before_anything_starts():
    (port,) = free_ports(1)
    same = {**FREE, "gateway.port": port, "scheduler.port": port}
    with pytest.raises(ConfigError, match=rf"^scheduler\.port: is {port}, which is gateway\.port too"):
        _check(same)
    with pytest.raises(ConfigError, match="gateway"):
        _check({**same, "gateway.host": "0.0.0.0"})
    with pytest.raises(ConfigErrors) as caught:
        _check({**same, "worker.host": "192.0.2.1"})
    assert [problem.key for problem in caught.value.problems] == ["worker.port", "scheduler.port"]
    _check(FREE)
    _check({**same, "scheduler.host": "127.0.0.2"})


def test_a_further_worker_on_the_port_of_another_service_is_named():
    (port,) = free_ports(1)
    with pytest.raises(ConfigError, match=rf"worker\.port: is {port} for worker-2, which is gateway\.port too"):
        _check({**FREE, "gateway.port": port, "worker.port": port - 1}, num_workers=2)


def test_several_gateways_share_the_port_and_have_one_of_their_own_each():
    members = layout(load_config(None, None, FREE | {"gateway.host": "0.0.0.0"}), 2, num_gateways=3)
    names = ["gateway-1", "gateway-2", "gateway-3", "scheduler", "worker-1", "worker-2"]
    assert [member.name for member in members] == names
    gateways = [member.settings for member in members[:3]]
    (shared,) = {gateway.shared_port for gateway in gateways}
    assert shared
    assert len({shared, *(member.settings.port for member in members)}) == 7
    assert {member.shared_address for member in members[:3]} == {f"127.0.0.1:{shared}"}
    assert {gateway.scheduler for gateway in gateways} == {(members[3].address,)}
    (alone, *_) = _layout(gateway__port=700)
    assert (alone.settings.port, alone.settings.shared_port) == (700, 0)
    assert alone.shared_address == alone.address


def test_a_shared_port_that_is_taken_is_found_before_anything_starts():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen(1)
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=rf"^gateway\.port: cannot listen on 127\.0\.0\.1:{port}"):
            check_ports(layout(load_config(None, None, {**FREE, "gateway.port": port}), 1, num_gateways=2))
    with pytest.raises(ConfigError, match=rf"^scheduler\.port: is {port}, which is gateway\.port too"):
        same = {**FREE, "gateway.port": port, "scheduler.port": port}
        check_ports(layout(load_config(None, None, same), 1, num_gateways=2))


def test_a_port_of_http_is_nobody_elses():
    one, two, three, four, http = free_ports(5)
    ports = {"gateway.port": one, "scheduler.port": two, "worker.port": three, "gateway.http_port": http}
    _check(ports)
    for key, whose in (("gateway.port", "gateway.http_port"), ("scheduler.port", "scheduler.port")):
        with pytest.raises(ConfigError, match=rf"^{whose}: is {http}, which is gateway\.(http_)?port too"):
            _check(ports | {key: http})
    with socket.create_server(("127.0.0.1", four)), pytest.raises(ConfigError, match=r"^gateway\.http_port: .*--http"):
        _check(ports | {"gateway.http_port": four})


def test_http_is_found_at_a_url():
    gateway = _layout(gateway__host="0.0.0.0", gateway__http_port=8000)[0]
    assert gateway.http_url == "http://127.0.0.1:8000/v1"
    assert _layout()[0].http_url == ""


def test_metrics_have_a_port_for_each_process():
    members = layout(load_config(None, None, {**FREE, "metrics.port": 9464}), 2, num_gateways=2)
    assert [(member.name, member.config.metrics.port) for member in members] == [
        ("gateway-1", 9464), ("gateway-2", 9465), ("scheduler", 9466), ("worker-1", 9467), ("worker-2", 9468),
    ]  # fmt: skip
    assert members[2].metrics_url == "http://127.0.0.1:9466/metrics"
    without = layout(load_config(None, None, FREE), 2)
    assert {(member.config.metrics.port, member.metrics_url) for member in without} == {(0, "")}
    with pytest.raises(ConfigError, match=r"^metrics\.port: is 65534: 3 services need the ports up to 65536"):
        _layout(metrics__port=65534)
    assert _layout(metrics__port=9464, metrics__host="::")[0].metrics_url == "http://[::1]:9464/metrics"


def test_a_port_of_metrics_is_nobody_elses():
    one, two, three, http, metrics = free_ports(5)
    ports = {"gateway.port": one, "scheduler.port": two, "worker.port": three, "gateway.http_port": http}
    for port, whose in ((one, "gateway.port"), (two, "scheduler.port"), (three, "worker.port"), (http, "http_port")):
        members = layout(load_config(None, None, ports | {"metrics.port": port}))
        # Others may be collided with as well: the ports are next to each other.
        problems = [str(each) for each in mesh_layout._metrics_problems(members)]
        assert any(
            re.match(rf"metrics\.port: gives gateway the port {port}, which is .*{whose}", each) for each in problems
        )
    with (
        socket.create_server(("127.0.0.1", metrics)),
        pytest.raises(ConfigError, match=r"^metrics\.port: .*--metrics-"),
    ):
        _check(ports | {"metrics.port": metrics})
