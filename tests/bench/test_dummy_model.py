"""The model folder without weights: the gateway reads its text, a worker serves it on random weights."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from bench.dummy_model import MAX_MODEL_LEN, write_dummy_model
from bench.workload import PRESETS, Shape
from gateway.model_files import read_model_files
from gateway.served_model import load_model
from tercet.errors import ModelError
from tercet.model_source import fingerprint, resolve_model
from tercet.sections import MeshConfig, ModelSettings, WorkerSettings
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
    source = resolve_model(str(tmp_path), "dummy")
    settings = WorkerSettings(kv_cache_memory=2**20, num_threads=1)
    layout = plan_layout(MeshConfig(model=ModelSettings(model=str(tmp_path)), worker=settings), source)
    with capture_logs() as events:
        executor, _ = engine.build_executor(layout, source, settings, lambda line: None)
    assert [event["event"] for event in events if event["log_level"] == "warning"] == ["random_weights"]
    executor.start()
    try:
        engine.warm_up(executor, layout)
    finally:
        executor.stop()
    with pytest.raises(ModelError, match="safetensors"):
        engine.build_executor(layout, resolve_model(str(tmp_path)), settings, lambda line: None)


def test_random_weights_are_another_model(tmp_path: Path) -> None:
    """So that a worker of theirs never serves for a gateway of the real ones: the scheduler pools by this."""
    write_dummy_model(SMALL, tmp_path)
    real, dummy = (
        load_model(ModelSettings(model=str(tmp_path), load_format=load_format)).revision
        for load_format in ("auto", "dummy")
    )
    assert real != dummy
    assert fingerprint(resolve_model(str(tmp_path), "dummy")) == dummy
