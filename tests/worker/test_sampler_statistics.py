"""Draws on the CPU follow what the settings promise."""

from __future__ import annotations

import pytest
import torch

from tests.worker.sampler_statistics import SETTINGS, check_draws, check_pairs

CPU = torch.device("cpu")


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
@pytest.mark.parametrize("penalized", [False, True])
def test_draws_follow_the_distribution(settings: dict[str, float], penalized: bool) -> None:
    check_draws(12, settings, CPU, penalized=penalized)


def test_draws_from_many_tokens() -> None:
    check_draws(1000, {"temperature": 0.9, "top_p": 0.9}, CPU, penalized=False)


def test_neighbouring_positions_and_seeds_are_independent() -> None:
    check_pairs(CPU)
