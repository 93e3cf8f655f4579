"""A GGUF file as a Hugging Face folder is the same model: weights, tokens, text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from bench.export_model import export_model
from gateway.chat import Chat, Message
from gateway.served_model import load_model as load_text
from tercet.errors import ModelError
from tercet.model_source import ModelFormat, resolve_model
from tercet.sections import ModelSettings
from tests.worker.gguf_files import write_gguf
from tests.worker.models import PagedRunner, tiny_reference
from worker.weights.loader import load_model

PROMPTS = ("The capital of France is", "def fibonacci(n):\n    ", "中国的首都是北京,法国的首都是", "12  34   5")


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("exported") / "smollm2"
    export_model(resolve_model("embedded"), folder)
    return folder


@pytest.mark.model
def test_it_writes_the_same_tokens(exported: Path) -> None:
    source = resolve_model(str(exported))
    assert source.format is ModelFormat.HUGGING_FACE
    encode = load_text(ModelSettings()).tokenizer.encode
    prompts = {index: encode(prompt, add_bos=True) for index, prompt in enumerate(PROMPTS)}
    ours, of_file = (
        load_model(each, torch.bfloat16, torch.device("cpu")) for each in (source, resolve_model("embedded"))
    )
    assert ours.config == of_file.config
    logits = PagedRunner(ours).prefill(prompts, chunk=64)
    for index, expected in PagedRunner(of_file).prefill(prompts, chunk=64).items():
        # Bit for bit: both are dequantized, then rounded.
        assert torch.equal(logits[index], expected)
    assert PagedRunner(ours).greedy(prompts, 12) == PagedRunner(of_file).greedy(prompts, 12)


@pytest.mark.model
def test_its_text_is_the_same(exported: Path) -> None:
    ours, of_file = load_text(ModelSettings(model=str(exported))), load_text(ModelSettings())
    assert (ours.vocab_size, ours.max_model_len, ours.eos_token_ids) == (
        of_file.vocab_size,
        of_file.max_model_len,
        of_file.eos_token_ids,
    )
    chat = Chat((Message("system", "Be brief."), Message("user", "<|im_end|> 3.14 ü 🎉")))
    assert ours.encode_chat(chat, max_chars=10_000) == of_file.encode_chat(chat, max_chars=10_000)
    for text in (*PROMPTS, "<|im_start|>user\nhi<|im_end|>\n"):
        ids = ours.tokenizer.encode(text, add_bos=True)
        assert ids == of_file.tokenizer.encode(text, add_bos=True)
        assert ours.tokenizer.decode(ids) == of_file.tokenizer.decode(ids)


@pytest.mark.model
def test_transformers_reads_it_as_we_do(exported: Path) -> None:
    from transformers import AutoConfig, AutoTokenizer

    theirs = AutoTokenizer.from_pretrained(str(exported), local_files_only=True)
    ours = load_text(ModelSettings(model=str(exported))).tokenizer
    for text in PROMPTS:
        assert theirs.encode(text) == ours.encode(text, add_bos=True)
    config = AutoConfig.from_pretrained(str(exported), local_files_only=True)
    assert (config.rope_parameters["rope_theta"], config.tie_word_embeddings) == (100_000.0, True)


def test_what_is_no_gguf_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ModelError, match="no GGUF file"):
        export_model(resolve_model(str(tmp_path)), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def scaled(file: Any) -> None:
    file.add_string("llama.rope.scaling.type", "linear")
    file.add_rope_scaling_factor(2.0)


def test_other_families_and_scaled_positions_are_refused(tmp_path: Path) -> None:
    write_gguf(tmp_path / "qwen2.gguf", tiny_reference("qwen2"))
    write_gguf(tmp_path / "scaled.gguf", tiny_reference("llama"), edit=scaled)
    for file in ("qwen2.gguf", "scaled.gguf"):
        with pytest.raises(ModelError, match="not of the Llama family, or has scaled"):
            export_model(resolve_model(str(tmp_path / file)), tmp_path / "out")
    assert not (tmp_path / "out").exists()
