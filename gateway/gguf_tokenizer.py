"""A tokenizer from the metadata of a GGUF file, which holds vocabulary and merges but no rules.

Supported are byte-level BPE (`gpt2`), with the splits of the model families we serve, and SentencePiece BPE (`llama`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import structlog
import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers

from tercet.errors import ModelError
from tercet.token_pieces import Spelling

from .tokenizer import Tokenizer

log = structlog.get_logger()

# Values of tokenizer.ggml.token_type.
_UNKNOWN, _CONTROL, _USER_DEFINED = 2, 3, 4

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_WORDS_THEN = r"|[^\r\n\p{L}\p{N}]?\p{L}+|"
_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def _byte_level(use_regex: bool) -> Any:
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=use_regex)


def _split(pattern: str) -> Any:
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), behavior="isolated"), _byte_level(False)])


def _gpt2() -> Any:
    return _byte_level(True)


def _single_digits() -> Any:
    return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), _byte_level(True)])


def _llama3() -> Any:
    return _split(_CONTRACTIONS + _WORDS_THEN + r"\p{N}{1,3}" + _REST)


def _qwen2() -> Any:
    return _split(_CONTRACTIONS + _WORDS_THEN + r"\p{N}" + _REST)


def _tekken() -> Any:
    upper, lower = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
    start = r"[^\r\n\p{L}\p{N}]?"
    words = f"{start}{upper}*{lower}+|{start}{upper}+{lower}*"
    return _split(words + r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")


# How text is split before merging, by tokenizer.ggml.pre.
_SPLITS: Mapping[str, Callable[[], Any]] = {
    "default": _gpt2,
    "gpt-2": _gpt2,
    "smollm": _single_digits,
    "llama-bpe": _llama3,
    "llama3": _llama3,
    "llama-v3": _llama3,
    "qwen2": _qwen2,
    "deepseek-r1-qwen": _qwen2,
    "tekken": _tekken,
}
# These vocabularies take a whole word that is a token before they try merges.
_IGNORE_MERGES = frozenset({_llama3, _tekken})
# The published tokenizer normalizes to NFC first; the GGUF does not say so.
_NFC = frozenset({_qwen2})


def from_gguf(fields: Mapping[str, Any], *, source: str) -> Tokenizer:
    """The tokenizer of GGUF metadata (`fields`: key to value). `source` names the file in errors. Raises ModelError."""
    kind = fields.get("tokenizer.ggml.model")
    tokens = fields.get("tokenizer.ggml.tokens")
    if kind is None or not tokens:
        raise ModelError(
            f"model: {source} has no tokenizer (tokenizer.ggml.model and tokenizer.ggml.tokens); give a GGUF file with "
            "its tokenizer included, or a Hugging Face directory with tokenizer.json"
        )
    if kind not in _BUILDERS:
        raise ModelError(
            f"model: {source} has a tokenizer of kind {kind!r}; supported in GGUF are {', '.join(map(repr, _BUILDERS))}"
        )
    types = fields.get("tokenizer.ggml.token_type") or [1] * len(tokens)
    if len(types) != len(tokens):
        raise ModelError(f"model: {source} has {len(tokens)} tokens but {len(types)} token types; the file is broken")
    backend, spelling, strip, adds_bos = _BUILDERS[kind](fields, tokens, source)
    special = frozenset(i for i, token_type in enumerate(types) if token_type in (_UNKNOWN, _CONTROL))
    backend.add_special_tokens([AddedToken(tokens[i], normalized=False, special=True) for i in sorted(special)])
    plain = [
        AddedToken(tokens[i], normalized=False) for i, token_type in enumerate(types) if token_type == _USER_DEFINED
    ]
    backend.add_tokens(plain)
    if backend.get_vocab_size(with_added_tokens=True) != len(tokens):
        raise ModelError(f"model: {source} lists a token twice; the file is broken")
    bos = fields.get("tokenizer.ggml.bos_token_id")
    if not fields.get("tokenizer.ggml.add_bos_token", adds_bos):
        bos = None
    elif bos is None or not 0 <= bos < len(tokens):
        raise ModelError(f"model: {source} asks for a BOS token but tokenizer.ggml.bos_token_id is {bos}")
    eos = fields.get("tokenizer.ggml.eos_token_id") if fields.get("tokenizer.ggml.add_eos_token") else None
    return Tokenizer(
        backend,
        bos_token_id=bos,
        eos_token_id=eos if eos is not None and 0 <= eos < len(tokens) else None,
        spelling=spelling,
        strip_leading_space=strip,
        special_token_ids=special,
    )


_Built = tuple[tokenizers.Tokenizer, Spelling, bool, bool]


def _build_byte_level(fields: Mapping[str, Any], tokens: Sequence[str], source: str) -> _Built:
    name = fields.get("tokenizer.ggml.pre", "default")
    if name not in _SPLITS:
        raise ModelError(
            f"model: {source} splits text as {name!r} (tokenizer.ggml.pre); supported are {', '.join(_SPLITS)}"
        )
    if name == "default":
        log.warning("tokenizer_split_unknown", source=source, used="gpt-2")
    split = _SPLITS[name]
    merges = fields.get("tokenizer.ggml.merges")
    if merges is None:
        raise ModelError(f"model: {source} has no tokenizer.ggml.merges; the file is broken")
    # Added tokens may be written as they are; everything else is in the byte alphabet.
    vocabulary = {token: i for i, token in enumerate(tokens)}
    backend = _make(
        lambda: models.BPE(
            vocab=vocabulary,
            # A space separates the two sides; a side is never empty, so it is looked for from the second character.
            merges=[_pair(merge) for merge in merges],
            ignore_merges=split in _IGNORE_MERGES,
        ),
        source,
    )
    if split in _NFC:
        backend.normalizer = normalizers.NFC()
    backend.pre_tokenizer = split()
    backend.decoder = decoders.ByteLevel()
    return backend, Spelling.BYTE_LEVEL, False, split is _llama3


def _build_sentencepiece(fields: Mapping[str, Any], tokens: Sequence[str], source: str) -> _Built:
    scores = fields.get("tokenizer.ggml.scores")
    if scores is None or len(scores) != len(tokens):
        raise ModelError(f"model: {source} has no tokenizer.ggml.scores, one per token; the file is broken")
    vocabulary = {token: i for i, token in enumerate(tokens)}
    unknown = fields.get("tokenizer.ggml.unknown_token_id", 0)
    backend = _make(
        lambda: models.BPE(
            vocab=vocabulary,
            merges=_merges_of(vocabulary, scores),
            unk_token=tokens[unknown],
            fuse_unk=True,
            byte_fallback=True,
        ),
        source,
    )
    prefix = bool(fields.get("tokenizer.ggml.add_space_prefix", True))
    # As llama.cpp does, the prefix goes before each stretch of text, also after a special token.
    parts = [normalizers.Prepend("▁")] if prefix else []
    backend.normalizer = normalizers.Sequence([*parts, normalizers.Replace(" ", "▁")])
    decoding = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    backend.decoder = decoders.Sequence([*decoding, *([decoders.Strip(" ", 1, 0)] if prefix else [])])
    return backend, Spelling.WORD_MARK, prefix, True


_BUILDERS: Mapping[str, Callable[[Mapping[str, Any], Sequence[str], str], _Built]] = {
    "gpt2": _build_byte_level,
    "llama": _build_sentencepiece,
}


def _make(model: Callable[[], Any], source: str) -> tokenizers.Tokenizer:
    try:
        return tokenizers.Tokenizer(model())
    except Exception as error:
        raise ModelError(f"model: the tokenizer in {source} is broken: {error}") from error


def _pair(merge: str) -> tuple[str, str]:
    left, _, right = merge[1:].partition(" ")
    return merge[:1] + left, right


def _merges_of(vocabulary: Mapping[str, int], scores: Sequence[float]) -> list[tuple[str, str]]:
    """SentencePiece keeps no merges: it joins the neighbours whose whole scores best. That is this order of merges."""
    found: list[tuple[float, int, int, str, str]] = []
    for token, token_id in vocabulary.items():
        for cut in range(1, len(token)):
            left, right = vocabulary.get(token[:cut]), vocabulary.get(token[cut:])
            if left is not None and right is not None:
                found.append((-scores[token_id], left, right, token[:cut], token[cut:]))
    found.sort()
    return [(left, right) for _, _, _, left, right in found]
