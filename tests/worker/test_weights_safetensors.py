"""Hugging Face directories: whole ones load bit for bit, broken ones are named."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from tercet.errors import ModelError
from tercet.model_source import resolve_model
from tests.worker.models import PagedRunner, random_prompts, save_tiny
from worker.model.decoder import Model
from worker.weights.loader import load_model
from worker.weights.safetensors_files import SafetensorsFiles

Q_PROJ = "model.layers.1.self_attn.q_proj.weight"


def load(directory: Path) -> Model:
    return load_model(resolve_model(str(directory)), torch.float32, torch.device("cpu"))


def logits(directory: Path) -> torch.Tensor:
    (prompt,) = random_prompts((20,))
    return PagedRunner(load(directory)).prefill({0: prompt}, 20)[0]


@pytest.fixture
def single(tmp_path: Path) -> Path:
    """One file, tied head."""
    save_tiny(tmp_path, "llama", tie_word_embeddings=True)
    return tmp_path


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    """Several files and an index, untied head."""
    save_tiny(tmp_path, "llama", max_shard_size="60KB")
    return tmp_path


def change(directory: Path, edit: Callable[[dict[str, torch.Tensor]], object]) -> None:
    """Rewrites model.safetensors with `edit` applied to its tensors."""
    path = directory / "model.safetensors"
    tensors = {name: tensor.clone() for name, tensor in load_file(path).items()}
    edit(tensors)
    save_file(tensors, path)


def test_shards_and_one_file_are_the_same_model(tmp_path: Path) -> None:
    one, many = tmp_path / "one", tmp_path / "many"
    save_tiny(one, "qwen2", seed=4)
    save_tiny(many, "qwen2", seed=4, max_shard_size="60KB")
    assert len(list(many.glob("*.safetensors"))) > 2
    assert torch.equal(logits(one), logits(many))


def test_tensors_are_the_stored_ones(single: Path) -> None:
    files = SafetensorsFiles(single)
    stored = load_file(single / "model.safetensors")
    assert set(files.shapes()) == set(stored)
    for name, tensor in stored.items():
        assert files.shapes()[name] == tuple(tensor.shape)
        assert torch.equal(files.read(name), tensor)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_other_float_types_load(single: Path, dtype: torch.dtype) -> None:
    exact = logits(single)
    change(single, lambda tensors: tensors.update({name: tensor.to(dtype) for name, tensor in tensors.items()}))
    tolerance = 0.0 if dtype == torch.float64 else 0.5
    torch.testing.assert_close(logits(single), exact, rtol=0, atol=tolerance)


def test_harmless_extras_are_ignored(single: Path) -> None:
    expected = logits(single)

    def edit(tensors: dict[str, torch.Tensor]) -> None:
        tensors["lm_head.weight"] = torch.zeros_like(tensors["model.embed_tokens.weight"])
        tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(8)

    change(single, edit)
    assert torch.equal(logits(single), expected)


def test_a_missing_tensor_is_named(single: Path) -> None:
    change(single, lambda tensors: tensors.pop(Q_PROJ))
    with pytest.raises(ModelError, match=rf"lacks {Q_PROJ}; 20 tensors are needed, 19 are there"):
        load(single)


def test_many_missing_tensors_are_counted(single: Path) -> None:
    def edit(tensors: dict[str, torch.Tensor]) -> None:
        for name in [name for name in tensors if ".layers.1." in name]:
            del tensors[name]

    change(single, edit)
    with pytest.raises(ModelError, match=r"lacks model\.layers\.1\..*and 4 more"):
        load(single)


def test_a_wrong_shape_is_named(single: Path) -> None:
    change(single, lambda tensors: tensors.update({Q_PROJ: torch.zeros(64, 32)}))
    with pytest.raises(ModelError, match=rf"{Q_PROJ} \(needed \[64, 64\], is \[64, 32\]\)"):
        load(single)


def test_an_unknown_tensor_is_named(single: Path) -> None:
    name = "model.layers.0.self_attn.q_proj.bias"
    change(single, lambda tensors: tensors.update({name: torch.zeros(64)}))
    with pytest.raises(ModelError, match=rf"has {name}, which its architecture does not use"):
        load(single)


def test_a_type_that_is_not_floating_is_named(single: Path) -> None:
    change(single, lambda tensors: tensors.update({Q_PROJ: torch.zeros(64, 64, dtype=torch.int8)}))
    with pytest.raises(ModelError, match=rf"{Q_PROJ} in .*model.safetensors has the type I8; supported: F64, F32"):
        load(single)


def test_an_untied_model_needs_its_head(sharded: Path) -> None:
    config = json.loads((sharded / "config.json").read_text())
    assert not config["tie_word_embeddings"]
    index = sharded / "model.safetensors.index.json"
    content = json.loads(index.read_text())
    holder = content["weight_map"].pop("lm_head.weight")
    index.write_text(json.dumps(content))
    tensors = load_file(sharded / holder)
    tensors.pop("lm_head.weight")
    save_file(tensors, sharded / holder)
    with pytest.raises(ModelError, match=r"lacks lm_head\.weight"):
        load(sharded)


def test_a_missing_shard_is_named(sharded: Path) -> None:
    shards = sorted(sharded.glob("model-*.safetensors"))
    shards[1].unlink()
    message = rf"lacks {shards[1].name}; .*names {len(shards)} shards, {len(shards) - 1} are there"
    with pytest.raises(ModelError, match=message):
        load(sharded)


def test_a_shard_without_its_tensor_is_named(sharded: Path) -> None:
    shards = sorted(sharded.glob("model-*.safetensors"))
    shards[1].write_bytes(shards[0].read_bytes())
    with pytest.raises(ModelError, match=rf"{shards[1].name} lacks model\..*, which .*index\.json says it has"):
        load(sharded)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "not valid JSON"),
        ("[]", "needs a weight_map"),
        ('{"weight_map": {}}', "needs a weight_map"),
        ('{"weight_map": {"a": 1}}', "needs a weight_map"),
        ('{"weight_map": {"a": "../secrets.safetensors"}}', r"outside its directory: \.\./secrets"),
    ],
)
def test_a_broken_index_is_named(sharded: Path, content: str, message: str) -> None:
    (sharded / "model.safetensors.index.json").write_text(content)
    with pytest.raises(ModelError, match=message):
        load(sharded)


@pytest.mark.parametrize("keep", [0, 5, 200, -1])
def test_a_cut_file_is_named(single: Path, keep: int) -> None:
    path = single / "model.safetensors"
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(ModelError, match=r"model\.safetensors is not a whole safetensors file"):
        load(single)


def test_garbage_is_named(single: Path) -> None:
    (single / "model.safetensors").write_bytes(b"\x10\0\0\0\0\0\0\0not json at all!")
    with pytest.raises(ModelError, match="not a whole safetensors file"):
        load(single)


def test_a_directory_without_weights_says_what_it_needs(single: Path) -> None:
    (single / "model.safetensors").unlink()
    with pytest.raises(ModelError, match=r"no weights: needs model\.safetensors, or .*index\.json and its shards$"):
        load(single)
    (single / "pytorch_model.bin").write_bytes(b"pickle")
    with pytest.raises(ModelError, match=r"found pytorch_model\.bin, which cannot be used"):
        load(single)
