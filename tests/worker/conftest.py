"""Fixtures of the kernels' tests, and the embedded model with its reference."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
import torch

from worker import _core

if TYPE_CHECKING:
    from tests.worker.smollm2 import SmolLM2

BEST_ISA = _core.isa()


def _usable() -> list[str]:
    names = ["portable", "avx2", "avx512", "avx512bf16"]
    return names[: names.index(BEST_ISA) + 1]


@pytest.fixture(params=_usable())
def isa(request: pytest.FixtureRequest) -> Iterator[str]:
    """Each instruction set that this machine has, in force for the test."""
    # The twins' own threads would wait actively for each other between the kernels.
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    _core.set_isa(request.param)
    yield request.param
    _core.set_isa(BEST_ISA)
    torch.set_num_threads(before)


@pytest.fixture
def num_threads() -> Iterator[int]:
    """More threads than most machines that run the tests have CPUs, so that the work really is divided."""
    before = _core.num_threads()
    _core.set_num_threads(5)
    yield 5
    _core.set_num_threads(before)


@pytest.fixture(scope="session")
def smollm2() -> SmolLM2:
    """The embedded model, shared by all tests that do not change it."""
    # Here, because importing transformers takes seconds that the kernels' tests need not wait.
    from tests.worker.smollm2 import SmolLM2

    return SmolLM2()
