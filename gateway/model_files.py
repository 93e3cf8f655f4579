"""What the files of a model say about text: tokenizer, template, limits, end tokens, default sampling.

Reads a Hugging Face directory or a GGUF file; never a weight.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tercet.errors import ModelError
from tercet.gguf_metadata import read_gguf_metadata
from tercet.model_fields import Fields
from tercet.model_length import gguf_length, hf_length
from tercet.model_source import ModelFormat, ModelSource
from tercet.text_config import text_fields

from . import gguf_tokenizer, tokenizer
from .penalties import MAX_REPETITION, MIN_REPETITION
from .template import ChatTemplate


@dataclass(frozen=True, slots=True)
class SamplingDefaults:
    """What a request gets that does not say otherwise. The meaning of tercet.v1.SamplingParams; `max_tokens` is that of
    StopConditions, None: what is left of the context."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    max_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """The text side of a model. `template` is None if it has none; `tool_template` is one for chats with tools, if
    there are two; `max_model_len` is in tokens."""

    tokenizer: tokenizer.Tokenizer
    template: ChatTemplate | None
    tool_template: ChatTemplate | None
    vocab_size: int
    max_model_len: int
    eos_token_ids: tuple[int, ...]
    sampling: SamplingDefaults


def read_model_files(source: ModelSource, chat_template: str = "") -> ModelFiles:
    """Reads the text side of a model. `chat_template`, if set, is a Jinja file that replaces the model's own.

    Raises ModelError, which names the file that is missing or broken.
    """
    if source.format is ModelFormat.GGUF:
        return _read_gguf(source.path, chat_template)
    return _read_hugging_face(source.path, chat_template)


def _read_hugging_face(path: Path, chat_template: str) -> ModelFiles:
    config = _read_json(path / "config.json", required=True)
    fields = text_fields(config, str(path / "config.json"))
    generation = _read_json(path / "generation_config.json")
    tokenizer_config = _read_json(path / "tokenizer_config.json")
    file = path / "tokenizer.json"
    if not file.is_file():
        raise ModelError(
            f"model: {path} has no tokenizer.json; copy it from the model's repository, or make it with "
            "`transformers.AutoTokenizer.from_pretrained(...).save_pretrained(...)`"
        )
    names = {name: tokenizer.token_text(tokenizer_config.get(name)) for name in _TOKEN_NAMES}
    tokens = tokenizer.from_hugging_face(
        _read_text(file),
        tokenizer_config,
        source=str(file),
        added_special=[token for token in names.values() if token is not None],
    )
    texts, origin = _hugging_face_templates(path, tokenizer_config, chat_template)
    templates = {name: ChatTemplate(text, source=origin, variables=names) for name, text in texts.items()}
    vocab_size = fields.count("vocab_size")
    # Files that should agree often do not; each id that any of them calls an end is one.
    ends = [token_id for each in (generation, config, fields) for token_id in _ids(each.get("eos_token_id"))]
    if (eos := names["eos_token"]) is not None and (eos_id := tokens.token_to_id(eos)) is not None:
        ends.append(eos_id)
    return ModelFiles(
        tokenizer=tokens,
        template=templates.get("default"),
        tool_template=templates.get("tool_use"),
        vocab_size=vocab_size,
        max_model_len=hf_length(fields),
        eos_token_ids=_in_range(ends, vocab_size),
        sampling=_sampling(generation, path / "generation_config.json"),
    )


def _read_gguf(path: Path, chat_template: str) -> ModelFiles:
    fields = read_gguf_metadata(path, lambda key: key.startswith(_GGUF_PREFIXES) or _is_length(key))
    tokens = gguf_tokenizer.from_gguf(fields, source=str(path))
    prefix = f"{fields.get('general.architecture')}."
    own = {key.removeprefix(prefix): value for key, value in fields.items() if key.startswith(prefix)}
    spelt: list[str] = fields["tokenizer.ggml.tokens"]
    names = {
        name: spelt[token_id]
        for name, key in _TOKEN_NAMES.items()
        if isinstance(token_id := fields.get(f"tokenizer.ggml.{key}_token_id"), int) and 0 <= token_id < len(spelt)
    }
    text, origin = fields.get("tokenizer.chat_template"), str(path)
    if chat_template:
        text, origin = _read_text(Path(chat_template), key="model.chat_template"), chat_template
    ends = [fields.get(f"tokenizer.ggml.{key}_token_id") for key in ("eos", "eot", "eom")]
    known_ends = [i for i, token in enumerate(spelt) if token in _TURN_ENDS and i in tokens.special_token_ids]
    return ModelFiles(
        tokenizer=tokens,
        template=None if text is None else ChatTemplate(text, source=origin, variables=names),
        tool_template=None,
        # The rows of the embedding are those of the token list; a separate key only repeats it.
        vocab_size=len(spelt),
        max_model_len=gguf_length(Fields(own, str(path), prefix)),
        eos_token_ids=_in_range([*(i for i in ends if isinstance(i, int)), *known_ends], len(spelt)),
        sampling=SamplingDefaults(),
    )


_GGUF_PREFIXES = ("general.", "tokenizer.")


def _is_length(key: str) -> bool:
    """Whether `gguf_length` may ask for the key, whatever the architecture before it."""
    return key.endswith(".context_length") or ".rope.scaling." in key


# Template variable to the stem of its key in GGUF.
_TOKEN_NAMES = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}

# GGUF files made before the eot key existed name only one end; these tokens are ends wherever they exist.
_TURN_ENDS = frozenset({"<|im_end|>", "<|eot_id|>", "<|end|>", "<end_of_turn>"})


def _hugging_face_templates(path: Path, config: Mapping[str, Any], chosen: str) -> tuple[dict[str, str], str]:
    """The templates by name, default and tool_use if there are such, and the file that they are from."""
    if chosen:
        return {"default": _read_text(Path(chosen), key="model.chat_template")}, chosen
    file = path / "chat_template.jinja"
    if file.is_file():
        return {"default": _read_text(file)}, str(file)
    found, origin = config.get("chat_template"), path / "tokenizer_config.json"
    if found is None and (path / "chat_template.json").is_file():
        origin = path / "chat_template.json"
        found = _read_json(origin).get("chat_template")
    if isinstance(found, list):
        named = {str(item.get("name")): item.get("template") for item in found if isinstance(item, dict)}
        found = {name: named[name] for name in ("default", "tool_use") if named.get(name) is not None}
    elif found is not None:
        found = {"default": found}
    if not all(isinstance(text, str) for text in (found or {}).values()):
        raise ModelError(f"model: chat_template in {origin} is not a text")
    return found or {}, str(origin)


def _sampling(config: Mapping[str, Any], path: Path) -> SamplingDefaults:
    checks: dict[str, Callable[[float], bool]] = {
        "temperature": lambda v: v >= 0,
        "top_p": lambda v: 0 < v <= 1,
        # -1, as some write, is off as well.
        "top_k": lambda v: v >= -1,
        "min_p": lambda v: 0 <= v <= 1,
        "repetition_penalty": lambda v: MIN_REPETITION <= v <= MAX_REPETITION,
        "max_new_tokens": lambda v: v >= 1,
    }
    values: dict[str, Any] = {}
    for name, check in checks.items():
        value = config.get(name)
        if value is None:
            continue
        if not isinstance(value, (int, float)) or not math.isfinite(value) or not check(value):
            raise ModelError(f"model: {name} in {path} is {value!r}, which cannot be")
        values[name] = max(int(value), 0) if name in ("top_k", "max_new_tokens") else float(value)
    if config.get("do_sample") is False:
        values["temperature"] = 0.0
    # Its max_length counts the prompt as well, and is mostly the context, which is known from elsewhere.
    return SamplingDefaults(max_tokens=values.pop("max_new_tokens", None), **values)


def _ids(value: Any) -> list[int]:
    values = value if isinstance(value, list) else [value]
    return [item for item in values if isinstance(item, int)]


def _in_range(ids: list[int], vocab_size: int) -> tuple[int, ...]:
    return tuple(dict.fromkeys(token_id for token_id in ids if 0 <= token_id < vocab_size))


def _read_text(path: Path, key: str = "model") -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise ModelError(f"{key}: cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ModelError(f"{key}: {path} is not UTF-8: {error.reason} at byte {error.start}") from error


def _read_json(path: Path, *, required: bool = False) -> dict[str, Any]:
    if not path.is_file():
        if required:
            raise ModelError(f"model: {path} does not exist; a Hugging Face directory needs it")
        return {}
    try:
        data = json.loads(_read_text(path))
    except ValueError as error:
        raise ModelError(f"model: {path} is not valid JSON: {error}") from error
    if not isinstance(data, dict):
        raise ModelError(f"model: {path} is not a JSON object")
    return data
