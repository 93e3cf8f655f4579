"""What a request does not say: the model's generation_config.json says it, else the API's default holds."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from gateway.mesh_messages import Pool
from gateway.model_files import SamplingDefaults
from gateway.served_model import Catalogue
from gateway.sizes import resolve_max_tokens
from gateway.validate import validate_generate
from tercet.v1 import inference_pb2 as pb

# By parameter: the API's default, what the model's file may say, and what a request may, its zero among that.
VALUES: dict[str, tuple[Any, Any, tuple[Any, ...]]] = {
    "temperature": (1.0, 0.25, (0.0, 0.5, 1.0)),
    "top_p": (1.0, 0.75, (0.5, 1.0)),
    "top_k": (0, 7, (0, 3)),
    "min_p": (0.0, 0.125, (0.0, 0.25)),
    "repetition_penalty": (1.0, 1.25, (1.0, 0.5)),
}


def resolved(model: Any, of_model: dict[str, Any], of_request: dict[str, Any]) -> Any:
    served = dataclasses.replace(model, sampling=SamplingDefaults(**of_model))
    request = pb.GenerateRequest(prompt="x", sampling=pb.SamplingParams(**of_request))
    return validate_generate(request, Catalogue([served]), max_prompt_bytes=100)


def said(read: Any, name: str) -> Any:
    return read.penalties.repetition if name == "repetition_penalty" else getattr(read.sampling, name)


@pytest.mark.parametrize("name", VALUES)
def test_the_request_then_the_model_then_the_api(model: Any, name: str) -> None:
    default, of_model, of_request = VALUES[name]
    assert said(resolved(model, {}, {}), name) == default
    assert said(resolved(model, {name: of_model}, {}), name) == of_model
    for value in of_request:
        assert said(resolved(model, {}, {name: value}), name) == value
        assert said(resolved(model, {name: of_model}, {name: value}), name) == value


@pytest.mark.parametrize("name", VALUES)
def test_one_that_is_said_leaves_the_others(model: Any, name: str) -> None:
    of_model = {each: values[1] for each, values in VALUES.items()}
    read = resolved(model, of_model, {name: VALUES[name][2][0]})
    assert {each: said(read, each) for each in VALUES if each != name} == {
        each: value for each, value in of_model.items() if each != name
    }


@pytest.mark.parametrize(
    ("of_request", "of_model", "of_api", "most"),
    [
        (None, None, None, 240), (None, None, 16, 16), (None, 7, 16, 7), (None, 70, 16, 70), (None, 7, None, 7),
        (9, 7, 16, 9), (3, 7, 16, 3), (None, 10_000, 16, 240), (None, None, 10_000, 240),
    ],
)  # fmt: skip
def test_how_many_tokens(
    model: Any, of_request: int | None, of_model: int | None, of_api: int | None, most: int
) -> None:
    """The model's is a default: a request may ask for more."""
    served = dataclasses.replace(model, sampling=SamplingDefaults(max_tokens=of_model))
    request = pb.GenerateRequest(prompt="x", stop=pb.StopConditions(max_tokens=of_request))
    read = validate_generate(request, Catalogue([served]), max_prompt_bytes=100, default_max_tokens=of_api)
    assert resolve_max_tokens(read, 10, Pool(1, 0, 250)) == most


def test_what_no_file_decides(model: Any) -> None:
    request = pb.GenerateRequest(prompt="x")
    read = validate_generate(request, Catalogue([model]), max_prompt_bytes=100)
    penalties = read.penalties
    assert (penalties.repetition, penalties.frequency, penalties.presence, penalties.min_tokens) == (1.0, 0.0, 0.0, 0)
    assert (penalties.bias, penalties.allowed_ids, penalties.bad_words) == ((), (), ())
    assert (read.sampling.num_logprobs, read.sampling.num_prompt_logprobs, read.sampling.seed) == (None, None, None)
    assert (read.n, read.stop.max_tokens, read.stop.ignore_eos, read.stop.include_string) == (1, None, False, False)
