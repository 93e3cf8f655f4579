"""The configuration in config.json, of both transformers generations, and every field that is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tercet.errors import ConfigError, ModelError
from tercet.model_fields import Fields
from tests.worker.models import CASES, tiny_reference
from worker.model.config import ModelConfig, RopeConfig, served
from worker.model.families import FAMILIES
from worker.model.family import BiasRule
from worker.model.rope import inverse_frequencies
from worker.weights.hf_config import parse_hf_config, read_hf_config

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 300,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "torch_dtype": "bfloat16",
}
MISTRAL = {**LLAMA, "architectures": ["MistralForCausalLM"]}
QWEN2 = {**LLAMA, "architectures": ["Qwen2ForCausalLM"]}
QWEN3 = {**LLAMA, "architectures": ["Qwen3ForCausalLM"]}
GEMMA2 = {**LLAMA, "architectures": ["Gemma2ForCausalLM"]}
GEMMA3 = {**LLAMA, "architectures": ["Gemma3ForCausalLM"]}
PHI3 = {**LLAMA, "architectures": ["Phi3ForCausalLM"]}
LONGROPE = {"type": "longrope", "short_factor": [1.0] * 8, "long_factor": [1.5] * 7 + [3]}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


def parse(values: dict[str, Any], **changes: Any) -> ModelConfig:
    return parse_hf_config(Fields({**values, **changes}, "config.json"))


def test_a_llama_of_transformers_4() -> None:
    config = parse(LLAMA, max_position_embeddings=131072, rope_scaling=LLAMA3)
    assert config == ModelConfig(
        family="llama",
        vocab_size=300,
        hidden_size=64,
        intermediate_size=128,
        num_layers=2,
        num_heads=4,
        num_kv_heads=2,
        head_dim=16,
        rms_norm_eps=1e-5,
        max_position=131072,
        max_model_len=131072,
        rope=RopeConfig(theta=500000.0, type="llama3", factor=8.0, original_max_position=8192),
    )


@pytest.mark.parametrize("case", CASES)
def test_both_generations_of_the_same_model_read_the_same(case: str) -> None:
    family, settings = CASES[case]
    new = {**tiny_reference(family, **settings).config.to_dict(), "architectures": None}
    old = {**new, "rope_scaling": None}
    rope = dict(old.pop("rope_parameters"))
    if "sliding_attention" in rope:
        old["rope_local_base_freq"] = rope["sliding_attention"]["rope_theta"]
        rope = dict(rope["full_attention"])
    old["rope_theta"] = rope.pop("rope_theta")
    kind = rope.pop("rope_type")
    if "partial_rotary_factor" in rope:
        old["partial_rotary_factor"] = rope.pop("partial_rotary_factor")
    if kind != "default":
        old["rope_scaling"] = {"type": kind, **rope}
    config = parse(new)
    assert config == parse(old)
    assert config.family == family
    assert config.rope.type == kind
    assert config.rope.theta == old["rope_theta"]


def test_what_a_file_leaves_out() -> None:
    sparse = {key: LLAMA[key] for key in LLAMA if key not in ("num_key_value_heads", "rms_norm_eps", "rope_theta")}
    config = parse(sparse)
    assert (config.num_kv_heads, config.rms_norm_eps, config.rope) == (4, 1e-6, RopeConfig(theta=10000.0))
    assert not config.tie_word_embeddings
    assert parse(QWEN3).head_dim == 128
    assert parse(QWEN3, head_dim=None, hidden_size=4096).head_dim == 128


def test_families_differ_as_their_data_says() -> None:
    flags = {"attention_bias": True, "mlp_bias": True}
    found = {
        name: (config.qkv_bias, config.output_bias, config.mlp_bias, config.qk_norm)
        for name, config in (
            (name, parse({**LLAMA, "architectures": [family.architecture]}, **flags, sliding_window=None))
            for name, family in FAMILIES.items()
        )
    }
    assert found == {
        "llama": (True, True, True, False),
        "mistral": (False, False, False, False),
        "qwen2": (True, False, False, False),
        "qwen3": (True, True, False, True),
        "gemma2": (True, True, False, False),
        "gemma3_text": (True, True, False, True),
        "phi3": (False, False, False, False),
    }
    assert FAMILIES["qwen2"].qkv_bias is BiasRule.ALWAYS


def test_yarn_reaches_past_the_old_limit() -> None:
    scaling = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
    config = parse(QWEN2, max_position_embeddings=32768, rope_scaling=scaling)
    assert config.max_position == 131072
    assert config.rope.attention_factor == pytest.approx(1.1386294361)


@pytest.mark.parametrize(
    ("values", "changes", "window"),
    [
        (MISTRAL, {"sliding_window": 4096}, 4096),
        (MISTRAL, {"sliding_window": None}, None),
        (MISTRAL, {}, 4096),
        (LLAMA, {"sliding_window": 4096}, None),
        (QWEN2, {"sliding_window": 32768, "use_sliding_window": False}, None),
        (QWEN2, {"sliding_window": 1024, "use_sliding_window": True, "max_window_layers": 1}, 1024),
        (QWEN2, {"sliding_window": 1024, "use_sliding_window": True, "max_window_layers": 2}, None),
        (QWEN3, {"sliding_window": 1024, "use_sliding_window": True, "layer_types": ["full_attention"] * 2}, None),
        (
            QWEN3,
            {"sliding_window": 512, "use_sliding_window": True, "layer_types": ["full_attention", "sliding_attention"]},
            512,
        ),
        (PHI3, {"sliding_window": 2047}, 2047),
        (PHI3, {"sliding_window": None}, None),
        (PHI3, {}, None),
        (GEMMA2, {}, 4096),
        (GEMMA2, {"sliding_window": None}, None),
        (GEMMA3, {"sliding_window": 512, "layer_types": ["full_attention"] * 2}, None),
    ],
)
def test_sliding_windows_in_force(values: dict[str, Any], changes: dict[str, Any], window: int | None) -> None:
    config = parse(values, **changes)
    assert config.sliding_window == window
    assert any(config.sliding_layers) == (window is not None)


@pytest.mark.parametrize(
    ("values", "changes", "flags"),
    [
        (MISTRAL, {"sliding_window": 64}, "1111111"),
        (QWEN2, {"sliding_window": 64, "use_sliding_window": True, "max_window_layers": 4}, "0000111"),
        (GEMMA2, {}, "1010101"),
        (GEMMA3, {}, "1111101"),
        (GEMMA3, {"sliding_window_pattern": 3}, "1101101"),
        (GEMMA3, {"layer_types": ["full_attention"] * 6 + ["sliding_attention"]}, "0000001"),
    ],
)
def test_which_layers_slide(values: dict[str, Any], changes: dict[str, Any], flags: str) -> None:
    config = parse(values, num_hidden_layers=7, **changes)
    assert "".join(str(int(slides)) for slides in config.sliding_layers) == flags
    windows = tuple(config.sliding_window if flag == "1" else None for flag in flags)
    assert config.windows == windows
    assert served(config, 40).windows == (None,) * 7  # it cuts nothing off


def test_a_gemma_by_its_fields() -> None:
    config = parse(GEMMA2, query_pre_attn_scalar=144, final_logit_softcapping=None, rope_theta=None)
    assert (config.attention_softcap, config.logit_softcap, config.attention_scale) == (50.0, None, 1 / 12)
    assert (config.embedding_scale, config.activation, config.post_norms) == (8.0, "gelu_tanh", True)
    assert (config.head_dim, config.tie_word_embeddings, config.local_rope) == (256, True, None)
    scaling = {"rope_type": "linear", "factor": 8.0}
    config = parse(GEMMA3, rope_theta=None, rope_scaling=scaling, rope_local_base_freq=20000.0)
    assert config.rope == RopeConfig(theta=1e6, type="linear", factor=8.0)
    assert config.local_rope == RopeConfig(theta=20000.0)
    assert (config.attention_softcap, config.logit_softcap, config.attention_scale) == (None, None, 1 / 16)


def test_longrope_takes_the_factors_of_the_served_length() -> None:
    for name in ("longrope", "su"):
        config = parse(
            PHI3,
            max_position_embeddings=131072,
            original_max_position_embeddings=4096,
            rope_scaling={**LONGROPE, "type": name},
        )
        assert config.max_position == 131072
        assert config.rope.attention_factor == pytest.approx(1.1902380714)
        long, short = (inverse_frequencies(config.rope, 16, length) for length in (4097, 4096))
        assert (short / long).tolist() == pytest.approx([1.5] * 7 + [3.0])
        assert short.tolist() == pytest.approx([config.rope.theta ** (-d / 8) for d in range(8)])


def test_a_length_the_model_cannot_reach_names_the_setting() -> None:
    config = parse(LLAMA)
    assert served(config, 0).max_model_len == 8192
    assert served(config, 100).max_model_len == 100
    with pytest.raises(ConfigError, match="at most 8192") as caught:
        served(config, 8193)
    assert caught.value.key == "model.max_model_len"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"architectures": ["GPT2LMHeadModel"]}, "architectures .*GPT2LMHeadModel.*LlamaForCausalLM.*Qwen3ForCausalLM"),
        ({"architectures": "LlamaForCausalLM"}, "architectures"),
        ({"architectures": None, "model_type": "gemma"}, "model_type .*gemma.*llama, mistral, qwen2, qwen3, gemma2"),
        ({"architectures": None}, "model_type .*None"),
        ({"hidden_act": "gelu"}, "hidden_act .*'gelu'; supported: silu"),
        ({"quantization_config": {"quant_method": "awq"}}, "quantization_config .*awq.*unquantized"),
        (
            {"rope_scaling": {"type": "dynamic", "factor": 2.0}},
            "rope_type .*'dynamic'.*default, linear, llama3, yarn, longrope",
        ),
        ({"rope_scaling": {"type": "longrope"}}, r"short_factor .*None; supported: 8 numbers above zero"),
        ({"rope_scaling": {**LONGROPE, "long_factor": [1.0] * 7}}, r"long_factor .*; supported: 8 numbers"),
        ({"rope_scaling": {**LONGROPE, "long_factor": [1.0] * 7 + ["x"]}}, r"long_factor\[7\] .*'x'; .*above zero"),
        ({"use_bidirectional_attention": True}, "use_bidirectional_attention .*True; supported: causal"),
        ({"rope_scaling": {"type": "linear"}}, "rope_scaling of config.json lacks the field factor"),
        ({"rope_scaling": {"type": "linear", "factor": 0}}, "factor .*0; supported: a number above zero"),
        ({"rope_scaling": [1]}, "rope_scaling .*one object for all layers"),
        ({"rope_parameters": {"full_attention": {"rope_theta": 1e4}}}, "rope_parameters .*one object for all layers"),
        ({"rope_scaling": {**LLAMA3, "high_freq_factor": 1.0}}, "high_freq_factor .*above low_freq_factor"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor .*0.5; supported: 1.0"),
        ({"rope_scaling": {"type": "default", "partial_rotary_factor": 0.5}}, "partial_rotary_factor .*0.5"),
        ({"hidden_size": None}, "lacks the field hidden_size"),
        ({"num_hidden_layers": 0}, "num_hidden_layers .*0; supported: a whole number from 1 to 4096"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers .*1000000000"),
        ({"vocab_size": "many"}, "vocab_size .*'many'"),
        ({"num_attention_heads": True}, "num_attention_heads .*True"),
        ({"rms_norm_eps": -1e-5}, "rms_norm_eps"),
        ({"rope_theta": float("nan")}, "rope_theta"),
        ({"rope_theta": float("inf")}, "rope_theta"),
        ({"rope_theta": 10**400}, "rope_theta"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings .*'yes'; supported: true or false"),
        ({"num_key_value_heads": 3}, "4 query heads .* 3 KV heads"),
        ({"head_dim": 20}, "head size of 20 .*multiples of 8 up to 256"),
        ({"head_dim": 512}, "head size of 512"),
    ],
)
def test_what_is_refused_is_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        parse(LLAMA, **changes)


@pytest.mark.parametrize(
    ("values", "changes", "message"),
    [
        (GEMMA2, {"hidden_activation": "relu"}, "hidden_activation .*'relu'; supported: gelu_pytorch_tanh"),
        (GEMMA3, {"layer_types": ["full_attention"]}, "layer_types .*; supported: 2 times one of full_attention"),
        (GEMMA3, {"layer_types": ["chunked_attention"] * 2}, "layer_types .*chunked_attention"),
        (GEMMA2, {"attn_logit_softcapping": -1}, "attn_logit_softcapping .*-1; supported: a number above zero"),
        (GEMMA3, {"sliding_window_pattern": 0}, "sliding_window_pattern .*0"),
        (
            GEMMA3,
            {"rope_parameters": {"full_attention": {}, "sliding_attention": {"rope_type": "yarn"}}},
            "rope_type in sliding_attention in rope_parameters .*'yarn'; supported: default",
        ),
        (PHI3, {"rope_scaling": {"type": "yarn", "factor": 2}}, "rope_type .*'yarn'; supported: default, longrope"),
        (PHI3, {"partial_rotary_factor": 1.5}, "partial_rotary_factor .*1.5; supported: parts of a head"),
        (PHI3, {"partial_rotary_factor": 0.7}, "partial_rotary_factor .*0.7; supported: .* of an even size"),
        (PHI3, {"partial_rotary_factor": 0.05}, "partial_rotary_factor .*0.05; supported: .* of an even size"),
    ],
)
def test_what_a_family_refuses_is_named(values: dict[str, Any], changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        parse(values, **changes)


def test_a_long_value_is_shown_short() -> None:
    with pytest.raises(ModelError) as caught:
        parse(LLAMA, quantization_config={str(key): key for key in range(1000)})
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"{", "not valid JSON"), (b"[1]", "must hold a JSON object, holds a list"), (b"\xff\xfe{", "not valid JSON")],
)
def test_a_broken_file(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(ModelError, match=message):
        read_hf_config(tmp_path)


def test_a_missing_and_a_whole_file(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"cannot read .*config\.json"):
        read_hf_config(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    assert read_hf_config(tmp_path) == parse(LLAMA)
