"""A GGUF model as a Hugging Face folder, for servers that read nothing else: the same weights, vocabulary and template.

    python -m bench.export_model --out /tmp/smollm2
    tercet up --model /tmp/smollm2

Weights are dequantized to bfloat16, to which a worker brings those of the file, too. Models of the Llama family only.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
import torch
from safetensors.torch import save_file

from gateway.model_files import ModelFiles, read_model_files
from tercet.errors import ModelError
from tercet.gguf_metadata import read_gguf_metadata
from tercet.model_source import ModelFormat, ModelSource, resolve_model
from worker.model.config import ModelConfig, RopeConfig
from worker.model.tensors import tensor_shapes
from worker.weights.gguf_file import read_gguf
from worker.weights.gguf_tensors import GgufTensors
from worker.weights.loader import load_config
from worker.weights.safetensors_files import SINGLE_FILE
from worker.weights.tensor_source import check_tensors

_FAMILY = "llama"
# What a template may name, by its key in the file.
_NAMED_TOKENS = {
    "tokenizer.ggml.bos_token_id": "bos_token",
    "tokenizer.ggml.eos_token_id": "eos_token",
    "tokenizer.ggml.unknown_token_id": "unk_token",
    "tokenizer.ggml.padding_token_id": "pad_token",
}


@click.command()
@click.option("--model", default="embedded", show_default=True, help="as the setting model.model; a GGUF file")
@click.option("--out", type=click.Path(path_type=Path), required=True, help="folder to make")
def main(model: str, out: Path) -> None:
    """Writes the folder and says where it is."""
    try:
        export_model(resolve_model(model), out)
    except ModelError as error:
        raise click.ClickException(str(error)) from error
    click.echo(out)


def export_model(source: ModelSource, folder: Path) -> None:
    """Makes `folder` with weights, configuration, tokenizer and template of a GGUF file. Raises ModelError for another
    format, for a family or rotary positions that it cannot write, and for broken files."""
    if source.format is not ModelFormat.GGUF:
        raise ModelError(f"model: {source.path} is no GGUF file")
    config = load_config(source)
    if config.family != _FAMILY or config.rope != RopeConfig(theta=config.rope.theta):
        raise ModelError(f"model: {source.path} is not of the Llama family, or has scaled rotary positions")
    if config.qkv_bias != config.output_bias:
        raise ModelError(f"model: {source.path} has biases that config.json cannot say")
    text = read_model_files(source)
    if text.tokenizer.bos_token_id is not None or text.tokenizer.eos_token_id is not None:
        raise ModelError(f"model: {source.path} puts tokens around prompts, which is not written")
    tensors = GgufTensors(read_gguf(source.path), config)
    names = tensor_shapes(config)
    check_tensors(tensors, names)
    folder.mkdir(parents=True, exist_ok=True)
    _write_json(folder / "config.json", _config(config, text))
    _write_json(folder / "tokenizer_config.json", _tokenizer_config(source, text))
    (folder / "tokenizer.json").write_text(text.tokenizer.to_json(), encoding="utf-8")
    weights = {name: tensors.read(name).to(torch.bfloat16).contiguous() for name in names}
    # transformers wants to be told whose tensors these are.
    save_file(weights, folder / SINGLE_FILE, metadata={"format": "pt"})


def _config(config: ModelConfig, text: ModelFiles) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": _FAMILY,
        "torch_dtype": "bfloat16",
        "hidden_act": config.activation,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "vocab_size": config.vocab_size,
        "max_position_embeddings": config.max_position,
        "rms_norm_eps": config.rms_norm_eps,
        "rope_theta": config.rope.theta,
        "tie_word_embeddings": config.tie_word_embeddings,
        "attention_bias": config.qkv_bias,
        "mlp_bias": config.mlp_bias,
        "eos_token_id": list(text.eos_token_ids),
    }


def _tokenizer_config(source: ModelSource, text: ModelFiles) -> dict[str, Any]:
    ids = read_gguf_metadata(source.path, lambda key: key in _NAMED_TOKENS)
    written: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "model_max_length": text.max_model_len,
        **{_NAMED_TOKENS[key]: text.tokenizer.spelling(token_id) for key, token_id in ids.items()},
    }
    if text.template is not None:
        written["chat_template"] = text.template.text
    return written


def _write_json(path: Path, data: dict[str, Any]) -> None:
    path.write_text(json.dumps(data, indent=1, ensure_ascii=False), encoding="utf-8")


if __name__ == "__main__":
    main()
