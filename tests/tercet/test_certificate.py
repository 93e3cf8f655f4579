"""Certificates as they are read, and renewed while a service runs."""

from __future__ import annotations

import dataclasses
import os
import shutil
import ssl
import subprocess
import sys

import certificates
import pytest
import structlog

from tercet.errors import ConfigError
from tercet.tls.certificate import read_certificate, stamp
from tercet.tls.mesh import mesh_identity
from tercet.tls.settings import CertificateFiles, TlsSettings, edge_files, mesh_files
from tercet.tls.watch import RETRY_S, CertificateWatch


def edge(folder) -> CertificateFiles:
    files = edge_files(certificates.settings(folder))
    assert files is not None
    return files


@pytest.fixture
def folder(tmp_path):
    certificates.make(tmp_path / "pki", hosts=("gate.example", "127.0.0.1", "*.gates.example"))
    return tmp_path / "pki"


def test_a_certificate_says_for_whom_it_is_and_hides_its_key(folder):
    read = read_certificate(edge(folder), "server")
    assert read.names == ("gate.example", "127.0.0.1", "*.gates.example")
    assert read.chain == (folder / "edge.pem").read_bytes()
    assert read.key == (folder / "edge-key.pem").read_bytes()
    assert read.ca is None
    left_s = read.ends_at - certificates.now().timestamp()
    assert 29 * 86_400 < left_s <= 30 * 86_400
    assert "PRIVATE" not in repr(read)


def test_each_service_has_a_certificate_of_its_own(folder):
    for service in ("gateway", "scheduler", "worker"):
        files = mesh_files(certificates.settings(folder), service)
        read = read_certificate(files, "client" if service == "gateway" else "server")
        assert read.names == (f"{service}.tercet.internal",)
        assert read.ca == (folder / "ca.pem").read_bytes()


def test_without_settings_there_is_no_tls():
    assert edge_files(TlsSettings()) is None
    assert mesh_identity(TlsSettings(), "worker") is None


@pytest.mark.parametrize(
    ("spoil", "key", "words"),
    [
        (lambda folder: (folder / "edge.pem").unlink(), "tls.certificate", "No such file"),
        (lambda folder: (folder / "edge-key.pem").unlink(), "tls.key", "No such file"),
        (lambda folder: (folder / "edge.pem").write_text("hello"), "tls.certificate", "no PEM certificate"),
        (lambda folder: (folder / "edge-key.pem").write_text(""), "tls.certificate", "no PEM certificate"),
        (
            lambda folder: shutil.copy(folder / "worker-key.pem", folder / "edge-key.pem"),
            "tls.certificate",
            "key values mismatch",
        ),
        (
            lambda folder: subprocess.run(
                ["openssl", "pkcs8", "-topk8", "-in", "worker-key.pem", "-out", "edge-key.pem", "-passout", "pass:abc"],
                cwd=folder,
                check=True,
            ),
            "tls.key",
            "is encrypted",
        ),
    ],
)
def test_files_of_no_use_name_their_setting(folder, spoil, key, words):
    spoil(folder)
    with pytest.raises(ConfigError, match=words) as caught:
        read_certificate(edge(folder), "server")
    assert caught.value.key == key


@pytest.mark.parametrize("end", ["server", "client"])
def test_what_has_ended_or_is_of_another_ca_is_refused(tmp_path, end):
    certificates.make(tmp_path / "old", days=-3)
    certificates.make(tmp_path / "other")
    ended = mesh_files(certificates.settings(tmp_path / "old"), "worker")
    with pytest.raises(ConfigError, match="certificate has expired") as caught:
        read_certificate(ended, end)
    assert caught.value.key == "tls.mesh_certificate"
    with pytest.raises(ConfigError, match="certificate has expired"):
        read_certificate(edge(tmp_path / "old"), "server")
    strange = mesh_files(
        dataclasses.replace(certificates.settings(tmp_path / "other"), mesh_ca=f"{tmp_path}/old/ca.pem"), "worker"
    )
    with pytest.raises(ConfigError, match="unable to get local issuer certificate"):
        read_certificate(strange, end)
    no_ca = dataclasses.replace(strange, ca=f"{tmp_path}/old/ca-key.pem")
    with pytest.raises(ConfigError, match="has no PEM certificate") as caught:
        read_certificate(no_ca, end)
    assert caught.value.key == "tls.mesh_ca"


def test_a_certificate_that_is_for_clients_alone_is_none_for_a_server(folder):
    shutil.copy(folder / "edge.pem", folder / "gateway.pem")
    shutil.copy(folder / "edge-key.pem", folder / "gateway-key.pem")
    # The edge's is for servers alone.
    with pytest.raises(ConfigError, match="purpose"):
        read_certificate(mesh_files(certificates.settings(folder), "gateway"), "client")


def test_a_service_does_not_start_with_the_certificate_of_another(folder):
    settings = dataclasses.replace(
        certificates.settings(folder), mesh_certificate=f"{folder}/worker.pem", mesh_key=f"{folder}/worker-key.pem"
    )
    assert mesh_identity(settings, "worker") is not None
    with pytest.raises(ConfigError, match=r"is not for scheduler\.tercet\.internal") as caught:
        mesh_identity(settings, "scheduler")
    assert caught.value.key == "tls.mesh_certificate"


class Logged:
    def __init__(self, monkeypatch):
        self.events = structlog.testing.LogCapture()
        monkeypatch.setattr("tercet.tls.watch.log", structlog.wrap_logger(None, processors=[self.events]))

    @property
    def names(self):
        return [entry["event"] for entry in self.events.entries]


