import json
import socket
import sys

import pytest
from click.testing import CliRunner

from tercet import doctor
from tercet.cli import main
from tercet.config import load_config
from tercet.doctor import Finding, ProbeError
from tercet.ledger.ledger import Ledger
from tercet.ports import free_ports


def _answers(text: str):
    return lambda code: text


def _fails(code: str) -> str:
    raise ProbeError("ImportError: libsomething.so is not there")


def test_python_must_be_new_enough():
    assert doctor.check_python((3, 10, 0)).verdict == "ok"
    old = doctor.check_python((3, 9, 18))
    assert (old.verdict, old.remedy != "") == ("fail", True)


def test_torch_that_does_not_import_is_a_failure_with_its_reason():
    assert doctor.check_torch(_answers("2")).verdict == "ok"
    broken = doctor.check_torch(_fails)
    assert broken.verdict == "fail"
    assert "libsomething" in broken.fact
    assert "make setup" in broken.remedy


def test_a_compiler_is_looked_for_where_cxx_points(tmp_path):
    assert doctor.check_compiler({"PATH": str(tmp_path)}).verdict == "warn"
    fake = tmp_path / "my-c++"
    fake.write_text("#!/bin/sh\necho 13.2\n")
    fake.chmod(0o755)
    found = doctor.check_compiler({"CXX": "my-c++ -O2", "PATH": str(tmp_path)})
    assert (found.verdict, found.fact) == ("ok", f"{fake} 13.2")
    assert "my-c++" not in doctor.check_compiler({"PATH": str(tmp_path)}).fact


def test_the_extension_must_load():
    assert "avx2" in doctor.check_extension(_answers("avx2")).fact
    assert doctor.check_extension(_fails).verdict == "fail"


@pytest.mark.parametrize(
    ("said", "needed", "verdict"),
    [("2 NVIDIA X", True, "ok"), ("2 NVIDIA X", False, "ok"), ("0 ", False, "ok"), ("0 ", True, "fail")],
)
def test_a_gpu_is_needed_only_by_a_cuda_worker(said, needed, verdict):
    finding = doctor.check_cuda(_answers(said), needed=needed)
    assert finding.verdict == verdict
    assert bool(finding.remedy) == (verdict == "fail")


@pytest.mark.parametrize(("needed", "verdict"), [(True, "fail"), (False, "warn")])
def test_a_gpu_is_of_little_use_without_kernels(needed, verdict):
    def probe(code):
        if "_kernels" in code:
            raise doctor.ProbeError("no module named _kernels")
        return "1 NVIDIA X"

    finding = doctor.check_cuda(probe, needed=needed)
    assert finding.verdict == verdict
    assert "no module named _kernels" in finding.fact
    assert "build_kernels.py" in finding.remedy


def test_nvcc_is_looked_for_where_the_build_looks(tmp_path, monkeypatch):
    (tmp_path / "bin").mkdir()
    fake = tmp_path / "bin" / "nvcc"
    fake.write_text("")
    fake.chmod(0o755)
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    assert f"nvcc at {fake}" in doctor.check_cuda(_answers("0 "), needed=False).fact


def test_the_model_must_be_there(tmp_path):
    absent = doctor.check_model(str(tmp_path / "absent"))
    assert absent.verdict == "fail"
    assert "does not exist" in absent.remedy
    (tmp_path / "m.gguf").write_bytes(b"x" * 2_000_000)
    assert "2 MB" in doctor.check_model(str(tmp_path / "m.gguf")).fact


def _worker(flags):
    return doctor.check_worker(doctor.run_python, load_config(None, None, flags))


def test_a_worker_that_would_start_says_what_its_cache_would_be():
    found = _worker({"worker.kv_cache_memory": "8MiB", "worker.block_size": "32"})
    assert (found.verdict, found.fact) == ("ok", "KV cache 8 MiB = 11 blocks of 32 tokens, 720.0 KiB each")


def test_what_refuses_a_start_is_found_before_it(tmp_path):
    settings = _worker({"worker.quantization": "fp8"})
    assert (settings.verdict, "worker.quantization" in settings.remedy) == ("fail", True)
    memory = _worker({"worker.memory_fraction": "0.00001"})
    assert (memory.verdict, "not enough memory" in memory.remedy) == ("fail", True)


