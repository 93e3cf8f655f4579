"""Loads the configuration and the weights of any supported checkpoint."""

from __future__ import annotations

import torch

from tercet.model_source import ModelFormat, ModelSource
from tercet.sections import Quantization

from ..model.config import ModelConfig, served
from ..model.decoder import Model
from ..model.families import FAMILIES
from .assemble import Progress, assemble
from .gguf_config import parse_gguf_config
from .gguf_file import read_gguf
from .gguf_tensors import GgufTensors
from .hf_config import read_hf_config
from .language_model import LanguageModel, has_other_parts
from .norms_from_zero import NormsFromZero
from .partial_rotary import PartialRotary
from .random_tensors import RandomTensors
from .safetensors_files import SafetensorsFiles
from .tensor_source import TensorSource


def load_config(source: ModelSource, max_model_len: int = 0) -> ModelConfig:
    """The model's configuration, served up to `max_model_len` tokens; 0 takes the model's own limit.

    Reads no weights. Raises ModelError if the model is not supported, ConfigError for a length it cannot reach.
    """
    return _open(source, max_model_len)[0]


def load_model(
    source: ModelSource,
    dtype: torch.dtype,
    device: torch.device,
    progress: Progress | None = None,
    max_model_len: int = 0,
    quantization: Quantization = "none",
) -> Model:
    """The model with its weights in `dtype` on `device`, ready for positions below its served length.

    `quantization` as for `assemble`; `progress` is told a line now and then. Raises what `load_config` does, and
    ModelError for weights that are missing, broken or do not fit.
    """
    config, opened = _open(source, max_model_len)
    tensors = opened or _checkpoint(source, config)
    if config.partial_rotary_dim is not None:
        tensors = PartialRotary(tensors, config)
    return assemble(config, tensors, dtype, device, progress, quantization)


def random_model(
    config: ModelConfig, dtype: torch.dtype, device: torch.device, seed: int, quantization: Quantization = "none"
) -> Model:
    """A model of random weights, the same for the same seed, dtype and kind of device, before any `quantization`."""
    return assemble(config, RandomTensors(config, seed, dtype, device), dtype, device, quantization=quantization)


def _checkpoint(source: ModelSource, config: ModelConfig) -> TensorSource:
    tensors: TensorSource = SafetensorsFiles(source.path)
    if has_other_parts(tensors):
        tensors = LanguageModel(tensors)
    return NormsFromZero(tensors) if FAMILIES[config.family].norms_from_zero else tensors


def _open(source: ModelSource, max_model_len: int) -> tuple[ModelConfig, TensorSource | None]:
    """The configuration, and the tensors where they are in the same file."""
    if source.format is ModelFormat.GGUF:
        file = read_gguf(source.path)
        config = served(parse_gguf_config(file), max_model_len)
        return config, GgufTensors(file, config)
    return served(read_hf_config(source.path), max_model_len), None
