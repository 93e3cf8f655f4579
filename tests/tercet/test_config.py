import dataclasses
import typing

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tercet.config import ConfigErrors, MeshConfig, load_config, setting_keys, to_environment
from tercet.errors import ConfigError


def _file(tmp_path, text):
    path = tmp_path / "mesh.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_later_sources_win(tmp_path):
    path = _file(tmp_path, "[worker]\nmax_num_seqs = 1\nport = 7001\nblock_size = 8\n")
    env = {"TERCET_WORKER_MAX_NUM_SEQS": "2", "TERCET_WORKER_PORT": "7002", "HOME": "/", "TERCETX_PORT": "x"}
    config = load_config(path, env, {"worker.max_num_seqs": 3})
    assert (config.worker.max_num_seqs, config.worker.port, config.worker.block_size) == (3, 7002, 8)
    assert config.worker.max_num_batched_tokens == MeshConfig().worker.max_num_batched_tokens


def test_without_sources_all_is_default():
    assert load_config() == MeshConfig()


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("worker.max_num_seqs", "many"),
        ("worker.max_num_seqs", "0"),
        ("worker.max_num_seqs", "1.5"),
        ("worker.port", "65536"),
        ("worker.port", "-1"),
        ("worker.dtype", "float8"),
        ("worker.block_size", "17"),
        ("worker.block_size", "512"),
        ("worker.enable_prefix_caching", "perhaps"),
        ("worker.kv_cache_memory", "3 parsecs"),
        ("worker.kv_cache_memory", "-1"),
        ("worker.kv_cache_memory", "1e400GiB"),
        ("worker.max_num_seqs", "4KiB"),
        ("worker.host", ""),
        ("model.model", ""),
        ("model.model", " "),
        ("gateway.scheduler", "nowhere"),
        ("gateway.scheduler", "host:0"),
        ("gateway.scheduler", ":50052"),
        ("gateway.drain_seconds", "soon"),
        ("gateway.drain_seconds", "-1"),
        ("scheduler.workers", ""),
        ("scheduler.workers", "a:1,b"),
        ("scheduler.workers", "dns://"),
        ("scheduler.workers", "dns://name"),
        ("scheduler.workers", "a:1,dns://name:0"),
        ("scheduler.workers", "dns://dns://name:1"),
        ("scheduler.workers", "http://name:1"),
        ("scheduler.workers", "::1:50053"),
        ("scheduler.workers", "[]:50053"),
        ("scheduler.resolve_seconds", "0"),
        ("gateway.scheduler", "dns://name:1"),
        ("worker.memory_fraction", "0"),
        ("worker.memory_fraction", "1.5"),
        ("worker.memory_fraction", "nan"),
        ("worker.gpu_memory_utilization", "0"),
        ("worker.gpu_memory_utilization", "1.1"),
        ("scheduler.num_scheduler_steps", "-1"),
        ("model.max_model_len", "-5"),
        ("log.level", "loud"),
        ("log.format", "xml"),
    ],
)
def test_a_wrong_value_names_its_key_from_flag_and_environment(key, value):
    for sources in ({"flags": {key: value}}, {"env": {f"TERCET_{key.replace('.', '_').upper()}": value}}):
        with pytest.raises(ConfigError) as caught:
            load_config(None, **sources)
        assert caught.value.key == key
        assert key in str(caught.value)


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("[worker]\nport = '7001x'", "worker.port"),
        ("[worker]\nport = true", "worker.port"),
        ("[worker]\nport = 1.5", "worker.port"),
        ("[worker]\nenable_prefix_caching = 1", "worker.enable_prefix_caching"),
        ("[scheduler]\nworkers = 5", "scheduler.workers"),
        ("[scheduler]\nworkers = [1]", "scheduler.workers"),
        ("[model]\nmodel = 5", "model.model"),
        (f"[gateway]\ndrain_seconds = 1{'0' * 400}", "gateway.drain_seconds"),
        ("[worker]\nprot = 1", "worker.prot"),
        ("[wroker]\nport = 1", "wroker"),
        ("worker = 3", "worker"),
        ("[worker\nport = 1", "config"),
        ("[worker]\nport = 1\nport = 2", "config"),
    ],
)
def test_a_wrong_file_names_the_key(tmp_path, text, key):
    with pytest.raises(ConfigError) as caught:
        load_config(_file(tmp_path, text))
    assert caught.value.key == key


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"config: cannot read .*none\.toml"):
        load_config(tmp_path / "none.toml")
    broken = tmp_path / "bytes.toml"
    broken.write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="not valid TOML"):
        load_config(broken)


def test_an_unknown_setting_lists_the_known_ones():
    with pytest.raises(ConfigError, match="max_num_seqs"):
        load_config(None, {"TERCET_WORKER_MAX_SEQS": "1"})
    with pytest.raises(ConfigError, match="unknown section"):
        load_config(None, {}, {"nowhere.port": "1"})


