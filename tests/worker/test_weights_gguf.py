"""GGUF files: round trips of every family and type, quantization against slow twins, broken files named."""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFWriter, RopeScalingType, quants
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tercet.errors import ModelError, TercetError
from tercet.model_source import ModelFormat, ModelSource
from tests.worker.gguf_files import round_to, write_gguf
from tests.worker.models import CASES, PagedRunner, random_prompts, reference_logits, tiny_reference
from worker.model.config import ModelConfig
from worker.model.decoder import Model
from worker.model.rope import longrope_attention_factor
from worker.weights.gguf_file import GgufArray, read_gguf
from worker.weights.gguf_tensors import deinterleave, read_tensor
from worker.weights.loader import load_config, load_model

Type = GGMLQuantizationType
FLOATS = (Type.F32, Type.F16, Type.BF16)
LEGACY = (Type.Q4_0, Type.Q4_1, Type.Q5_0, Type.Q5_1, Type.Q8_0)
K_QUANTS = (Type.Q2_K, Type.Q3_K, Type.Q4_K, Type.Q5_K, Type.Q6_K, Type.IQ4_NL, Type.IQ4_XS)

# GGUF has no Mistral, does not say which layers of a Qwen have a window, knows no Gemma of our scalars or without caps.
LEFT_OUT = ("mistral", "mistral-wide-window", "mistral-window", "qwen2-window", "gemma2", "gemma2-uncapped")
ROUND_TRIPS = [case for case in CASES if case not in LEFT_OUT]


def load(path: Path) -> Model:
    return load_model(ModelSource(ModelFormat.GGUF, path), torch.float32, torch.device("cpu"))


def config_of(path: Path) -> ModelConfig:
    return load_config(ModelSource(ModelFormat.GGUF, path))


def assert_equal(model: Model, reference: Any) -> None:
    for prompt in random_prompts((5, 40, 90), seed=7):
        logits = PagedRunner(model).prefill({0: prompt}, 64)[0]
        torch.testing.assert_close(logits, reference_logits(reference, prompt), rtol=1e-4, atol=1e-4)


def add_rope(parameters: dict[str, Any], head_dim: int) -> Callable[[GGUFWriter], None]:
    """The scaling of a config.json in the words of GGUF."""

    parameters = parameters.get("full_attention", parameters)

    def edit(writer: GGUFWriter) -> None:
        kind = parameters["rope_type"]
        if kind == "linear":
            writer.add_rope_scaling_type(RopeScalingType.LINEAR)
            writer.add_rope_scaling_factor(parameters["factor"])
        if kind == "yarn":
            writer.add_rope_scaling_type(RopeScalingType.YARN)
            writer.add_rope_scaling_factor(parameters["factor"])
            writer.add_rope_scaling_orig_ctx_len(parameters["original_max_position_embeddings"])
        if "partial_rotary_factor" in parameters:
            writer.add_rope_dimension_count(int(head_dim * parameters["partial_rotary_factor"]))
        if kind == "longrope":
            writer.add_rope_scaling_orig_ctx_len(parameters["original_max_position_embeddings"])
            factor, original = parameters["factor"], parameters["original_max_position_embeddings"]
            writer.add_rope_scaling_attn_factors(longrope_attention_factor(factor, original))
            for name in ("short", "long"):
                writer.add_tensor(f"rope_factors_{name}.weight", np.array(parameters[f"{name}_factor"], np.float32))
        if kind == "llama3":
            writer.add_tensor("rope_freqs.weight", llama3_divisors(parameters, head_dim))

    return edit


