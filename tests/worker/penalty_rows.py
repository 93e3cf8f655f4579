"""Penalties for the tests of every device."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from worker.ops.penalties import Penalties, PenaltyCounts, PenaltyRow


def penalties_of(
    rows: Sequence[PenaltyRow], vocab_size: int, room: int = 0, device: torch.device | str = "cpu"
) -> Penalties:
    """Rows on a device."""
    return Penalties.of([PenaltyCounts(row, vocab_size) for row in rows], vocab_size, room, torch.device(device))


def random_row(rng: np.random.Generator, vocab_size: int) -> PenaltyRow:
    """Each setting is off as often as not; ids meet in several lists, and repeat."""

    def ids(most: int) -> list[int]:
        return [int(i) for i in rng.integers(0, vocab_size, rng.integers(0, most + 1))]

    few = ids(6)
    return PenaltyRow(
        repetition=float(rng.choice([1.0, 1.0, 0.5, 1.3])),
        frequency=float(rng.choice([0.0, 0.0, -0.7, 1.9])),
        presence=float(rng.choice([0.0, 0.0, -2.0, 0.3])),
        bias={i: float(rng.choice([-np.inf, -100.0, 0.25, 3.0])) for i in few} if rng.random() < 0.5 else {},
        allowed_ids=[*few, *ids(3000)] if rng.random() < 0.3 else None,
        min_tokens_left=int(rng.choice([0, 1, 3])),
        end_ids=[*few[:2], *ids(2)],
        prompt_ids=[*few[:3], *ids(3000)],
        drawn_ids=[*few[1:], *few[2:], *ids(50)],
    )
