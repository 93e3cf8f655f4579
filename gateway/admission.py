"""What a client learns when its request is admitted."""

from __future__ import annotations

from dataclasses import dataclass

from .served_model import ServedModel


@dataclass(frozen=True, slots=True)
class Admission:
    """Of one request. `prompt` is the prompt itself, where its logprobs are wanted."""

    request_id: str
    model: ServedModel
    queue_position: int
    seed: int
    prompt_tokens: int
    forecast_s: float | None
    prompt: tuple[int, ...] = ()
