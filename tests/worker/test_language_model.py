"""The part of a checkpoint with pictures that reads text: Gemma 3 against transformers, under either kind of names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from tercet.errors import ModelError
from tercet.model_source import resolve_model
from tests.worker.models import VOCAB_SIZE, PagedRunner, random_prompts, reference_logits
from worker.model.decoder import Model
from worker.weights.loader import load_model

TEXT = {
    "vocab_size": VOCAB_SIZE, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 7,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 256,
    "sliding_window": 16, "pad_token_id": 0,
}  # fmt: skip
SIGHT = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 28,
    "patch_size": 14,
}  # fmt: skip


@pytest.fixture(scope="module")
def reference() -> Any:
    config = transformers.Gemma3Config(
        text_config=transformers.Gemma3TextConfig(**TEXT), vision_config=SIGHT, mm_tokens_per_image=1
    )
    model = transformers.Gemma3ForConditionalGeneration(config).eval()
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for weight in model.parameters():
            weight.normal_(0.0, 0.15, generator=generator)
    return model


@pytest.fixture
def directory(reference: Any, tmp_path: Path) -> Path:
    reference.save_pretrained(tmp_path)
    return tmp_path


def load(directory: Path) -> Model:
    return load_model(resolve_model(str(directory)), torch.float32, torch.device("cpu"))


def rename(directory: Path, old: str, new: str) -> None:
    file = directory / "model.safetensors"
    save_file({name.replace(old, new, 1): tensor for name, tensor in load_file(file).items()}, file)


@pytest.mark.parametrize("prefix", ["language_model.model.", "model.language_model."])
def test_text_equals_the_reference(reference: Any, directory: Path, prefix: str) -> None:
    names = set(load_file(directory / "model.safetensors"))
    assert {"language_model.model.norm.weight", "multi_modal_projector.mm_input_projection_weight"} <= names
    rename(directory, "language_model.model.", prefix)
    model = load(directory)
    assert (model.config.family, model.config.windows) == ("gemma3_text", (16,) * 5 + (None, 16))
    (prompt,) = random_prompts((90,), seed=3)
    logits = PagedRunner(model).prefill({0: prompt}, 40)[0]
    torch.testing.assert_close(logits, reference_logits(reference, prompt), rtol=1e-4, atol=1e-4)


def test_a_part_that_nobody_knows_is_refused(directory: Path) -> None:
    rename(directory, "multi_modal_projector.", "audio_tower.")
    with pytest.raises(ModelError, match=r"audio_tower\..*which its architecture does not use"):
        load(directory)


def test_what_is_missing_is_named(directory: Path) -> None:
    rename(directory, "language_model.model.norm.", "vision_tower.norm.")
    with pytest.raises(ModelError, match=r"lacks model\.norm\.weight; "):
        load(directory)
