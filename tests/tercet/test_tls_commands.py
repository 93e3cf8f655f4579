"""tercet tls, and the flags with which commands reach a gateway that speaks TLS."""

from __future__ import annotations

import stat
import sys

import certificates
import pytest
from command_line import run

from tercet import errors
from tercet.config import load_config
from tercet.tls.certificate import read_certificate
from tercet.tls.mesh import mesh_identity
from tercet.tls.settings import edge_files

SERVICES = ("gateway", "scheduler", "worker")


def test_init_makes_all_that_a_mesh_needs_and_says_how_to_use_it(tmp_path):
    done = run("tls", "init", str(tmp_path / "pki"), "--host", "gate.example", "--host", "192.0.2.7", "--days", "10")
    assert done.exit_code == 0, done.output
    (tmp_path / "mesh.toml").write_text(done.stdout)
    settings = load_config(tmp_path / "mesh.toml").tls
    edge = read_certificate(edge_files(settings), "server")
    assert edge.names == ("gate.example", "192.0.2.7")
    assert 9 < (edge.ends_at - certificates.now().timestamp()) / 86_400 <= 10
    assert all(mesh_identity(settings, service) is not None for service in SERVICES)
    assert {path.name for path in (tmp_path / "pki").iterdir()} == {
        f"{stem}{ending}" for stem in ("ca", "edge", *SERVICES) for ending in (".pem", "-key.pem")
    }
    for path in (tmp_path / "pki").iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == (0o600 if path.stem.endswith("-key") else 0o644)
    assert stat.S_IMODE((tmp_path / "pki").stat().st_mode) == 0o700


def test_renew_keeps_the_ca_and_the_hosts(tmp_path):
    folder = tmp_path / "pki"
    certificates.make(folder, hosts=("gate.example", "::1"))
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    done = run("tls", "renew", str(folder))
    assert done.exit_code == 0, done.output
    after = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert {name for name in before if before[name] == after[name]} == {"ca.pem", "ca-key.pem"}
    names = read_certificate(edge_files(certificates.settings(folder)), "server").names
    assert names == ("gate.example", "0:0:0:0:0:0:0:1")
    assert run("tls", "renew", str(folder), "--host", "other.example").exit_code == 0
    assert read_certificate(edge_files(certificates.settings(folder)), "server").names == ("other.example",)


def test_what_is_there_is_not_overwritten(tmp_path):
    certificates.make(tmp_path)
    before = (tmp_path / "ca.pem").read_bytes()
    done = run("tls", "init", str(tmp_path))
    assert done.exit_code == 2
    assert "tercet tls renew" in done.stderr
    assert (tmp_path / "ca.pem").read_bytes() == before


@pytest.mark.parametrize("host", ["bücher.example", "", "a b", "-a", "a,b"])
def test_what_is_no_host_makes_nothing(tmp_path, host):
    done = run("tls", "init", str(tmp_path / "pki"), "--host", host)
    assert done.exit_code == 2
    assert "is no host" in done.stderr
    assert not (tmp_path / "pki").exists()


@pytest.mark.parametrize("text", [None, "hello", "-----BEGIN CERTIFICATE-----\n"])
def test_without_a_ca_there_is_nothing_to_renew(tmp_path, text):
    if text is not None:
        (tmp_path / "ca.pem").write_text(text)
        (tmp_path / "ca-key.pem").write_text(text)
    done = run("tls", "renew", str(tmp_path))
    assert done.exit_code == 2
    assert "there is no CA in" in done.stderr


def test_without_the_package_it_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.delitem(sys.modules, "tercet.tls.authority", raising=False)
    monkeypatch.setitem(sys.modules, "cryptography", None)
    done = run("tls", "init", str(tmp_path / "pki"))
    assert done.exit_code == 2
    assert "pip install 'tercet[tls]'" in done.stderr


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--tls-ca", "absent.pem"], "cannot read absent.pem"),
        (["--tls-ca", __file__ + "/.."], "cannot read"),
        (["--tls-ca", "/dev/null"], "is not a PEM file"),
        (["--tls-key", "/dev/null"], "needs its key"),
    ],
)
def test_files_that_cannot_be_used_are_said_to_be(flags, words):
    done = run("fleet", "--address", "127.0.0.1:1", *flags)
    assert done.exit_code == 2
    assert words in done.stderr


@pytest.mark.parametrize(
    ("flags", "warned"),
    [
        (["--address", "192.0.2.1:1", "--api-key", "tct_1"], True),
        (["--address", "[2001:db8::1]:1", "--api-key", "tct_1"], True),
        (["--address", "192.0.2.1:1", "--api-key", "tct_1", "--tls"], False),
        (["--address", "192.0.2.1:1"], False),
        (["--address", "127.0.0.1:1", "--api-key", "tct_1"], False),
    ],
)
def test_a_key_that_others_could_read_is_warned_of(flags, warned, monkeypatch):
    monkeypatch.setattr("tercet.cli.fleet.look", nothing)
    assert ("your key can be read on its way" in run("fleet", *flags).stderr) == warned


async def nothing(_client):
    raise errors.GatewayLostError("nobody is asked")
