"""Every sampling parameter on a GPU against the logits processors of `transformers`."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.worker.cuda import needs_cuda
from tests.worker.sampling_oracle import (
    PARAMETERS,
    chosen_by_transformers,
    chosen_here,
    may_be_chosen,
    random_case,
)

pytestmark = needs_cuda


@pytest.mark.parametrize("asked", [*((name,) for name in PARAMETERS), PARAMETERS], ids="-".join)
def test_the_same_tokens(asked: tuple[str, ...]) -> None:
    rng = np.random.default_rng(len(asked))
    cases = [case for _ in range(100) if may_be_chosen(case := random_case(rng, asked))]
    assert chosen_here(cases, torch.device("cuda")) == [chosen_by_transformers(case) for case in cases]
