"""A model folder without weights for a preset, so that a whole mesh can be measured on random ones.

    python -m bench.dummy_model --preset 8b --out /tmp/llama-8b
    tercet up --model /tmp/llama-8b --load-format dummy --device cuda

The tokenizer has a token for each byte and made-up words for the rest, so that any token id has a text.
"""

from __future__ import annotations

import json
from pathlib import Path

import click
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from bench.workload import PRESETS, Shape

MAX_MODEL_LEN = 4096
_BOS, _EOS = 1, 2


@click.command()
@click.option("--preset", type=click.Choice(list(PRESETS)), default="8b")
@click.option("--out", type=click.Path(path_type=Path), required=True, help="folder to make")
def main(preset: str, out: Path) -> None:
    """Writes the folder and says where it is."""
    write_dummy_model(PRESETS[preset], out)
    click.echo(out)


def write_dummy_model(shape: Shape, folder: Path) -> None:
    """Makes `folder` with config.json and tokenizer.json in the shape of a preset."""
    folder.mkdir(parents=True, exist_ok=True)
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "hidden_size": shape.hidden_size,
        "intermediate_size": shape.intermediate_size,
        "num_hidden_layers": shape.num_layers,
        "num_attention_heads": shape.num_heads,
        "num_key_value_heads": shape.num_kv_heads,
        "head_dim": shape.head_dim,
        "vocab_size": shape.vocab_size,
        "max_position_embeddings": MAX_MODEL_LEN,
        "rms_norm_eps": 1e-5,
        "rope_theta": 500_000.0,
        "tie_word_embeddings": shape.tie_word_embeddings,
        "bos_token_id": _BOS,
        "eos_token_id": _EOS,
    }
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    _tokenizer(shape.vocab_size).save(str(folder / "tokenizer.json"))


def _tokenizer(vocab_size: int) -> Tokenizer:
    specials = ["<unk>", "<s>", "</s>"]
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = [f"Ġw{index}" for index in range(vocab_size - len(specials) - len(letters))]
    vocabulary = {token: index for index, token in enumerate([*specials, *letters, *words])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(specials)
    return tokenizer


if __name__ == "__main__":
    main()
