"""Rotary position embedding, in place. Knows no scaling rules: it reads a table."""

from __future__ import annotations

import torch
from torch import Tensor


def apply_rope(q: Tensor, k: Tensor, positions: Tensor, cos_sin: Tensor) -> None:
    """Rotates q [T, H, D] and k [T, G, D] in place; both may be views of a fused row [T, (H + 2G) * D].

    positions int64 [T] index the rows of cos_sin [P, D] float32 (cosines first, then sines). Element d pairs with
    element d + D/2 ("rotate half").
    """
    apply_rope_reference(q, k, positions, cos_sin)


def apply_rope_reference(q: Tensor, k: Tensor, positions: Tensor, cos_sin: Tensor) -> None:
    """The twin of `apply_rope`, in float32 or wider."""
    wide = torch.float64 if q.dtype == torch.float64 else torch.float32
    cos, sin = cos_sin[positions].to(wide)[:, None, :].chunk(2, dim=-1)  # [T, 1, D/2]
    for x in (q, k):
        low, high = x.to(wide).chunk(2, dim=-1)
        x.copy_(torch.cat((low * cos - high * sin, high * cos + low * sin), dim=-1))
