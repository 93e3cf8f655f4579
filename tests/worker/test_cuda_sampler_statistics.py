"""Draws on a GPU follow what the settings promise."""

from __future__ import annotations

import pytest
import torch

from tests.worker.cuda import needs_cuda
from tests.worker.sampler_statistics import SETTINGS, check_draws, check_pairs

pytestmark = needs_cuda
CUDA = torch.device("cuda")


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
@pytest.mark.parametrize("vocab_size", [12, 1000, 5003])
@pytest.mark.parametrize("penalized", [False, True])
def test_draws_follow_the_distribution(vocab_size: int, settings: dict[str, float], penalized: bool) -> None:
    check_draws(vocab_size, settings, CUDA, penalized=penalized)


def test_neighbouring_positions_and_seeds_are_independent() -> None:
    check_pairs(CUDA)
