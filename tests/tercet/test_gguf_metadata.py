"""Metadata of GGUF files against the reader of the `gguf` package."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import pytest

from tercet.errors import ModelError
from tercet.gguf_metadata import read_gguf_metadata
from tercet.model_source import resolve_model


def everything(_: str) -> bool:
    return True


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "all.gguf"
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_uint8("u8", 200)
    writer.add_int8("i8", -3)
    writer.add_uint16("u16", 60000)
    writer.add_int16("i16", -300)
    writer.add_uint32("u32", 4_000_000_000)
    writer.add_int32("i32", -70000)
    writer.add_uint64("u64", 2**63)
    writer.add_int64("i64", -(2**40))
    writer.add_float32("f32", 0.5)
    writer.add_float64("f64", 0.1)
    writer.add_bool("yes", True)
    writer.add_string("text", "Grüße 🙂")
    writer.add_array("texts", ["a", "", "é"])
    writer.add_array("ints", [1, -2, 3])
    writer.add_array("floats", [0.5, -1.5])
    writer.add_array("bools", [True, False])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def as_the_package_reads(path: Path) -> dict[str, Any]:
    fields = gguf.GGUFReader(str(path)).fields
    return {name: field.contents() for name, field in fields.items() if not name.startswith("GGUF.")}


def test_all_types(file: Path) -> None:
    found = read_gguf_metadata(file, everything)
    assert found == as_the_package_reads(file)
    assert found["yes"] is True
    assert found["bools"] == [True, False]
    assert read_gguf_metadata(file, lambda key: key == "text") == {"text": "Grüße 🙂"}


@pytest.mark.model
def test_embedded_model() -> None:
    path = resolve_model("embedded").path
    assert read_gguf_metadata(path, everything) == as_the_package_reads(path)


def test_a_file_cut_anywhere_is_an_error(file: Path, tmp_path: Path) -> None:
    data = file.read_bytes()
    cut = tmp_path / "cut.gguf"
    # The metadata ends with the two booleans of the last key; padding follows.
    for size in range(data.rindex(b"bools") + 5 + 4 + 4 + 8 + 2):
        cut.write_bytes(data[:size])
        with pytest.raises(ModelError, match=r"cut\.gguf"):
            read_gguf_metadata(cut, everything)


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"GGML" + bytes(20), "begin with GGUF"),
        (b"GGUF\x01\0\0\0" + bytes(16), "version is 1"),
        (b"GGUF\0\0\0\x03" + bytes(16), "little-endian"),
        (b"GGUF\x03\0\0\0" + bytes(8) + b"\x01" + bytes(7) + b"\x01" + bytes(7) + b"k\x63\0\0\0", "type 99"),
    ],
)
def test_other_files(tmp_path: Path, data: bytes, says: str) -> None:
    path = tmp_path / "x.gguf"
    path.write_bytes(data)
    with pytest.raises(ModelError, match=says):
        read_gguf_metadata(path, everything)
    with pytest.raises(ModelError, match="cannot read"):
        read_gguf_metadata(tmp_path / "missing.gguf", everything)