@pytest.mark.parametrize("variable", ["TERCET_WORKR_PORT", "TERCET_FOO", "TERCET_", "TERCET_WORKER", "TERCET_foo"])
def test_a_variable_that_is_no_setting_is_named(variable):
    with pytest.raises(ConfigError) as caught:
        load_config(None, {variable: "1"})
    assert caught.value.key == variable
    assert str(caught.value).startswith(f"{variable}: unknown ")


def test_a_mistyped_variable_is_told_its_neighbour():
    with pytest.raises(ConfigError, match=r"; did you mean TERCET_WORKER_PORT\?$"):
        load_config(None, {"TERCET_WORKR_PORT": "3"})


def test_variables_that_are_no_settings_may_be_there():
    assert (
        load_config(
            None,
            {"TERCET_ISA": "avx2", "TERCET_CUDA_ARCHS": "90", "TERCET_PARENT_PID": "1", "TERCET_PROCESS_NAME": "x"},
        )
        == MeshConfig()
    )


def test_all_that_is_wrong_is_said_at_once(tmp_path):
    path = _file(tmp_path, "[wroker]\nport = 1\n[worker]\nprot = 2\ndtype = 'float8'\n[gateway]\nport = 'x'\n")
    env = {"TERCET_FOO": "1", "TERCET_WORKER_BLOCK_SIZE": "17"}
    with pytest.raises(ConfigErrors) as caught:
        load_config(path, env, {"scheduler.port": "-1", "scheduler.none": "1"})
    keys = [problem.key for problem in caught.value.problems]
    unknown = {"wroker", "worker.prot", "TERCET_FOO", "scheduler.none"}
    wrong = {"gateway.port", "scheduler.port", "worker.dtype", "worker.block_size"}
    assert (set(keys), len(keys)) == (unknown | wrong, 8)
    assert caught.value.key == keys[0]
    assert str(caught.value).splitlines() == [str(problem) for problem in caught.value.problems]


def test_only_sizes_in_bytes_are_told_of_suffixes():
    with pytest.raises(ConfigError, match="KiB, MiB, GiB"):
        load_config(None, {"TERCET_WORKER_KV_CACHE_MEMORY": "abc"})
    with pytest.raises(ConfigError, match=r"must be a whole number, is 'abc'$"):
        load_config(None, {"TERCET_GATEWAY_PORT": "abc"})


@pytest.mark.parametrize(("text", "value"), [("512MiB", 1 << 29), ("1.5GiB", 3 << 29), ("4kib", 4096), ("77", 77)])
def test_sizes_take_suffixes(text, value):
    assert load_config(None, {"TERCET_WORKER_KV_CACHE_MEMORY": text}).worker.kv_cache_memory == value


@pytest.mark.parametrize(("text", "value"), [("yes", True), ("0", False), ("On", True), ("false", False)])
def test_booleans_are_read(text, value):
    config = load_config(None, {"TERCET_WORKER_ENABLE_PREFIX_CACHING": text})
    assert config.worker.enable_prefix_caching is value


def test_lists_are_comma_separated():
    config = load_config(None, {"TERCET_MODEL_SERVED_MODEL_NAME": "a, b,,c "})
    assert config.model.served_model_name == ("a", "b", "c")


def test_workers_are_addresses_and_names():
    entries = ("10.0.0.1:50053", "[::1]:50053", "gpu-1.lan:7", "dns://workers:50053", "dns://workers.default.svc:1")
    assert load_config(None, {"TERCET_SCHEDULER_WORKERS": ",".join(entries)}).scheduler.workers == entries
    with pytest.raises(ConfigError, match=r"^scheduler\.workers: must be host:port or dns://name:port, is 'dns://x'$"):
        load_config(None, None, {"scheduler.workers": ("a:1", "dns://x")})


_names = st.lists(st.text("abc-./", min_size=1, max_size=8), max_size=3).map(tuple)
_configs = st.builds(
    dict,
    port=st.integers(0, 65535),
    seqs=st.integers(1, 10**6),
    names=_names,
    dtype=st.sampled_from(["auto", "float32", "bfloat16", "float16"]),
    cache=st.booleans(),
    drain=st.floats(0, 1e4),
)


@settings(deadline=None)
@given(_configs)
def test_the_environment_of_children_rebuilds_the_configuration(values):
    config = load_config(
        None,
        None,
        {
            "worker.port": values["port"],
            "worker.max_num_seqs": values["seqs"],
            "model.served_model_name": values["names"],
            "worker.dtype": values["dtype"],
            "worker.enable_prefix_caching": values["cache"],
            "gateway.drain_seconds": values["drain"],
        },
    )
    assert load_config(None, to_environment(config)) == config


def test_every_setting_has_help_and_a_valid_default():
    sections = typing.get_type_hints(MeshConfig)
    assert {key.partition(".")[0] for key in setting_keys()} == set(sections)
    assert len(setting_keys()) == sum(len(dataclasses.fields(cls)) for cls in sections.values())
    for key, item in setting_keys().items():
        assert item.metadata["help"], key
        check = item.metadata["check"]
        assert check is None or check(item.default) is None, key


def test_configurations_do_not_change():
    with pytest.raises(dataclasses.FrozenInstanceError):
        load_config().worker.port = 1
