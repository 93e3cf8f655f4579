"""The model folder without weights: the gateway reads its text, a worker serves it on random weights."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from bench.dummy_model import MAX_MODEL_LEN, write_dummy_model
from bench.workload import PRESETS, Shape
from gateway.model_files import read_model_files
from tercet.config import MeshConfig, ModelSettings, WorkerSettings
from tercet.errors import ModelError
from tercet.model_source import resolve_model
from worker import engine
from worker.layout import plan_layout
from worker.weights.loader import load_config

SMALL = dataclasses.replace(PRESETS["tiny"], num_layers=1, vocab_size=1000)


@pytest.mark.parametrize("shape", [SMALL, PRESETS["1b"]], ids=["small", "1b"])
def test_gateway_and_worker_read_the_shape(shape: Shape, tmp_path: Path) -> None:
    write_dummy_model(shape, tmp_path)
    source = resolve_model(str(tmp_path))
    files = read_model_files(source)
    assert (files.vocab_size, files.max_model_len) == (shape.vocab_size, MAX_MODEL_LEN)
    assert files.tokenizer.size == shape.vocab_size
    read = load_config(source)
    for field in dataclasses.fields(shape):
        assert getattr(read, field.name) == getattr(shape, field.name), field.name


def test_a_worker_makes_weights_up_only_if_told_to(tmp_path: Path) -> None:
    write_dummy_model(SMALL, tmp_path)
    source = resolve_model(str(tmp_path))
    settings = WorkerSettings(load_format="dummy", kv_cache_memory=2**20, num_threads=1)
    layout = plan_layout(MeshConfig(model=ModelSettings(model=str(tmp_path)), worker=settings), source)
    said: list[str] = []
    executor, built = engine.build_executor(layout, source, settings, said.append)
    assert built is layout
    executor.start()
    try:
        engine.warm_up(executor, layout)
    finally:
        executor.stop()
    assert any("random weights" in line for line in said)
    with pytest.raises(ModelError, match="safetensors"):
        engine.build_executor(layout, source, dataclasses.replace(settings, load_format="auto"), said.append)
