"""What each token of a model adds to a text, read from the model's files. Tokenizes nothing."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from ..errors import ModelError
from ..gguf_metadata import read_gguf_metadata
from ..model_source import ModelFormat, ModelSource
from ..token_pieces import Spelling, spelling_of

# Values of tokenizer.ggml.token_type.
_UNKNOWN, _CONTROL, _USER_DEFINED = 2, 3, 4
_GGUF_SPELLINGS = {"gpt2": Spelling.BYTE_LEVEL, "llama": Spelling.WORD_MARK}
_SPECIAL_NAMES = ("bos_token", "eos_token", "unk_token", "pad_token")


# Special tokens of some models by which they call tools. Where calls are read they are text.
_MARKERS = frozenset({"[TOOL_CALLS]", "<tool_call>", "</tool_call>", "<|python_tag|>"})


def read_pieces(source: ModelSource, vocab_size: int, *, with_markers: bool = False) -> list[bytes]:
    """The bytes of each token id below `vocab_size`; none of special tokens, and of ids without a token. With
    `with_markers` special tokens that mark calls of tools have their text.

    Raises ModelError, which names the file that is missing or broken.
    """
    read = _of_gguf if source.format is ModelFormat.GGUF else _of_hugging_face
    pieces = [b""] * vocab_size
    for token_id, token, piece in read(source.path):
        if 0 <= token_id < vocab_size:
            pieces[token_id] = token.encode() if with_markers and not piece and token in _MARKERS else piece
    return pieces


def _of_gguf(path: Path) -> Iterator[tuple[int, str, bytes]]:
    fields = read_gguf_metadata(path, lambda key: key.startswith("tokenizer.ggml."))
    tokens: list[str] = fields.get("tokenizer.ggml.tokens") or []
    types = fields.get("tokenizer.ggml.token_type") or [1] * len(tokens)
    spelling = _GGUF_SPELLINGS.get(fields.get("tokenizer.ggml.model", ""))
    if spelling is None or len(types) != len(tokens):
        raise ModelError(f"model: {path} has no vocabulary that can be read")
    for token_id, (token, token_type) in enumerate(zip(tokens, types, strict=True)):
        if token_type in (_UNKNOWN, _CONTROL):
            yield token_id, token, b""
        else:
            piece = token if token_type == _USER_DEFINED else spelling.piece(token)
            yield token_id, token, _bytes(piece)


def _of_hugging_face(path: Path) -> Iterator[tuple[int, str, bytes]]:
    file = path / "tokenizer.json"
    tokenizer = _read_object(file)
    try:
        spelling, _ = spelling_of(tokenizer.get("decoder") or {})
    except ValueError as error:
        raise ModelError(f"model: {file} has {error}") from error
    vocabulary = tokenizer.get("model", {}).get("vocab") or {}
    for token, token_id in _entries(vocabulary):
        yield token_id, token, _bytes(spelling.piece(token))
    special = set(_special_names(path / "tokenizer_config.json"))
    ids = dict(_entries(vocabulary))
    for token in special & ids.keys():
        yield ids[token], token, b""
    for added in tokenizer.get("added_tokens") or []:
        content = str(added["content"])
        piece = b"" if added.get("special") or content in special else content.encode()
        yield int(added["id"]), content, piece


def _entries(vocabulary: Any) -> Iterable[tuple[str, int]]:
    """Tokens and their ids, of a vocabulary by token, or of a list of tokens with their scores."""
    if isinstance(vocabulary, dict):
        return vocabulary.items()
    return ((str(token), token_id) for token_id, (token, _) in enumerate(vocabulary))


def _special_names(file: Path) -> Iterator[str]:
    config = _read_object(file) if file.is_file() else {}
    for name in _SPECIAL_NAMES:
        value = config.get(name)
        token = value.get("content") if isinstance(value, dict) else value
        if isinstance(token, str):
            yield token


def _read_object(file: Path) -> Mapping[str, Any]:
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelError(f"model: cannot read {file}: {error}") from error
    if not isinstance(found, dict):
        raise ModelError(f"model: {file} is not a JSON object")
    return found


def _bytes(piece: str | bytes) -> bytes:
    return piece.encode() if isinstance(piece, str) else piece
