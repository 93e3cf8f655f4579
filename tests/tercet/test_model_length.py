"""The gateway's limit is the worker's: both read how long a model is from the same files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from gguf import GGUFWriter, RopeScalingType
from tokenizers import Tokenizer, decoders
from tokenizers.models import WordLevel

from gateway.served_model import load_model
from tercet.model_source import ModelFormat, ModelSource
from tercet.sections import ModelSettings
from tests.worker.gguf_files import write_gguf
from tests.worker.models import CASES, VOCAB_SIZE, save_tiny, tiny_reference
from worker.weights.loader import load_config


def limits(path: Path, max_model_len: int = 0) -> tuple[int, int]:
    """What gateway and worker serve of the same files."""
    kind = ModelFormat.GGUF if path.suffix == ".gguf" else ModelFormat.HUGGING_FACE
    served = load_model(ModelSettings(model=str(path), max_model_len=max_model_len))
    return served.max_model_len, load_config(ModelSource(kind, path), max_model_len).max_model_len


def write_directory(path: Path, family: str, **changes: Any) -> Path:
    save_tiny(path, family, **changes)
    backend = Tokenizer(WordLevel({"a": 0}, unk_token="a"))
    backend.decoder = decoders.Fuse()
    backend.save(str(path / "tokenizer.json"))
    return path


@pytest.mark.parametrize("case", CASES)
def test_hugging_face(tmp_path: Path, case: str) -> None:
    family, changes = CASES[case]
    gateway, worker = limits(write_directory(tmp_path, family, **changes))
    assert gateway == worker == 256


@pytest.mark.parametrize(
    ("config", "length"),
    [
        # As Qwen's model cards say to write it.
        ({"rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}}, 256),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, 256),
        ({"rope_scaling": {"type": "linear", "factor": 4.0}}, 64),
        ({"rope_scaling": None}, 64),
        ({"max_position_embeddings": None}, 32768),
        ({"max_position_embeddings": None, "architectures": None}, 32768),
    ],
)
def test_hugging_face_configs_as_found(tmp_path: Path, config: dict[str, Any], length: int) -> None:
    path = write_directory(tmp_path, "qwen2")
    values = json.loads((path / "config.json").read_text())
    del values["rope_parameters"]
    (path / "config.json").write_text(json.dumps({**values, "max_position_embeddings": 64, **config}))
    assert limits(path) == (length, length)
    # What is asked for within the limit is granted by both.
    assert limits(path, length - 1) == (length - 1, length - 1)


@pytest.mark.parametrize("case", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize("yarn", [False, True])
def test_gguf(tmp_path: Path, case: str, yarn: bool) -> None:
    def edit(writer: GGUFWriter) -> None:
        writer.add_tokenizer_model("llama")
        writer.add_token_scores([0.0] * VOCAB_SIZE)
        writer.add_add_bos_token(False)
        if yarn:
            writer.add_rope_scaling_type(RopeScalingType.YARN)
            writer.add_rope_scaling_factor(4.0)
            writer.add_rope_scaling_orig_ctx_len(256)

    family, changes = CASES[case]
    path = tmp_path / "tiny.gguf"
    write_gguf(path, tiny_reference(family, **changes), edit=edit)
    assert limits(path) == ((1024, 1024) if yarn else (256, 256))
