import dataclasses
import typing

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tercet.class_settings import DEFAULT_CLASSES, ClassSettings, class_fields
from tercet.config import ConfigErrors, is_setting, load_config, setting_keys, to_environment
from tercet.errors import ConfigError
from tercet.sections import MeshConfig


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
        ("gateway.scheduler", "a:1,b"),
        ("gateway.scheduler", "a:1,a:1"),
        ("scheduler.peers", "a:1,b"),
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


def test_a_class_is_changed_key_by_key(tmp_path):
    path = _file(tmp_path, "[classes.interactive]\nttft_ms = 500\nweight = 2\n[classes.rag]\nenabled = false\n")
    env = {"TERCET_CLASSES_INTERACTIVE_WEIGHT": "3", "TERCET_CLASSES_BATCH_MAX_QUEUED_REQUESTS": "7"}
    classes = load_config(path, env, {"classes.batch.preemptible": "no"}).classes
    changed = dataclasses.replace(DEFAULT_CLASSES["interactive"], ttft_ms=500.0, weight=3.0)
    batch = dataclasses.replace(DEFAULT_CLASSES["batch"], max_queued_requests=7, preemptible=False)
    assert classes == {"interactive": changed, "batch": batch}


def test_a_new_class_says_its_rank_and_may_be_the_default(tmp_path):
    path = _file(tmp_path, "[scheduler]\ndefault_class = 'night_jobs'\n[classes.night_jobs]\nrank = 5\n")
    config = load_config(path, {"TERCET_CLASSES_NIGHT_JOBS_MAX_STEPS": "4"})
    assert config.classes["night_jobs"] == ClassSettings(rank=5, max_steps=4)
    assert list(config.classes) == [*DEFAULT_CLASSES, "night_jobs"]
    assert config.scheduler.default_class == "night_jobs"


@pytest.mark.parametrize(
    ("flags", "key", "text"),
    [
        ({"classes.interactiv.ttft_ms": "5"}, "classes.interactiv", "needs its rank; did you mean interactive?"),
        ({"classes.interactive.ttft": "5"}, "classes.interactive.ttft", "did you mean ttft_ms?"),
        ({"classes.interactive": "5"}, "classes.interactive", "unknown setting"),
        ({"classes.Big.rank": "5"}, "classes.Big.rank", "lower-case letters"),
        ({"classes.batch.weight": "0"}, "classes.batch.weight", "from 0.001 to 1,000"),
        ({"classes.batch.weight": "nan"}, "classes.batch.weight", "from 0.001"),
        ({"classes.batch.ttft_ms": "inf"}, "classes.batch.ttft_ms", "from 0 to"),
        ({"classes.batch.ttft_percentile": "100"}, "classes.batch.ttft_percentile", "99.9"),
        ({"classes.batch.preemptible": "perhaps"}, "classes.batch.preemptible", "true or false"),
        ({"classes.batch.max_running": "-1"}, "classes.batch.max_running", "from 0"),
        ({"classes.interactive.enabled": "no"}, "scheduler.default_class", "the classes are rag, batch"),
        ({"scheduler.default_class": "chat"}, "scheduler.default_class", "no traffic class 'chat'"),
        ({"scheduler.admission_mode": "on"}, "scheduler.admission_mode", "off, shadow, enforce"),
    ],
)
def test_what_is_wrong_with_a_class_is_named(flags, key, text):
    with pytest.raises(ConfigError) as caught:
        load_config(None, None, flags)
    assert caught.value.key == key
    assert text in str(caught.value)


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("classes = 3", "classes"),
        ("[classes]\nbatch = 3", "classes.batch"),
        ("[classes.batch]\nwait = 3", "classes.batch.wait"),
        ("[classes.batch]\nmax_steps = true", "classes.batch.max_steps"),
        ("[classes.'a.b']\nrank = 1", "classes.a.b.rank"),
    ],
)
def test_a_wrong_table_of_a_class_is_named(tmp_path, text, key):
    with pytest.raises(ConfigError) as caught:
        load_config(_file(tmp_path, text))
    assert caught.value.key == key


def test_a_variable_of_a_class_that_is_mistyped_is_named():
    with pytest.raises(ConfigError, match=r"; did you mean TERCET_CLASSES_BATCH_MAX_RUNNING\?$") as caught:
        load_config(None, {"TERCET_CLASSES_BATCH_MAXRUNNING": "1"})
    assert caught.value.key == "TERCET_CLASSES_BATCH_MAXRUNNING"
    assert not is_setting("TERCET_CLASSES_BATCH_MAXRUNNING")
    assert is_setting("TERCET_CLASSES_A_MAX_STEPS_MAX_STEPS")
    assert is_setting("TERCET_WORKER_PORT")


_class_settings = st.fixed_dictionaries(
    {"rank": st.integers(0, 1000), "weight": st.floats(0.001, 1000), "preemptible": st.booleans()},
    optional={"ttft_ms": st.floats(0, 1e6), "max_running": st.integers(0, 99), "enabled": st.booleans()},
)


@given(st.dictionaries(st.from_regex(r"[a-z][a-z0-9_]{0,8}|batch|rag", fullmatch=True), _class_settings, max_size=3))
@settings(max_examples=50, deadline=None)
def test_environments_carry_classes_to_children(given_classes):
    flags = {f"classes.{name}.{key}": value for name, each in given_classes.items() for key, value in each.items()}
    config = load_config(None, None, {key: str(value) for key, value in flags.items()})
    assert load_config(None, to_environment(config)) == config


def test_every_setting_has_help_and_a_valid_default():
    sections = typing.get_type_hints(MeshConfig)
    del sections["classes"]
    assert {key.partition(".")[0] for key in setting_keys()} == set(sections)
    assert len(setting_keys()) == sum(len(dataclasses.fields(cls)) for cls in sections.values())
    for key, item in {**setting_keys(), **class_fields()}.items():
        assert item.metadata["help"], key
        check = item.metadata["check"]
        assert check is None or check(item.default) is None, key


def test_configurations_do_not_change():
    with pytest.raises(dataclasses.FrozenInstanceError):
        load_config().worker.port = 1


def _numbers():
    """The key of every number."""
    keys = {key: item.default for key, item in setting_keys().items()}
    keys |= {f"classes.rag.{name}": item.default for name, item in class_fields().items()}
    return [key for key, default in keys.items() if type(default) in (int, float)]


@pytest.mark.parametrize("key", _numbers())
def test_no_number_is_without_bounds(key):
    # The third has more digits than Python writes.
    for value in ("1" + "0" * 400, 10**400, 16**5000, -(10**400), 1e300, "inf", "nan", 2**53 + 2):
        with pytest.raises(ConfigError) as caught:
            load_config(flags={key: value})
        assert caught.value.key == key


@pytest.mark.parametrize("digits", ["0x" + "f" * 5000, "9" * 5000])
def test_a_number_of_a_file_with_too_many_digits_is_an_error(tmp_path, digits):
    with pytest.raises(ConfigError):
        load_config(_file(tmp_path, f"[worker]\nswap_space = {digits}"))


@pytest.mark.parametrize("key", ["tenants.store", "model.model", "scheduler.workers"])
def test_a_text_with_a_nul_names_its_key(tmp_path, key):
    section, _, name = key.partition(".")
    value = '["a\\u0000b:1"]' if name == "workers" else '"a\\u0000b"'
    with pytest.raises(ConfigError, match="NUL") as caught:
        load_config(_file(tmp_path, f"[{section}]\n{name} = {value}"))
    assert caught.value.key == key
