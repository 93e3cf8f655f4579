"""Who can reach a service, and whether it may let them."""

from __future__ import annotations

import pytest

from tercet.config import load_config
from tercet.errors import ConfigError
from tercet.public_bind import check_public_bind, is_public, open_doors

KEYS = {"tenants.store": "tenants.db"}
EDGE = {"tls.certificate": "a.pem", "tls.key": "b.pem"}
MESH = {"tls.mesh_ca": "a.pem", "tls.mesh_certificate": "b.pem", "tls.mesh_key": "c.pem"}


@pytest.mark.parametrize(
    ("host", "public"),
    [("127.0.0.1", False), ("127.9.9.9", False), ("::1", False), ("localhost", False), ("0.0.0.0", True), ("::", True),
     ("192.0.2.1", True), ("no.such.host.invalid", False)],
)  # fmt: skip
def test_what_other_hosts_can_reach_is_known(host, public):
    assert is_public(host) == public


@pytest.mark.parametrize(
    ("service", "given", "missing"),
    [
        ("gateway", {}, ("tenants.store", "tls.certificate")),
        ("gateway", KEYS, ("tls.certificate",)),
        ("gateway", {**EDGE, **MESH}, ("tenants.store",)),
        ("gateway", {**KEYS, **EDGE}, ()),
        ("scheduler", {**KEYS, **EDGE}, ("tls.mesh_ca",)),
        ("scheduler", MESH, ()),
        ("worker", {}, ("tls.mesh_ca",)),
        ("worker", MESH, ()),
    ],
)
def test_a_public_service_must_know_who_calls(service, given, missing):
    config = load_config(None, None, {**given, f"{service}.host": "0.0.0.0"})
    assert open_doors(service, config) == missing
    if not missing:
        check_public_bind(service, config)
        return
    with pytest.raises(ConfigError) as caught:
        check_public_bind(service, config)
    assert caught.value.key == f"{service}.host"
    assert " and ".join(missing) in str(caught.value)
    check_public_bind(service, load_config(None, None, {**given, f"{service}.host": "127.0.0.1"}))
    allowed = {f"{service}.host": "0.0.0.0", "tls.insecure_public_bind": "true"}
    check_public_bind(service, load_config(None, None, {**given, **allowed}))


@pytest.mark.parametrize(
    ("given", "missing"),
    [
        ({"tls.certificate": "a.pem"}, {"tls.key"}),
        ({"tls.key": "a.pem"}, {"tls.certificate"}),
        ({"tls.mesh_key": "a.pem"}, {"tls.mesh_ca", "tls.mesh_certificate"}),
        ({"tls.mesh_ca": "a.pem", "tls.mesh_certificate": "b.pem"}, {"tls.mesh_key"}),
    ],
)
def test_half_of_tls_is_no_setting(given, missing):
    with pytest.raises(ConfigError) as caught:
        load_config(None, None, given)
    problems = getattr(caught.value, "problems", (caught.value,))
    assert {problem.key for problem in problems} == missing


@pytest.mark.parametrize("service", ["gateway", "scheduler", "worker"])
def test_metrics_are_told_to_other_hosts_only_where_that_is_allowed(service):
    # Whatever keys and certificates there are: it asks for neither.
    public = {**KEYS, **EDGE, **MESH, "metrics.host": "0.0.0.0"}
    check_public_bind(service, load_config(None, None, public))
    with pytest.raises(ConfigError, match=r"^metrics\.host: 0\.0\.0\.0 can be reached"):
        check_public_bind(service, load_config(None, None, {**public, "metrics.port": 9464}))
    allowed = {"metrics.port": 9464, "tls.insecure_public_bind": "true"}
    check_public_bind(service, load_config(None, None, {**public, **allowed}))
    check_public_bind(service, load_config(None, None, {"metrics.port": 9464}))
