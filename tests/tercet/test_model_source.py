import pytest

from tercet.errors import ModelError
from tercet.model_source import EMBEDDED, ModelFormat, ModelSource, fingerprint, resolve_model


def _directory(path, **files):
    path.mkdir()
    (path / "config.json").write_text("{}")
    for name, text in files.items():
        (path / name.replace("__", ".")).write_text(text)
    return path


@pytest.mark.model
def test_the_embedded_model_is_a_gguf_file():
    source = resolve_model(EMBEDDED)
    assert source.format is ModelFormat.GGUF
    assert source.path.read_bytes()[:4] == b"GGUF"
    assert "SmolLM2" in source.default_name


def test_a_gguf_file_and_a_directory_are_found(tmp_path):
    file = tmp_path / "tiny.gguf"
    file.write_bytes(b"GGUF")
    assert resolve_model(str(file)) == ModelSource(ModelFormat.GGUF, file)
    assert resolve_model(str(file)).default_name == "tiny"
    folder = _directory(tmp_path / "qwen")
    assert resolve_model(str(folder)) == ModelSource(ModelFormat.HUGGING_FACE, folder)
    assert resolve_model(str(folder)).default_name == "qwen"


def test_what_is_no_model_says_what_is_needed(tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "weights.bin").write_bytes(b"")
    for name, needed in [
        ("absent", "does not exist"),
        ("empty", "no config.json"),
        ("weights.bin", "not a .gguf file"),
    ]:
        with pytest.raises(ModelError, match=needed) as caught:
            resolve_model(str(tmp_path / name))
        assert str(tmp_path / name) in str(caught.value)


def test_equal_files_have_equal_fingerprints_wherever_they_are(tmp_path):
    one = _directory(tmp_path / "one", tokenizer__json="t", model__safetensors="w")
    two = _directory(tmp_path / "two", tokenizer__json="t", model__safetensors="w", README__md="other")
    assert fingerprint(resolve_model(str(one))) == fingerprint(resolve_model(str(two)))
    for name in ("a.gguf", "b.gguf"):
        (tmp_path / name).write_bytes(b"GGUF 1")
    prints = [fingerprint(resolve_model(str(tmp_path / name))) for name in ("a.gguf", "b.gguf")]
    assert prints[0] == prints[1]


@pytest.mark.parametrize(
    "files",
    [
        {"tokenizer__json": "T", "model__safetensors": "w"},
        {"tokenizer__json": "t", "model__safetensors": "W"},
        {"tokenizer__json": "t"},
        {"tokenizer__json": "t", "other__safetensors": "w"},
        {"tokenizer__json": "t", "model__safetensors": "w", "chat_template__jinja": ""},
    ],
)
def test_another_file_is_another_fingerprint(tmp_path, files):
    base = _directory(tmp_path / "base", tokenizer__json="t", model__safetensors="w")
    other = _directory(tmp_path / "other", **files)
    assert fingerprint(resolve_model(str(base))) != fingerprint(resolve_model(str(other)))


def test_large_files_differ_by_head_tail_and_size(tmp_path):
    size = 33 * 1024 * 1024
    base = bytearray(size)
    variants = {"base": base, "head": b"x" + base[1:], "tail": base[:-1] + b"x", "longer": base + b"\0"}
    prints = set()
    for name, data in variants.items():
        path = tmp_path / f"{name}.gguf"
        path.write_bytes(data)
        prints.add(fingerprint(ModelSource(ModelFormat.GGUF, path)))
        path.unlink()
    assert len(prints) == len(variants)