def llama3_divisors(parameters: dict[str, Any], head_dim: int) -> np.ndarray[Any, Any]:
    """What converters write: the factor of each wave, by its length against the old context."""
    low, high, factor = (parameters[key] for key in ("low_freq_factor", "high_freq_factor", "factor"))
    context = parameters["original_max_position_embeddings"]
    divisors = []
    for d in range(head_dim // 2):
        wave = 2 * np.pi * parameters["rope_theta"] ** (2 * d / head_dim)
        if wave < context / high:
            divisors.append(1.0)
        elif wave > context / low:
            divisors.append(factor)
        else:
            smooth = (context / wave - low) / (high - low)
            divisors.append(1 / ((1 - smooth) / factor + smooth))
    return np.array(divisors, dtype=np.float32)


@pytest.mark.parametrize("case", ROUND_TRIPS)
def test_every_family_equals_the_reference(tmp_path: Path, case: str) -> None:
    family, changes = CASES[case]
    reference = tiny_reference(family, **changes)
    path = tmp_path / "tiny.gguf"
    config = reference.config
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    if family == "gemma3_text":  # GGUF does not say what scores are divided by
        set_query_scalar(reference, head_dim)
    write_gguf(path, reference, edit=add_rope(config.rope_parameters, head_dim))
    model = load(path)
    assert model.config.family == family
    assert model.config.tie_word_embeddings == config.tie_word_embeddings
    assert_equal(model, reference)


def set_query_scalar(reference: Any, scalar: float) -> None:
    for layer in reference.model.layers:
        layer.self_attn.scaling = scalar**-0.5


def test_a_gemma_2_equals_the_reference(tmp_path: Path) -> None:
    reference = tiny_reference("gemma2", head_dim=32, sliding_window=24, num_hidden_layers=3)
    set_query_scalar(reference, 32)
    write_gguf(tmp_path / "tiny.gguf", reference)
    model = load(tmp_path / "tiny.gguf")
    assert (model.config.attention_softcap, model.config.logit_softcap) == (50.0, 30.0)
    assert model.config.windows == (24, None, 24)
    assert_equal(model, reference)


def test_the_largest_gemmas_divide_scores_by_another_number(tmp_path: Path) -> None:
    for family, layers in (("gemma2", 46), ("gemma3_text", 62)):
        reference = tiny_reference(family, head_dim=32, num_hidden_layers=layers, vocab_size=32, intermediate_size=16)
        write_gguf(tmp_path / f"{family}.gguf", reference)
        config = config_of(tmp_path / f"{family}.gguf")
        assert config.attention_scale == pytest.approx((64 / 4) ** -0.5)
        assert config.embedding_scale == 8.0


def test_a_pattern_in_the_file_says_which_layers_slide(tmp_path: Path) -> None:
    reference = tiny_reference("gemma3_text", head_dim=32, num_hidden_layers=4)
    for pattern, windows in (
        (2, (4096, None, 4096, None)),
        ([True, False, False, True], (4096, None, None, 4096)),
    ):
        path = tmp_path / "tiny.gguf"

        def edit(writer: GGUFWriter, pattern: int | list[bool] = pattern) -> None:
            writer.add_context_length(8192)
            if isinstance(pattern, int):
                writer.add_uint32("gemma3.attention.sliding_window_pattern", pattern)
            else:
                writer.add_array("gemma3.attention.sliding_window_pattern", pattern)

        write_gguf(path, reference, edit=edit)
        assert config_of(path).windows == windows


@pytest.mark.parametrize("length", [64, 65, 256])
def test_longrope_is_two_tensors(tmp_path: Path, length: int) -> None:
    short, long = ([1.0 + step * i for i in range(8)] for step in (0.02, 0.5))
    rope = {"rope_type": "longrope", "rope_theta": 10000.0, "short_factor": short, "long_factor": long}
    reference = tiny_reference("phi3", original_max_position_embeddings=64, rope_parameters=rope)

    def edit(writer: GGUFWriter) -> None:
        writer.add_rope_scaling_orig_ctx_len(64)
        writer.add_rope_scaling_attn_factors((1 + np.log(4) / np.log(64)) ** 0.5)
        writer.add_tensor("rope_factors_short.weight", np.array(short, dtype=np.float32))
        writer.add_tensor("rope_factors_long.weight", np.array(long, dtype=np.float32))

    write_gguf(tmp_path / "tiny.gguf", reference, edit=edit)
    source = ModelSource(ModelFormat.GGUF, tmp_path / "tiny.gguf")
    model = load_model(source, torch.float32, torch.device("cpu"), max_model_len=length)
    # The reference chooses by the length of the text, we by the served one.
    (prompt,) = random_prompts((min(length, 100),))
    if length == 65:
        (prompt,) = random_prompts((65,))
    logits = PagedRunner(model).prefill({0: prompt}, 64)[0]
    torch.testing.assert_close(logits, reference_logits(reference, prompt), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", [*FLOATS, *LEGACY], ids=lambda kind: kind.name)
@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_every_type_equals_the_rounded_reference(tmp_path: Path, family: str, kind: Type) -> None:
    reference = tiny_reference(family, tie_word_embeddings=family == "qwen2")
    path = tmp_path / "tiny.gguf"
    write_gguf(path, reference, kind)
    round_to(reference, kind)
    assert_equal(load(path), reference)


def test_a_mistral_file_says_llama(tmp_path: Path) -> None:
    reference = tiny_reference("mistral", sliding_window=None)
    write_gguf(tmp_path / "tiny.gguf", reference)
    assert_equal(load(tmp_path / "tiny.gguf"), reference)


def random_blocks(kind: Type, rows: int, columns: int, seed: int = 0) -> np.ndarray[Any, Any]:
    """Random stored bytes [rows, row bytes] whose float16 scales are finite and moderate."""
    block, block_bytes = GGML_QUANT_SIZES[kind]
    rng = np.random.default_rng(seed)
    data = rng.integers(0, 256, (rows, columns // block, block_bytes), dtype=np.uint8)
    scales = {
        Type.Q4_1: (0, 2),
        Type.Q5_1: (0, 2),
        Type.Q4_K: (0, 2),
        Type.Q5_K: (0, 2),
        Type.Q6_K: (208,),
        Type.Q3_K: (108,),
        Type.Q2_K: (80, 82),
    }
    for offset in scales.get(kind, (0,)):
        values = rng.uniform(-0.1, 0.1, data.shape[:2]).astype(np.float16)
        data[:, :, offset : offset + 2] = values[..., None].view(np.uint8)
    return data.reshape(rows, -1)


def write_tensor(path: Path, data: np.ndarray[Any, Any], kind: Type) -> None:
    writer = GGUFWriter(path, "llama")
    writer.add_tensor("first.weight", np.arange(7, dtype=np.float32))
    writer.add_tensor("some.weight", data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.mark.parametrize("kind", [*LEGACY, *K_QUANTS], ids=lambda kind: kind.name)
def test_quantized_tensors_read_as_the_package_reads_them(tmp_path: Path, kind: Type) -> None:
    data = random_blocks(kind, 5, 512)
    write_tensor(tmp_path / "a.gguf", data, kind)
    file = read_gguf(tmp_path / "a.gguf")
    tensor = read_tensor(file, "some.weight")
    assert tensor.shape == file.tensors["some.weight"].shape == (5, 512)
    assert tensor.dtype == torch.float32
    assert torch.equal(tensor, torch.from_numpy(quants.dequantize(data, kind)))
    assert torch.equal(read_tensor(file, "first.weight"), torch.arange(7.0))


def half(data: bytes) -> float:
    value: float = struct.unpack("<e", data)[0]
    return value


def q4_k_twin(block: bytes) -> list[float]:
    """256 values: two float16 scales, eight pairs of 6-bit scale and minimum, 4-bit quants in pairs of 32."""
    d, dmin, packed, quarters = half(block[0:2]), half(block[2:4]), block[4:16], block[16:144]
    out = []
    for j in range(8):
        if j < 4:
            scale, low = packed[j] & 63, packed[j + 4] & 63
        else:
            scale = (packed[j + 4] & 15) | (packed[j - 4] >> 6) << 4
            low = (packed[j + 4] >> 4) | (packed[j] >> 6) << 4
        for i in range(32):
            byte = quarters[32 * (j // 2) + i]
            out.append(d * scale * (byte >> 4 if j % 2 else byte & 15) - dmin * low)
    return out


def q6_k_twin(block: bytes) -> list[float]:
    """256 values: low 4 bits, high 2 bits, sixteen 8-bit scales, one float16 scale."""
    low, high, scales, d = block[0:128], block[128:192], block[192:208], half(block[208:210])
    out = []
    for i in range(256):
        part, quarter, lane = i // 128, i % 128 // 32, i % 32
        nibble = low[64 * part + 32 * (quarter % 2) + lane] >> (4 * (quarter // 2)) & 15
        quant = nibble | (high[32 * part + lane] >> (2 * quarter) & 3) << 4
        scale = struct.unpack("b", scales[i // 16 : i // 16 + 1])[0]
        out.append(d * scale * (quant - 32))
    return out


@pytest.mark.parametrize(("kind", "twin"), [(Type.Q4_K, q4_k_twin), (Type.Q6_K, q6_k_twin)])
def test_k_quants_equal_their_slow_twins(tmp_path: Path, kind: Type, twin: Callable[[bytes], list[float]]) -> None:
    data = random_blocks(kind, 4, 512, seed=3)
    write_tensor(tmp_path / "a.gguf", data, kind)
    tensor = read_tensor(read_gguf(tmp_path / "a.gguf"), "some.weight")
    size = GGML_QUANT_SIZES[kind][1]
    expected = [twin(row[begin : begin + size].tobytes()) for row in data for begin in (0, size)]
    torch.testing.assert_close(tensor.reshape(-1, 256), torch.tensor(expected), rtol=1e-5, atol=1e-6)


def test_rows_of_rotary_pairs_come_apart() -> None:
    rows = torch.tensor([[0], [4], [1], [5], [2], [6], [3], [7]])
    assert deinterleave(torch.cat((rows, rows + 8)), 2).flatten().tolist() == list(range(16))
    assert deinterleave(rows.flatten(), 1).tolist() == list(range(8))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The bytes of a good file."""
    path = tmp_path_factory.mktemp("whole") / "tiny.gguf"
    write_gguf(path, tiny_reference("llama", vocab_size=64), Type.Q8_0)
    return path.read_bytes()


def test_metadata_keeps_numbers_and_skips_vocabularies(tmp_path: Path, whole: bytes) -> None:
    path = tmp_path / "tiny.gguf"
    path.write_bytes(whole)
    file = read_gguf(path)
    assert file.metadata["general.architecture"] == "llama"
    assert file.metadata["llama.block_count"] == 2
    assert file.metadata["tokenizer.ggml.tokens"] == GgufArray(64, None)
    assert file.tensors["token_embd.weight"].shape == (64, 64)


@pytest.mark.parametrize("keep", [0, 3, 4, 7, 20, 60, 500, 2000, -1, -4000])
def test_a_cut_file_is_named(tmp_path: Path, whole: bytes, keep: int) -> None:
    path = tmp_path / "cut.gguf"
    path.write_bytes(whole[:keep])
    with pytest.raises(ModelError, match=r"cut\.gguf (is empty|is not a whole GGUF file|is cut short)"):
        load(path)


@pytest.mark.parametrize(
    ("at", "value", "message"),
    [
        (0, b"GGML", "begins with b'GGML' instead of b'GGUF'"),
        (4, struct.pack("<I", 1), "GGUF version 1; supported: little-endian versions 2, 3"),
        (4, struct.pack(">I", 3), "big-endian"),
        (8, struct.pack("<Q", 1 << 60), "not a whole GGUF file"),
        (16, struct.pack("<Q", 1 << 60), "not a whole GGUF file"),
        (24, struct.pack("<Q", 1 << 63), "its directory runs past its end"),
    ],
)
def test_a_broken_header_is_named(tmp_path: Path, whole: bytes, at: int, value: bytes, message: str) -> None:
    path = tmp_path / "broken.gguf"
    path.write_bytes(whole[:at] + value + whole[at + len(value) :])
    with pytest.raises(ModelError, match=message):
        load(path)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_damage_of_the_directory_is_an_error_of_ours_or_harmless(
    tmp_path: Path, whole: bytes, data: st.DataObject
) -> None:
    directory = whole.index(b"blk.1.attn_q.weight") + 200
    at = data.draw(st.integers(0, directory), label="at")
    damage = data.draw(st.binary(min_size=1, max_size=12), label="damage")
    path = tmp_path / "damaged.gguf"
    path.write_bytes(whole[:at] + damage + whole[at + len(damage) :])
    with contextlib.suppress(TercetError):
        assert isinstance(config_of(path), ModelConfig)


def test_a_shrinking_file_is_named(tmp_path: Path, whole: bytes) -> None:
    path = tmp_path / "tiny.gguf"
    path.write_bytes(whole)
    file = read_gguf(path)
    path.write_bytes(whole[: len(whole) // 2])
    last = max(file.tensors.values(), key=lambda tensor: tensor.offset)
    with pytest.raises(ModelError, match=f"cut short: tensor {last.name} has 0 of"):
        read_tensor(file, last.name)
    path.unlink()
    with pytest.raises(ModelError, match="cannot read tensor"):
        read_tensor(file, last.name)
    with pytest.raises(ModelError, match=r"cannot read .*tiny\.gguf"):
        read_gguf(path)


def test_an_unsupported_type_is_named(tmp_path: Path) -> None:
    write_tensor(tmp_path / "a.gguf", np.zeros((2, 8), dtype=np.int32), Type.I32)
    with pytest.raises(ModelError, match=r"some\.weight in .*a\.gguf has the type I32; supported: F64, F32, F16"):
        read_tensor(read_gguf(tmp_path / "a.gguf"), "some.weight")


def test_an_unknown_type_is_named(tmp_path: Path, whole: bytes) -> None:
    at = whole.index(b"output_norm.weight") + len(b"output_norm.weight") + 4 + 8
    path = tmp_path / "a.gguf"
    path.write_bytes(whole[:at] + struct.pack("<I", 999) + whole[at + 4 :])
    with pytest.raises(ModelError, match=r"output_norm\.weight in .* has the unknown type 999"):
        read_gguf(path)


REFUSED: dict[str, tuple[Callable[[GGUFWriter], None], str]] = {
    "experts": (lambda w: w.add_expert_count(8), r"llama\.expert_count .* is 8; supported: dense models only"),
    "longrope": (
        lambda w: w.add_rope_scaling_type(RopeScalingType.LONGROPE),
        r"llama\.rope\.scaling\.type .* is 'longrope'; supported: none, linear, yarn",
    ),
    "partial-rotary": (
        lambda w: w.add_rope_dimension_count(8),
        r"llama\.rope\.dimension_count .* is 8; .*head size, 16",
    ),
    "split": (lambda w: w.add_uint16("split.count", 3), r"split\.count .* is 3; supported: one file"),
    "unknown-tensor": (
        lambda w: w.add_tensor("blk.0.ffn_gate_inp.weight", np.zeros((2, 64), dtype=np.float32)),
        r"has blk\.0\.ffn_gate_inp\.weight, which its architecture does not use",
    ),
    "divisors": (
        lambda w: w.add_tensor("rope_freqs.weight", np.ones(5, dtype=np.float32)),
        "5 rope frequency factors do not fit a head of which 16 elements turn, which needs 8",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_not_supported_is_named(tmp_path: Path, case: str) -> None:
    edit, message = REFUSED[case]
    write_gguf(tmp_path / "a.gguf", tiny_reference("llama"), edit=edit)
    with pytest.raises(ModelError, match=message):
        load(tmp_path / "a.gguf")


def test_an_unknown_architecture_is_named(tmp_path: Path) -> None:
    write_gguf(tmp_path / "a.gguf", tiny_reference("llama"), architecture="gemma")
    with pytest.raises(ModelError, match=r"general\.architecture .* is 'gemma'; supported: llama, qwen2, .*, phi3"):
        load(tmp_path / "a.gguf")


def test_a_window_is_every_layers_of_a_llama_and_refused_of_a_qwen(tmp_path: Path) -> None:
    write_gguf(
        tmp_path / "a.gguf", tiny_reference("mistral", sliding_window=20), edit=lambda w: w.add_sliding_window(20)
    )
    assert_equal(load(tmp_path / "a.gguf"), tiny_reference("mistral", sliding_window=20))
    write_gguf(tmp_path / "b.gguf", tiny_reference("qwen2"), edit=lambda w: w.add_sliding_window(20))
    with pytest.raises(ModelError, match=r"attention\.sliding_window .* is 20; supported: 0, which is none"):
        load(tmp_path / "b.gguf")


@pytest.mark.parametrize("name", ["blk.1.ffn_down.weight", "output_norm.weight", "token_embd.weight"])
def test_a_missing_tensor_is_named_as_in_the_file(tmp_path: Path, name: str) -> None:
    write_gguf(tmp_path / "a.gguf", tiny_reference("llama"), drop=(name,))
    with pytest.raises(ModelError, match=rf"a\.gguf lacks (the tensor )?{name}"):
        load(tmp_path / "a.gguf")


def test_a_missing_key_is_named(tmp_path: Path) -> None:
    writer = GGUFWriter(tmp_path / "a.gguf", "qwen2")
    writer.add_block_count(2)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    with pytest.raises(ModelError, match=r"a\.gguf lacks the field qwen2\.embedding_length"):
        config_of(tmp_path / "a.gguf")


def test_a_number_per_layer_counts_if_all_are_equal(tmp_path: Path) -> None:
    reference = tiny_reference("llama")
    write_gguf(tmp_path / "same.gguf", reference, num_kv_heads=[2, 2])
    assert config_of(tmp_path / "same.gguf").num_kv_heads == 2
    write_gguf(tmp_path / "mixed.gguf", reference, num_kv_heads=[2, 1])
    with pytest.raises(ModelError, match=r"llama\.attention\.head_count_kv .* is \[2, 1\]; supported: a whole number"):
        config_of(tmp_path / "mixed.gguf")


def test_a_vocabulary_past_the_embedding_is_named(tmp_path: Path) -> None:
    reference = tiny_reference("llama", vocab_size=100)
    reference.config.vocab_size = 120
    write_gguf(tmp_path / "a.gguf", reference)
    with pytest.raises(ModelError, match="120 tokens in its vocabulary but embeddings for 100 only"):
        config_of(tmp_path / "a.gguf")
