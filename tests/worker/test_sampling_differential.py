"""Every sampling parameter against the logits processors of `transformers`: alone, in pairs, and all at once."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import pytest
import torch

from tests.worker.sampling_oracle import (
    PARAMETERS,
    Case,
    chosen_by_transformers,
    chosen_here,
    may_be_chosen,
    random_case,
)

CPU = torch.device("cpu")


def cases(asked: Sequence[str], count: int) -> list[Case]:
    rng = np.random.default_rng(len(asked) * 1000 + sum(map(PARAMETERS.index, asked)))
    return [case for _ in range(count) if may_be_chosen(case := random_case(rng, asked))]


def check(found: list[Case]) -> None:
    want = [chosen_by_transformers(case) for case in found]
    assert len(set(want)) > 1
    assert chosen_here(found, CPU) == want
    assert chosen_here(found, CPU, by_twin=True) == want


@pytest.mark.parametrize("name", PARAMETERS)
def test_one_parameter(name: str) -> None:
    check(cases([name], 60))


@pytest.mark.parametrize("pair", [*itertools.combinations(PARAMETERS, 2)], ids="-".join)
def test_two_parameters_in_their_order(pair: tuple[str, str]) -> None:
    check(cases(pair, 40))


def test_all_parameters_in_their_order() -> None:
    check(cases(PARAMETERS, 200))