def test_a_renewed_certificate_is_taken_and_a_wrong_one_is_not(folder, monkeypatch):
    logged = Logged(monkeypatch)
    watch = CertificateWatch(edge(folder), "server")
    first = watch.latest()
    assert watch.latest() is first
    authority = certificates.Authority(folder)
    (folder / "edge-key.pem").rename(folder / "kept")
    assert watch.latest() is first
    (folder / "kept").rename(folder / "edge-key.pem")
    assert watch.latest() == first
    os.utime(folder / "edge.pem")
    certificates.issue(authority)
    second = watch.latest()
    assert watch.problem == ""
    assert second.chain == (folder / "edge.pem").read_bytes() != first.chain
    (folder / "edge.pem").write_text("half of it")
    for _ in range(3):
        assert watch.latest() is second
    assert watch.problem == "its certificate files cannot be used"
    # Each state of the files is told once.
    assert logged.names == [
        "certificate_not_renewed", "certificate_renewed", "certificate_renewed", "certificate_not_renewed"
    ]  # fmt: skip


def test_a_file_that_vanishes_while_it_is_read_is_one_that_cannot_be_used(folder, tmp_path, monkeypatch):
    logged = Logged(monkeypatch)
    watch = CertificateWatch(edge(folder), "server")
    first = watch.latest()
    kept = (folder / "edge.pem").read_bytes()
    os.utime(folder / "edge.pem")

    def read_and_remove(path):
        data = path.open("rb").read()
        (folder / "edge.pem").unlink(missing_ok=True)
        return data

    with monkeypatch.context() as patch:
        patch.setattr("tercet.tls.certificate.Path.read_bytes", read_and_remove)
        assert watch.latest() is first
    assert watch.problem == "its certificate files cannot be used"
    assert "edge.pem" in logged.events.entries[0]["problem"]
    (folder / "edge.pem").write_bytes(kept)
    assert watch.latest() == first
    assert watch.problem == ""
    # Likewise of the CA, which is read last.
    both = mesh_files(certificates.settings(folder), "worker")
    real = ssl.SSLContext.load_cert_chain

    def load_and_remove(self, *args, **kwargs):
        real(self, *args, **kwargs)
        (folder / "ca.pem").unlink(missing_ok=True)

    monkeypatch.setattr(ssl.SSLContext, "load_cert_chain", load_and_remove)
    with pytest.raises(ConfigError, match="No such file") as caught:
        read_certificate(both, "server")
    assert caught.value.key == "tls.mesh_ca"


def too_early(*_):
    error = ssl.SSLCertVerificationError("verify failed")
    error.verify_message = "certificate is not yet valid"
    raise error


def test_what_could_not_be_used_is_tried_again_though_nobody_changes_it(folder, monkeypatch):
    logged = Logged(monkeypatch)
    at = certificates.now().timestamp()
    watch = CertificateWatch(edge(folder), "server", lambda: at)
    first = watch.latest()
    certificates.issue(certificates.Authority(folder))
    verify = "tercet.tls.certificate._shake_hands"
    with monkeypatch.context() as patch:
        # As of one that is not in force for another minute, by this host's clock.
        patch.setattr(verify, too_early)
        assert watch.latest() is first
        at += RETRY_S
        assert watch.latest() is first
    assert watch.latest() is first
    at += RETRY_S
    assert watch.latest().chain == (folder / "edge.pem").read_bytes() != first.chain
    assert watch.problem == ""
    assert logged.names == ["certificate_not_renewed", "certificate_renewed"]
    # A clock that is set back does not put that off.
    certificates.issue(certificates.Authority(folder))
    with monkeypatch.context() as patch:
        patch.setattr(verify, too_early)
        watch.latest()
    at -= 86_400
    assert watch.latest().chain == (folder / "edge.pem").read_bytes()


def test_files_whose_mode_has_changed_are_other_files(folder):
    before = stamp(edge(folder))
    (folder / "edge-key.pem").chmod(0o640)
    assert stamp(edge(folder)) != before


def test_nothing_is_taken_that_changed_while_it_was_read(folder, monkeypatch):
    Logged(monkeypatch)
    watch = CertificateWatch(edge(folder), "server")
    first = watch.latest()
    authority = certificates.Authority(folder)
    certificates.issue(authority)
    read = read_certificate

    def slow(files, end):
        found = read(files, end)
        certificates.issue(authority)
        return found

    monkeypatch.setattr("tercet.tls.watch.read_certificate", slow)
    assert watch.latest() is first
    monkeypatch.setattr("tercet.tls.watch.read_certificate", read)
    assert watch.latest().chain == (folder / "edge.pem").read_bytes()


def test_the_end_of_a_certificate_is_announced_daily(folder, monkeypatch):
    logged = Logged(monkeypatch)
    at = certificates.now().timestamp()
    watch = CertificateWatch(edge(folder), "server", lambda: at)
    watch.latest()
    assert logged.names == []
    at += 24 * 86_400
    watch.latest()
    watch.latest()
    assert logged.names == ["certificate_ends_soon"]
    at += 86_401
    watch.latest()
    assert logged.names == ["certificate_ends_soon"] * 2
    assert logged.events.entries[-1]["days"] == pytest.approx(5.0, abs=0.1)
    assert watch.problem == ""
    at += 6 * 86_400
    assert watch.problem == "its certificate has expired"


def test_a_service_that_has_no_use_for_its_files_does_not_start(folder, tmp_path):
    certificates.make(tmp_path / "old", days=-3)
    flags = [f"--tls-mesh-{name}={tmp_path}/old/{file}" for name, file in
             (("ca", "ca.pem"), ("certificate", "{service}.pem"), ("key", "{service}-key.pem"))]  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-m", "tercet", "scheduler", "--port=0", *flags], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 2
    assert done.stderr.startswith("tercet: tls.mesh_certificate: ")
    assert "certificate has expired" in done.stderr
    assert len(done.stderr.splitlines()) == 1
