"""Choosing tokens from logits: greedy, temperature, min-p, top-k, top-p. Knows no sequences.

cpp/include/tercet/sampler.h and philox.h define the result to the bit. A row's result depends on that row alone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from .. import _core
from .dtypes import KERNELS_BUILT, check_one_device, on_kernels, stream_of

if KERNELS_BUILT:
    from .. import _kernels


@dataclass(frozen=True, slots=True)
class SamplingRows:
    """How to choose the token of each row of logits, a column per setting. Raises ValueError naming a bad column."""

    temperature: npt.NDArray[np.float32]  # [B], finite and >= 0; 0: greedy, the rest is ignored
    top_k: npt.NDArray[np.int32]  # [B], keep the k most likely; 0: off
    top_p: npt.NDArray[np.float32]  # [B], keep the fewest tokens with this much mass, in [0, 1]; 1: off
    min_p: npt.NDArray[np.float32]  # [B], keep what is this likely against the likeliest, in [0, 1]; 0: off
    seed: npt.NDArray[np.uint64]  # [B]
    position: npt.NDArray[np.int64]  # [B], of the token being chosen

    def __post_init__(self) -> None:
        num_rows = self.temperature.shape
        for name, dtype in _COLUMNS.items():
            column = getattr(self, name)
            if column.dtype != dtype or column.ndim != 1 or column.shape != num_rows:
                raise ValueError(f"{name}: must be {dtype.name} {list(num_rows)}, is {column.dtype} {column.shape}")
        # Written so that NaN fails.
        if not ((self.temperature >= 0) & (self.temperature < np.inf)).all():
            raise ValueError("temperature: must be finite and at least 0")
        if not (self.top_k >= 0).all():
            raise ValueError("top_k: must be at least 0")
        for name in ("top_p", "min_p"):
            column = getattr(self, name)
            if not ((column >= 0) & (column <= 1)).all():
                raise ValueError(f"{name}: must be from 0 to 1")

    def packed(self) -> npt.NDArray[np.uint8]:
        """[B, PARAMS_BYTES]: a SamplingParams of cpp/include/tercet/sampler.h for each row."""
        params = np.empty(len(self.temperature), _PARAMS)
        for name in _COLUMNS:
            params[name] = getattr(self, name)
        return params.view(np.uint8).reshape(-1, PARAMS_BYTES)

    @classmethod
    def unpacked(cls, params: npt.NDArray[np.uint8]) -> SamplingRows:
        """What `packed` packed."""
        rows = np.ascontiguousarray(params).view(_PARAMS).reshape(-1)
        return cls(**{name: rows[name].copy() for name in _COLUMNS})


_COLUMNS: dict[str, np.dtype[Any]] = {
    "temperature": np.dtype(np.float32),
    "top_k": np.dtype(np.int32),
    "top_p": np.dtype(np.float32),
    "min_p": np.dtype(np.float32),
    "seed": np.dtype(np.uint64),
    "position": np.dtype(np.int64),
}
_PARAMS = np.dtype(list(_COLUMNS.items()), align=True)
# Bytes of a row's SamplingParams, and where in them its position is: what a step advances by one.
PARAMS_BYTES = _PARAMS.itemsize
POSITION_OFFSET = 24
MAX_VOCABULARY = 1 << 22  # of the CUDA kernel


def packed_row(temperature: float, top_k: int, top_p: float, min_p: float, seed: int) -> bytes:
    """A row of `SamplingRows.packed`, at position 0. The settings are the caller's word."""
    return np.array((temperature, top_k, top_p, min_p, seed, 0), _PARAMS).tobytes()


def sample(logits: Tensor, rows: SamplingRows) -> Tensor:
    """The token id [B] int64 chosen for each row of `logits` [B, V] float32, contiguous; on the device of the logits.

    -1 for a row that has a NaN or +inf, or nothing but -inf. Raises ValueError if shapes or dtype do not fit.
    """
    _check(logits, len(rows.temperature))
    return sample_packed(logits, torch.from_numpy(rows.packed()).to(logits.device, non_blocking=True))


def sample_packed(logits: Tensor, params: Tensor) -> Tensor:
    """`sample` by params [B, PARAMS_BYTES] uint8, contiguous, as `SamplingRows.packed` makes them.

    On a GPU they are read when the kernel runs, so that a captured graph draws by what they have become. Their values
    are the caller's word. Raises ValueError if shapes, dtypes, devices or the alignment do not fit.
    """
    num_rows, vocab_size = _check(logits, len(params))
    if params.dtype != torch.uint8 or params.shape != (num_rows, PARAMS_BYTES) or not params.is_contiguous():
        raise ValueError(f"params must be contiguous uint8 [B, {PARAMS_BYTES}], is {params.dtype} {list(params.shape)}")
    if params.data_ptr() % _PARAMS.alignment:
        raise ValueError(f"params must lie at a multiple of {_PARAMS.alignment} bytes")
    check_one_device(logits=logits, params=params)
    if on_kernels(logits) and vocab_size <= MAX_VOCABULARY:
        token_ids = torch.empty(num_rows, dtype=torch.int64, device=logits.device)
        _kernels.sample(
            logits.data_ptr(), num_rows, vocab_size, params.data_ptr(), token_ids.data_ptr(), stream_of(logits)
        )
        return token_ids
    if not logits.is_cpu:
        return sample_reference(logits, SamplingRows.unpacked(params.cpu().numpy()))
    token_ids = torch.empty(num_rows, dtype=torch.int64)
    _core.sample(logits.data_ptr(), num_rows, vocab_size, params.data_ptr(), token_ids.data_ptr())
    return token_ids


