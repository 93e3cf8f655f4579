"""Tokens that nobody asked for: as many as the model says, else few in a completion, and all that is left in a chat."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gateway.served_model import ServedModel, load_model
from tercet.sections import ModelSettings

from ..conftest import write_model

CHAT = [{"role": "user", "content": "hello"}]


@pytest.fixture(scope="module", params=[None, 40])
def of_model(request: Any) -> int | None:
    return request.param


@pytest.fixture(scope="module")
def model_path(tmp_path_factory: pytest.TempPathFactory, of_model: int | None) -> Path:
    path = tmp_path_factory.mktemp("models") / "bytes"
    return write_model(path, generation_config__json={"max_new_tokens": of_model})


@pytest.fixture(scope="module")
def model(model_path: Path) -> ServedModel:
    return load_model(ModelSettings(model=str(model_path)))


async def test_they_are_the_models_or_the_apis(http, scheduler, of_model):
    assert (await http.post("/v1/completions", json={"prompt": "hello"})).status_code == 200
    assert (await http.post("/v1/chat/completions", json={"messages": CHAT})).status_code == 200
    completion, chat = (each.submit for each in scheduler.sequences)
    assert (completion.max_tokens, completion.max_tokens_open) == (of_model or 16, True)
    assert (chat.max_tokens, chat.max_tokens_open) == (of_model or 256 - len(chat.prompt_token_ids), True)