def test_a_folder_must_have_its_weights(tmp_path):
    shape = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 100, "rms_norm_eps": 1e-5}
    (tmp_path / "config.json").write_text(json.dumps({**config, **shape, "max_position_embeddings": 256}))
    flags = {"model.model": str(tmp_path), "worker.kv_cache_memory": "1MiB"}
    found = _worker(flags)
    assert (found.verdict, "model.safetensors" in found.remedy) == ("fail", True)
    assert _worker({**flags, "model.load_format": "dummy"}).verdict == "ok"
    header = json.dumps({"x": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    (tmp_path / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(4))
    assert _worker(flags).verdict == "ok"


def test_without_what_a_worker_needs_it_is_not_asked_about():
    config = load_config(None, None, {"gateway.port": 0, "scheduler.port": 0, "worker.port": 0})
    assert "worker" not in [finding.subject for finding in doctor.examine(config, _fails)]


def test_the_ledger_must_be_writable(tmp_path):
    def look(where, **env):
        return doctor.check_ledger(load_config(None, None, {"ledger.database": where}).ledger, env)

    state = {"XDG_STATE_HOME": str(tmp_path / "state")}
    assert (look("none").verdict, look("none").fact) == ("ok", "none is kept (ledger.database)")
    assert look("auto", **state).fact == f"{tmp_path}/state/tercet/ledger.db, made by a gateway that starts"
    assert not (tmp_path / "state").exists()
    assert (look(str(tmp_path / "nowhere" / "x.db")).verdict, look("postgresql://").verdict) == ("fail", "fail")
    ledger = Ledger(str(tmp_path / "x.db"), lambda: 0.0)
    ledger.create()
    ledger.close()
    whole = look(str(tmp_path / "x.db"))
    assert whole.fact.startswith(f"{tmp_path}/x.db, schema ")
    assert whole.fact.endswith(" MB, whole")
    with (tmp_path / "x.db").open("r+b") as file:
        # Behind the header, and the table of tables.
        file.seek(2 * 4096)
        file.write(b"\xff" * 4096)
    assert (look(str(tmp_path / "x.db")).verdict, look(str(tmp_path / "x.db")).fact.count("damaged")) == ("fail", 1)
    (tmp_path / "y.db").write_bytes(b"no database at all" * 100)
    broken = look(str(tmp_path / "y.db"))
    assert (broken.verdict, "none" in broken.remedy) == ("fail", True)


def test_a_taken_port_is_a_warning_that_names_the_key():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        finding = doctor.check_port("worker", "127.0.0.1", taken.getsockname()[1])
    assert finding.verdict == "warn"
    assert "worker.port" in finding.remedy
    (port,) = free_ports(1)
    assert doctor.check_port("worker", "127.0.0.1", port).verdict == "ok"


def test_probes_run_in_another_interpreter():
    assert doctor.run_python("print(6 * 7)") == "42"
    with pytest.raises(ProbeError, match="ValueError: no"):
        doctor.run_python("raise ValueError('no')")
    with pytest.raises(ProbeError, match="signal 11"):
        doctor.run_python("import os; os.kill(os.getpid(), 11)")


def test_only_a_failure_fails():
    assert not doctor.failed([Finding("a", "ok", ""), Finding("b", "warn", "", "c")])
    assert doctor.failed([Finding("a", "fail", "", "b")])


def test_examine_covers_every_subject():
    config = load_config(None, None, {"gateway.port": 0, "scheduler.port": 0, "worker.port": 0})
    findings = list(doctor.examine(config, _answers("0 ")))
    subjects = ["python", "torch", "compiler", "extension", "cuda", "model", "worker", "ledger"]
    subjects += ["gateway port", "scheduler port"]
    assert [finding.subject for finding in findings] == [*subjects, "worker port"]
    assert all(finding.remedy for finding in findings if finding.verdict != "ok")


def test_the_command_exits_with_1_if_something_needed_is_missing(tmp_path):
    done = CliRunner().invoke(main, ["doctor", "--model", str(tmp_path / "absent"), "--worker-port", "0"])
    assert done.exit_code == 1
    assert "fail model" in done.stdout
    assert "does not exist" in done.stdout
    assert f"({sys.executable})" in done.stdout.replace("\n", "")
