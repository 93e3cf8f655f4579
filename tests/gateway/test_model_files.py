"""What a gateway reads from a model's files, and what it says about bad ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gateway.chat import Chat, Message, Tool
from gateway.model_files import SamplingDefaults
from gateway.served_model import Catalogue, load_model
from tercet.errors import ConfigError, InvalidFieldError, ModelError, ModelNotFoundError
from tercet.sections import ModelSettings


def load(path: Path, **settings: Any) -> Any:
    return load_model(ModelSettings(model=str(path), **settings))


def test_a_whole_directory(tmp_path: Path, write_model: Any) -> None:
    generation = {"eos_token_id": [262, 261], "top_p": 0.9, "top_k": -1, "max_new_tokens": 2048, "max_length": 20}
    path = write_model(tmp_path / "mine", generation_config__json=generation)
    model = load(path)
    assert (model.name, model.vocab_size, model.max_model_len) == ("mine", 280, 256)
    # Every file's end tokens count.
    assert model.eos_token_ids == (262, 261)
    assert model.sampling == SamplingDefaults(temperature=1.0, top_p=0.9, max_tokens=2048)
    assert load(path, max_model_len=10, served_model_name=("a", "b")).max_model_len == 10


def test_the_text_part_of_a_model_with_pictures(tmp_path: Path, write_model: Any) -> None:
    text = {"vocab_size": 280, "max_position_embeddings": 77, "eos_token_id": 261}
    config = {
        "architectures": ["Gemma3ForConditionalGeneration"], "eos_token_id": [262], "text_config": text,
        "max_position_embeddings": 5,
    }  # fmt: skip
    model = load(write_model(tmp_path / "m", config__json=config))
    assert (model.vocab_size, model.max_model_len, model.eos_token_ids) == (280, 77, (262, 261))


def test_a_template_that_writes_bos_gets_no_second_one(tmp_path: Path, write_model: Any) -> None:
    config = {"bos_token": "<s>", "add_bos_token": True, "chat_template": "{{ bos_token }}{{ messages[0].content }}"}
    model = load(write_model(tmp_path / "m", tokenizer_config__json=config))
    bos = model.tokenizer.token_to_id("<s>")
    text, ids = model.encode_chat(Chat((Message("user", "hello"),)), max_chars=99)
    assert (text, ids[0], ids.count(bos)) == ("<s>hello", bos, 1)
    assert model.tokenizer.encode("hello", add_bos=True) == ids


def test_do_sample_false_is_greedy(tmp_path: Path, write_model: Any) -> None:
    path = write_model(tmp_path / "m", generation_config__json={"do_sample": False})
    assert load(path).sampling.temperature == 0


@pytest.mark.parametrize(
    ("files", "says"),
    [
        ({"tokenizer__json": None}, r"tokenizer\.json"),
        ({"tokenizer__json": "{}"}, r"tokenizer\.json"),
        ({"config__json": "{"}, r"config\.json is not valid JSON"),
        ({"config__json": "[]"}, r"config\.json is not a JSON object"),
        ({"config__json": {"max_position_embeddings": 5}}, r"config\.json lacks the field vocab_size"),
        ({"config__json": {"vocab_size": 280}}, r"config\.json lacks the field max_position_embeddings"),
        ({"generation_config__json": {"temperature": -1}}, r"temperature in .*generation_config\.json"),
        ({"generation_config__json": {"max_new_tokens": 0}}, r"max_new_tokens in .*generation_config\.json"),
        ({"generation_config__json": {"top_p": "x"}}, r"top_p in .*generation_config\.json"),
        ({"generation_config__json": {"repetition_penalty": 0}}, r"repetition_penalty in .*generation_config\.json"),
        ({"tokenizer_config__json": {"chat_template": "a\n{% if %}"}}, r"tokenizer_config\.json is broken at line 2"),
        ({"tokenizer_config__json": {"chat_template": 5}}, r"chat_template in .*tokenizer_config\.json"),
    ],
)
def test_missing_or_broken_files_are_named(tmp_path: Path, write_model: Any, files: dict[str, Any], says: str) -> None:
    with pytest.raises(ModelError, match=says):
        load(write_model(tmp_path / "m", **files))


def test_directory_without_config(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"config\.json"):
        load(tmp_path)


def test_file_that_is_no_gguf(tmp_path: Path) -> None:
    file = tmp_path / "bad.gguf"
    file.write_bytes(b"GGUFnot really")
    with pytest.raises(ModelError, match=r"bad\.gguf"):
        load(file)


def test_context_longer_than_the_model_allows(tmp_path: Path, write_model: Any) -> None:
    with pytest.raises(ConfigError, match=r"model\.max_model_len.*256"):
        load(write_model(tmp_path / "m"), max_model_len=257)


def test_where_templates_are_found(tmp_path: Path, write_model: Any) -> None:
    hello = Chat((Message("user", "hello"),))
    own = write_model(tmp_path / "own", chat_template__jinja="file {{ messages[0].content }}")
    assert load(own).encode_chat(hello, max_chars=99)[0] == "file hello"
    named = {"tokenizer_config__json": {"chat_template": [{"name": "x"}, {"name": "default", "template": "named"}]}}
    assert load(write_model(tmp_path / "named", **named)).encode_chat(hello, max_chars=99)[0] == "named"
    templates = [{"name": "tool_use", "template": "{{ tools | length }}"}, {"name": "default", "template": "plain"}]
    both = load(write_model(tmp_path / "both", tokenizer_config__json={"chat_template": templates}))
    assert both.encode_chat(hello, max_chars=99)[0] == "plain"
    assert both.encode_chat(Chat(hello.messages, (Tool("f", "", {}),)), max_chars=99)[0] == "1"
    chosen = tmp_path / "chosen.jinja"
    chosen.write_text("chosen")
    assert load(own, chat_template=str(chosen)).encode_chat(hello, max_chars=99)[0] == "chosen"
    with pytest.raises(ModelError, match=r"model\.chat_template: cannot read"):
        load(own, chat_template=str(tmp_path / "none"))
    without = load(write_model(tmp_path / "without", tokenizer_config__json={}))
    with pytest.raises(InvalidFieldError, match="no chat template"):
        without.encode_chat(hello, max_chars=99)


def test_names(tmp_path: Path, write_model: Any) -> None:
    path = write_model(tmp_path / "m")
    catalogue = Catalogue([load(path, served_model_name=("a", "b"))])
    assert catalogue.find("").name == catalogue.find("b").name == "a"
    with pytest.raises(ModelNotFoundError) as caught:
        catalogue.find("x" * 1000)
    assert caught.value.metadata["served"] == "a, b"
    assert len(caught.value.message) < 300
