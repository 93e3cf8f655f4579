"""What tokens add to a text, as workers read it, is what gateways make of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models

from gateway.served_model import load_model
from tercet.errors import ModelError
from tercet.grammar.vocabulary import read_pieces
from tercet.model_source import ModelFormat, ModelSource, resolve_model
from tercet.sections import ModelSettings
from tests.gateway.conftest import make_byte_tokenizer, write_model


def word_mark_tokenizer() -> Tokenizer:
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "▁the", "é", "a▁b"]
    backend = Tokenizer(models.BPE({piece: i for i, piece in enumerate(pieces)}, [], byte_fallback=True))
    backend.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    backend.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in pieces[:3]])
    return backend


def check(source: ModelSource) -> list[bytes]:
    """The pieces, which are those of the gateway."""
    model = load_model(ModelSettings(model=str(source.path)))
    pieces = read_pieces(source, model.vocab_size)
    for token_id, piece in enumerate(pieces):
        expected = model.tokenizer.piece(token_id)
        assert piece == (expected if isinstance(expected, bytes) else expected.encode()), token_id
    assert len(pieces) == model.vocab_size
    return pieces


def test_of_bytes_and_of_words(tmp_path: Path) -> None:
    backend = make_byte_tokenizer()
    backend.add_tokens([AddedToken("<think>", normalized=False)])
    backend.add_special_tokens([AddedToken("[TOOL_CALLS]", normalized=False, special=True)])
    for name, each in (("bytes", backend), ("words", word_mark_tokenizer())):
        path = write_model(tmp_path / name, tokenizer__json=each.to_str())
        source = ModelSource(ModelFormat.HUGGING_FACE, path)
        pieces = check(source)
        marked = read_pieces(source, len(pieces), with_markers=True)
        differing = {marked[i] for i in range(len(pieces)) if marked[i] != pieces[i]}
        assert differing == ({b"[TOOL_CALLS]"} if name == "bytes" else set())


@pytest.mark.model
def test_of_the_embedded_model() -> None:
    check(resolve_model("embedded"))


def test_what_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"tokenizer\.json"):
        read_pieces(ModelSource(ModelFormat.HUGGING_FACE, tmp_path), 9)
    (tmp_path / "tokenizer.json").write_text(json.dumps({"decoder": {"type": "CTC"}, "model": {"vocab": {}}}))
    with pytest.raises(ModelError, match="CTC"):
        read_pieces(ModelSource(ModelFormat.HUGGING_FACE, tmp_path), 9)
