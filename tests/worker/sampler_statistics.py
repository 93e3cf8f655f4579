"""Many draws against the distribution that the settings promise."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import torch

from worker.ops.penalties import Penalties, PenaltyCounts, PenaltyRow, penalize
from worker.ops.sampler import SamplingRows, sample

COUNT = 40_000
# Settings of the sampler, and of penalties.
SETTINGS: list[dict[str, float]] = [
    {},
    {"temperature": 0.5},
    {"temperature": 1.8},
    {"top_k": 5},
    {"top_p": 0.8},
    {"min_p": 0.1},
    {"top_k": 9, "top_p": 0.9},
    {"temperature": 1.3, "min_p": 0.05, "top_k": 8, "top_p": 0.95},
]
PENALTIES = PenaltyRow(
    repetition=1.3, frequency=0.4, presence=0.2, bias={1: 1.5, 4: -2.0}, prompt_ids=[0, 3], drawn_ids=[3, 3, 5],
    bad=[[5, 7], [3, 8], [9]], end_ids=[2], min_tokens_left=1,
)  # fmt: skip


def promised(logits: npt.NDArray[np.float32], settings: dict[str, float]) -> npt.NDArray[np.float64]:
    """The probabilities [V]: softmax at the temperature, then min-p, then top-k, then top-p of what is left."""
    p = np.exp((logits - logits.max()).astype(np.float64) / settings.get("temperature", 1.0))
    p /= p.sum()
    order = np.argsort(-p, kind="stable")
    keep = p >= settings.get("min_p", 0.0) * p.max()
    keep[order[int(settings.get("top_k", len(p))) :]] = False
    p = np.where(keep, p, 0) / p[keep].sum()
    keep[order[int((p[order].cumsum() < settings.get("top_p", 1.0)).sum()) + 1 :]] = False
    return np.where(keep, p, 0) / p[keep].sum()


def check_draws(vocab_size: int, settings: dict[str, float], device: torch.device, *, penalized: bool) -> None:
    """Chi-square of COUNT draws, at 200 seeds and as many positions as that takes. Seeds are fixed: it passes or fails
    for ever."""
    logits = np.random.default_rng(vocab_size).standard_normal(vocab_size).astype(np.float32) * 2
    on_device = torch.from_numpy(logits)[None].to(device)
    if penalized:
        row = PenaltyCounts(PENALTIES, vocab_size)
        penalize(on_device, Penalties.of([row], vocab_size, 0, device))
        logits = on_device[0].cpu().numpy()
        assert not np.isfinite(logits[[2, 7, 9] if vocab_size > 9 else [2]]).any()
    numbers = np.arange(COUNT)
    rows = _rows(numbers % 200, numbers // 200, settings)
    chosen = sample(on_device.repeat(COUNT, 1), rows).cpu().numpy()
    _check_shares(np.bincount(chosen, minlength=vocab_size), promised(logits, settings))


def check_pairs(device: torch.device) -> None:
    """What comes at one position says nothing of what comes at the next one, nor what one seed draws of what the seeds
    beside it do: outputs of one request have those."""
    logits = torch.zeros(COUNT, 6, device=device)
    numbers = np.arange(COUNT)
    base = sample(logits, _rows(numbers % 200, numbers // 200 * 2, {})).cpu().numpy()
    for seed, position in ((0, 1), (1, 0), (127, 0), (1, 1)):
        other = sample(logits, _rows(numbers % 200 + seed, numbers // 200 * 2 + position, {})).cpu().numpy()
        if (seed, position) in ((0, 1), (1, 1)):
            _check_shares(np.bincount(6 * base + other, minlength=36), np.full(36, 1 / 36))
        else:
            # Neighbouring seeds are in the base, too: agreement alone is counted.
            _check_shares(np.bincount(base == other, minlength=2), np.array([5 / 6, 1 / 6]))


def _rows(seeds: npt.NDArray[np.int64], positions: npt.NDArray[np.int64], settings: dict[str, float]) -> SamplingRows:
    def column(name: str, default: float, dtype: type) -> npt.NDArray[np.generic]:
        return np.full(len(seeds), settings.get(name, default), dtype)

    return SamplingRows(
        column("temperature", 1.0, np.float32),  # type: ignore[arg-type]
        column("top_k", 0, np.int32),  # type: ignore[arg-type]
        column("top_p", 1.0, np.float32),  # type: ignore[arg-type]
        column("min_p", 0.0, np.float32),  # type: ignore[arg-type]
        seeds.astype(np.uint64),
        positions.astype(np.int64),
    )


def _check_shares(seen: npt.NDArray[np.int64], p: npt.NDArray[np.float64]) -> None:
    """Chi-square at the level of one in a million, since there are a hundred such tests; tokens that are expected less
    than five times count as one."""
    assert seen[p == 0].sum() == 0, "something was drawn that may not be"
    want, rare = seen.sum() * p, (seen.sum() * p < 5) & (p > 0)
    groups = [(seen[i], want[i]) for i in np.flatnonzero((p > 0) & ~rare)]
    if rare.any():
        groups.append((seen[rare].sum(), want[rare].sum()))
    degrees = len(groups) - 1
    if degrees == 0:
        return
    chi_square = sum((found - expected) ** 2 / expected for found, expected in groups)
    # The quantile by Wilson and Hilferty.
    limit = degrees * (1 - 2 / (9 * degrees) + 4.753 * math.sqrt(2 / (9 * degrees))) ** 3
    assert chi_square <= limit, f"chi-square {chi_square:.1f} of {degrees} degrees of freedom, at most {limit:.1f}"