def sample_reference(logits: Tensor, rows: SamplingRows) -> Tensor:
    """The twin of `sample`, by sorting, on any device."""
    _, vocab_size = _check(logits, len(rows.temperature))
    device = logits.device
    peak = logits.amax(dim=1)  # [B]
    usable = peak.isfinite() & ~logits.isnan().any(dim=1)  # [B]
    greedy = _first_argmax(logits)  # [B]

    temperature = torch.from_numpy(rows.temperature).to(device)
    random = temperature > 0  # [B]
    z = (logits - peak[:, None]) / torch.where(random, temperature, 1.0)[:, None]  # [B, V]
    z = torch.where(usable[:, None], z, 0.0)
    # Descending z, then ascending id, is what a stable sort gives.
    z, token_ids = z.sort(dim=1, descending=True, stable=True)  # [B, V] each
    least = [math.log(min_p) if min_p > 0 else -math.inf for min_p in rows.min_p.tolist()]
    kept = z >= torch.tensor(least, dtype=torch.float32, device=device)[:, None]  # [B, V]
    top_k = torch.from_numpy(rows.top_k).to(device)[:, None]  # [B, 1]
    kept &= (torch.arange(vocab_size, device=device) < top_k) | (top_k == 0)

    mass = torch.where(kept, token_weight(z), 0).cumsum(dim=1)  # [B, V]
    total = mass[:, -1:]  # [B, 1]
    top_p = torch.from_numpy(rows.top_p).to(device)[:, None].double()  # [B, 1]
    target = (top_p * total.double()).ceil().long().clamp(min=1)
    before = mass - token_weight(z)
    kept &= (before < torch.minimum(target, total)) | (top_p >= 1)

    noise = _gumbel_noise(rows, token_ids)  # [B, V]
    scores = torch.where(kept, z.double() + noise, -math.inf)  # [B, V]
    # Back to the order of ids: the lowest id wins among equals.
    scores = torch.empty_like(scores).scatter_(1, token_ids, scores)
    chosen = torch.where(random, _first_argmax(scores), greedy)
    return torch.where(usable, chosen, -1)


def _check(logits: Tensor, num_rows: int) -> tuple[int, int]:
    if logits.dtype != torch.float32 or logits.ndim != 2 or not logits.is_contiguous():
        raise ValueError(f"logits must be contiguous float32 [B, V], is {logits.dtype} {list(logits.shape)}")
    vocab_size = logits.shape[1]
    if vocab_size == 0 or num_rows != len(logits):
        raise ValueError(f"{num_rows} sampling rows do not fit logits {list(logits.shape)}")
    return num_rows, vocab_size


def _first_argmax(values: Tensor) -> Tensor:
    """[B] index of the first maximum of each row of [B, V]; torch.argmax may return any."""
    index = torch.arange(values.shape[1], device=values.device)
    return torch.where(values == values.amax(dim=1, keepdim=True), index, values.shape[1]).amin(dim=1)


def token_weight(z: Tensor) -> Tensor:
    """trunc(2^40 * exp(z)) as int64, by the recipe of sampler.h; z [B, V] <= 0 in float32."""
    x = z.clamp(min=-28.0)
    n = (x * float(np.float32(math.log2(math.e)))).round()
    r = (x - n * 0.693359375) - n * float(np.float32(-2.1219444e-4))
    exp_r = torch.full_like(r, float(np.float32(1) / np.float32(5040)))
    for factorial in (720, 120, 24, 6, 2, 1, 1):
        exp_r = exp_r * r + float(np.float32(1) / np.float32(factorial))
    power = ((n.int() + (40 + 127)) << 23).view(torch.float32)
    return (exp_r * power).long()


def _gumbel_noise(rows: SamplingRows, token_ids: Tensor) -> Tensor:
    """[B, V] float64 noise of `token_ids` [B, V], by the recipe of philox.h."""

    def low_and_high(column: npt.NDArray[np.int64]) -> tuple[Tensor, Tensor]:
        bits = torch.from_numpy(column).to(token_ids.device)[:, None]  # [B, 1]
        return bits & _LOW, (bits >> 32) & _LOW

    k0, k1 = low_and_high(rows.seed.view(np.int64))
    c1, c2 = low_and_high(rows.position)
    words = [token_ids >> 2, c1.expand_as(token_ids), c2.expand_as(token_ids), torch.zeros_like(token_ids)]
    for _ in range(10):
        product0 = words[0] * 0xD2511F53
        product1 = words[2] * 0xCD9E8D57
        # The products wrap around in int64, but their bits are those of the unsigned ones.
        words = [
            ((product1 >> 32) & _LOW) ^ words[1] ^ k0,
            product1 & _LOW,
            ((product0 >> 32) & _LOW) ^ words[3] ^ k1,
            product0 & _LOW,
        ]
        k0 = (k0 + 0x9E3779B9) & _LOW
        k1 = (k1 + 0xBB67AE85) & _LOW
    word = torch.stack(words).gather(0, (token_ids & 3)[None])[0]
    u = (word.double() + 0.5) * 2.0**-32
    return -torch.log(-torch.log(u))


_LOW = 0xFFFFFFFF
