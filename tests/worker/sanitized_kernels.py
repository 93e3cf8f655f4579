"""Every CUDA kernel once or twice on small numbers, for a sanitizer to watch. Results are the tests' business.

    python -m tests.worker.sanitized_kernels CASE...    run these; `--list` names them

Without torch: it takes long to start under a sanitizer, and its allocator hides where a tensor ends.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.worker.device_memory import Device
from worker import _kernels

F32, F16, BF16, E4M3 = 0, 1, 2, 3  # cpp/cuda/dtype.h
BYTES = {F32: 4, F16: 2, BF16: 2, E4M3: 1}
STREAM = 0
RNG = np.random.default_rng(0)


def numbers(dtype: int, *shape: int) -> NDArray[Any]:
    """About 1, of either sign."""
    if dtype == E4M3:
        return (RNG.integers(0, 0x40, shape) | RNG.integers(0, 2, shape) << 7).astype(np.uint8)
    values = RNG.standard_normal(shape, np.float32)
    if dtype == BF16:
        return (values.view(np.uint32) >> 16).astype(np.uint16)
    return values.astype(np.float16) if dtype == F16 else values


class Written:
    """Outputs, all ones before. What a case leaves untouched it did not compute."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._outputs: list[tuple[int, int, int]] = []

    def room(self, num_rows: int, row_bytes: int) -> int:
        address = self._device.room(num_rows * row_bytes)
        self._outputs.append((address, num_rows, row_bytes))
        return address

    def check(self) -> None:
        """Waits for the device. Raises AssertionError on a row that nothing was written to."""
        for address, num_rows, row_bytes in self._outputs:
            rows = self._device.take(address, num_rows * row_bytes).reshape(num_rows, row_bytes)
            assert not (rows == 0xFF).all(axis=1).any(), "a row was not written"


def attention(
    device: Device, dtype: int, cache_dtype: int, heads: tuple[int, int], dim: int, block_size: int,
    chunks: Sequence[tuple[int, int]], window: int = 0, softcap: float = 0.0,
) -> None:  # fmt: skip
    """Two layers of a step of sequences, each given as (tokens of the step, tokens of the context)."""
    num_heads, num_kv_heads = heads
    num_tokens, num_sequences = sum(queries for queries, _ in chunks), len(chunks)
    widths = [-(-context // block_size) for _, context in chunks]
    num_blocks, order = sum(widths), RNG.permutation(sum(widths))
    tables = np.full((num_sequences, max(widths)), 10**6, np.int32)
    for row, width in enumerate(widths):
        tables[row, :width], order = order[:width], order[width:]
    starts = np.cumsum([0, *(queries for queries, _ in chunks)])
    bounds = sum(context for _, context in chunks), sum(queries > 1 for queries, _ in chunks)
    cache = (num_blocks, num_kv_heads, block_size, dim)
    q = device.put(numbers(dtype, num_tokens, num_heads, dim))
    k, v = (device.put(numbers(cache_dtype, *cache)) for _ in range(2))
    written = Written(device)
    step = _kernels.StepAttention(
        dtype, cache_dtype, dim, num_heads, num_kv_heads, block_size, num_blocks, device.put(starts, np.int32),
        device.put([context for _, context in chunks], np.int32), device.put(tables), num_sequences, num_tokens,
        tables.shape[1], *bounds, device.num_multiprocessors, window,
    )  # fmt: skip
    step.prepare(device.room(4 * step.workspace_words), STREAM)
    for _ in range(2):
        out = written.room(num_tokens * num_heads, dim * BYTES[dtype])
        step.attend(q, num_heads * dim, dim, k, v, out, dim**-0.5, 1.0, 1.0, softcap, STREAM)
    written.check()


def decode(device: Device) -> None:
    lengths = [(1, n) for n in (1, 16, 130, 700, 1100)]
    attention(device, BF16, BF16, (8, 2), 128, 64, lengths)
    attention(device, F16, F16, (6, 2), 64, 16, lengths)
    attention(device, BF16, BF16, (20, 1), 96, 32, lengths[:4])
    attention(device, BF16, BF16, (20, 1), 256, 8, lengths[:4])


def decode_e4m3(device: Device) -> None:
    lengths = [(1, n) for n in (1, 31, 130, 700, 1100)]
    attention(device, BF16, E4M3, (8, 2), 128, 64, lengths)
    attention(device, F16, E4M3, (20, 1), 64, 8, lengths)


def prefill(device: Device) -> None:
    """By products of warps."""
    attention(device, BF16, BF16, (4, 2), 96, 16, [(70, 70), (1, 40), (3, 200)])
    attention(device, F16, F16, (4, 1), 256, 32, [(40, 90)])


def prefill_hopper(device: Device) -> None:
    """By products of warpgroups, where there are any."""
    attention(device, BF16, BF16, (4, 2), 128, 64, [(70, 70), (1, 40), (3, 400)])
    attention(device, F16, F16, (4, 1), 64, 16, [(40, 190)])


def prefill_e4m3(device: Device) -> None:
    attention(device, BF16, E4M3, (4, 2), 128, 64, [(70, 70), (1, 40), (3, 400)])
    attention(device, F16, E4M3, (4, 1), 64, 64, [(40, 190)])


def attention_plain(device: Device) -> None:
    attention(device, F32, F32, (6, 2), 80, 16, [(3, 50), (1, 70)])


def attention_window(device: Device) -> None:
    """A window and a cap, in every kernel of attention."""
    lengths = [(1, n) for n in (1, 130, 700, 1100)]
    attention(device, BF16, BF16, (8, 2), 128, 64, lengths, 600, 30.0)
    attention(device, BF16, BF16, (20, 1), 256, 8, lengths, 100)
    attention(device, BF16, E4M3, (8, 2), 128, 64, lengths, 513)
    for dtype, cache_dtype, dim in ((BF16, BF16, 256), (BF16, BF16, 128), (F16, E4M3, 64), (F32, F32, 80)):
        attention(device, dtype, cache_dtype, (4, 2), dim, 16, [(70, 70), (1, 40), (33, 400)], 150, 20.0)


def attention_wild(device: Device) -> None:
    """Lengths, starts, blocks and bounds that cannot be: what is read and written stays inside the tensors."""
    tokens, blocks, heads, kv_heads = 72, 40, 6, 2
    lengths = ([10**6, 10**8, -5], [2**31 - 1] * 3, [0, 50, 1300])
    starts = ([0, 1, 71, 72], [0, -3, 500, 72], [70, 1, 2**31 - 1, 5])
    bounds = ((1490, 1), (300, 0), (0, 0), (-1, -1))
    for dtype, cache_dtype, dim, block_size in ((BF16, BF16, 128, 64), (BF16, E4M3, 128, 64), (F32, F32, 80, 16)):
        q = device.put(numbers(dtype, tokens, heads, dim))
        k, v = (device.put(numbers(cache_dtype, blocks, kv_heads, block_size, dim)) for _ in range(2))
        out = device.room(tokens * heads * dim * BYTES[dtype])
        width = 1300 // block_size + 1
        tables = np.resize(np.array([-5, 10**9, 3, -(2**31), blocks, 0], np.int32), (3, width))
        for lens, firsts, most, window in itertools.product(lengths, starts, bounds, (0, 200)):
            step = _kernels.StepAttention(
                dtype, cache_dtype, dim, heads, kv_heads, block_size, blocks, device.put(firsts, np.int32),
                device.put(lens, np.int32), device.put(tables), 3, tokens, width, *most, device.num_multiprocessors,
                window,
            )  # fmt: skip
            step.prepare(device.room(4 * step.workspace_words), STREAM)
            step.attend(q, heads * dim, dim, k, v, out, dim**-0.5, 1.0, 1.0, 0.0, STREAM)
        device.take(out, 1)


def norm(device: Device) -> None:
    for dtype, dim in ((BF16, 4096), (F16, 576), (F32, 15)):
        written, size = Written(device), BYTES[dtype]
        x, residual, weight = (device.put(numbers(dtype, rows, dim)) for rows in (3, 3, 1))
        out = written.room(3, dim * size)
        _kernels.rms_norm(dtype, x, dim, dim, residual, dim, dim, weight, out, 3, 1, dim, 1e-5, STREAM)
        written.check()


def heads(device: Device) -> None:
    for cache_dtype, dim in ((BF16, 128), (E4M3, 64)):
        tokens, num_heads, num_kv_heads, block_size, num_blocks = 5, 8, 2, 16, 2
        q, k, v = (device.put(numbers(BF16, tokens, n, dim)) for n in (num_heads, num_kv_heads, num_kv_heads))
        q_norm, k_norm = (device.put(numbers(BF16, dim)) for _ in range(2))
        cache_bytes = num_blocks * num_kv_heads * block_size * dim * BYTES[cache_dtype]
        k_cache, v_cache = device.room(cache_bytes), device.room(cache_bytes)
        strides = (num_heads * dim, dim), (num_kv_heads * dim, dim), (num_kv_heads * dim, dim)
        _kernels.place_heads(
            BF16, cache_dtype, q, *strides[0], k, *strides[1], v, *strides[2], q_norm, k_norm, 1e-6,
            device.put([0, 7, 3, 31, -1], np.int64), device.put(numbers(F32, 32, dim)), 32, k_cache, v_cache, 1.0, 1.0,
            device.put([0, 17, 31, 5, -1], np.int64), num_blocks * block_size, block_size, tokens, num_heads,
            num_kv_heads, dim, STREAM,
        )  # fmt: skip
        device.take(q, 1)


def activation(device: Device) -> None:
    for dtype, dim in ((BF16, 1536), (F32, 13)):
        written = Written(device)
        out = written.room(3, dim * BYTES[dtype])
        for gate in (0, 1):
            _kernels.gate_mul(dtype, gate, device.put(numbers(dtype, 3, 2 * dim)), 2 * dim, out, 3, dim, STREAM)
        written.check()


def quantize(device: Device) -> None:
    rows = 3
    for dim in (8, 520, 14336):
        written = Written(device)

        def outputs(written: Written = written, dim: int = dim) -> tuple[int, int]:
            return written.room(rows, dim), written.room(rows, 4)

        x, residual, weight = (device.put(numbers(BF16, n, dim)) for n in (rows, rows, 1))
        gate_up = device.put(numbers(BF16, rows, 2 * dim))
        of_rows, of_outputs = device.put(numbers(F32, rows)), device.put(numbers(F32, 2 * dim))
        bias = device.put(numbers(BF16, 2 * dim))
        _kernels.quantize_rows(x, dim, *outputs(), rows, dim, STREAM)
        _kernels.rms_norm_quantized(x, dim, residual, dim, weight, 1e-5, *outputs(), rows, dim, STREAM)
        _kernels.silu_mul_quantized(gate_up, 2 * dim, of_rows, of_outputs, bias, *outputs(), rows, dim, STREAM)
        _kernels.rescale(gate_up, rows, 2 * dim, of_rows, of_outputs, bias, STREAM)
        written.check()


def linear_skinny(device: Device) -> None:
    if not device.is_hopper:
        return
    count = device.num_multiprocessors
    left = device.room(_kernels.SkinnyLinear.left_bytes(count), fill=0)
    for dtype, outputs, depth in ((BF16, 132, 72), (F16, 320, 1000), (BF16, 64, 4096)):
        weight, bias = device.put(numbers(dtype, outputs, depth)), device.put(numbers(dtype, outputs))
        linear = _kernels.SkinnyLinear(dtype, weight, depth, outputs, depth, bias, left, count)
        for rows, gated in ((1, False), (7, True), (16, False)):
            written = Written(device)
            width = (outputs // 2 if gated else outputs) * BYTES[dtype]
            x, out = device.put(numbers(dtype, rows, depth)), written.room(rows, width)
            linear.multiply(x, depth, rows, out, False, gated, STREAM)
            written.check()


def logprobs(device: Device) -> None:
    for rows, vocab, coarse in ((2, 9000, False), (60, 3000, True)):
        logits, written = numbers(F32, rows, vocab), Written(device)
        of_logits = device.put(np.round(logits) if coarse else logits)
        chosen, num_top = device.put(np.arange(rows), np.int64), device.put(np.full(rows, 20), np.int32)
        outputs = written.room(rows, 4), written.room(rows * 20, 8), written.room(rows * 20, 4)
        _kernels.logprobs(of_logits, rows, vocab, chosen, num_top, 20, *outputs, STREAM)
        written.check()


def sampler(device: Device) -> None:
    floats = [(name, np.float32) for name in ("top_p", "min_p")]
    settings = [("temperature", np.float32), ("top_k", np.int32), *floats, ("seed", np.uint64), ("position", np.int64)]
    for rows, vocab in ((4, 9000), (40, 2000)):
        params, written = np.zeros(rows, settings), Written(device)
        params["temperature"], params["top_p"], params["seed"] = np.arange(rows) % 4 * 0.4, 1.0, np.arange(rows)
        params["top_k"][2::4], params["top_p"][3::4] = 40, 0.9
        out = written.room(rows, 8)
        _kernels.sample(device.put(numbers(F32, rows, vocab)), rows, vocab, device.put(params), out, STREAM)
        written.check()


def penalties(device: Device) -> None:
    rows, vocab, listed = 3, 4000, 300
    tokens = np.zeros((rows, listed), [("id", "i4"), ("drawn", "i4"), ("bias", "f4"), ("kind", "i4")])
    tokens["id"], tokens["drawn"] = np.arange(listed), 1
    settings = ("repetition", "f4"), ("frequency", "f4"), ("presence", "f4"), ("min_left", "i4")
    places = ("first", "i4"), ("count", "i4"), ("most", "i4"), ("mask", "i4")
    settings_of_rows = np.zeros(rows, [*settings, *places])
    settings_of_rows["repetition"], settings_of_rows["frequency"] = 1.2, 0.5
    settings_of_rows["count"], settings_of_rows["most"], settings_of_rows["mask"] = 250, listed, [-1, 0, -1]
    settings_of_rows["first"] = np.arange(rows) * listed
    of_rows, of_tokens = device.put(settings_of_rows), device.put(tokens)
    logits, masks = device.put(numbers(F32, rows, vocab)), device.put(np.full(-(-vocab // 32), -3), np.int32)
    _kernels.penalize(logits, rows, vocab, of_rows, of_tokens, masks, STREAM)
    _kernels.count_drawn(device.put(np.arange(rows) + 290, np.int64), rows, of_rows, of_tokens, STREAM)
    device.take(logits, 1)


def block_copy(device: Device) -> None:
    for block_bytes in (16, 4096):
        sources = [device.put(numbers(F32, 5, block_bytes // 4)) for _ in range(3)]
        written = Written(device)
        targets = [written.room(2, block_bytes) for _ in range(3)]
        for over_the_bus in (False, True):
            copied = [4, 0], [1, 0]
            _kernels.copy_blocks(sources, targets, block_bytes, 5, 2, *copied, over_the_bus, STREAM)
        written.check()


def commit(device: Device) -> None:
    for rows in (3, 600):
        of_rows = {
            name: device.put(np.full(rows, value), np.int64) for name, value in (("sampled", 7), ("position", 14))
        }
        others = {name: device.put(np.full(rows, value), np.int32) for name, value in (("status", 1), ("remaining", 5))}
        slots = device.room(rows * 8)
        loop = _kernels.StepLoop(2, rows)
        _kernels.commit_step(
            of_rows["sampled"], rows, device.room(rows * 8), of_rows["position"], slots,
            device.put(np.full(rows, 15), np.int32), device.put(np.ones((rows, 2)), np.int32), 2, 16,
            device.room(rows * 32, fill=0), others["status"], others["remaining"],
            device.put(np.full((rows, 8), -1), np.int32), loop, STREAM,
        )  # fmt: skip
        assert (device.take(slots, rows * 8).view(np.int64) == 31).all(), "a row did not move on"
        tokens = device.room(rows * 8)
        _kernels.follow_step(
            device.put(np.arange(rows), np.int32), device.put(np.arange(rows + 1), np.int32),
            device.put(np.full((rows, 8), -1), np.int32), tokens, slots, device.put(np.ones(rows), np.int32),
            others["status"], rows, loop, STREAM,
        )  # fmt: skip
        assert (device.take(tokens, rows * 8).view(np.int64) == 7).all(), "a row did not follow"
        loop.close()


CASES: dict[str, Callable[[Device], None]] = {
    case.__name__: case
    for case in (
        decode, decode_e4m3, prefill, prefill_hopper, prefill_e4m3, attention_plain, attention_window, attention_wild,
        norm, heads,
        activation, quantize, linear_skinny, logprobs, sampler, penalties, block_copy, commit,
    )
}  # fmt: skip


def main() -> int:
    if sys.argv[1:] == ["--list"]:
        sys.stdout.write(" ".join(CASES) + "\n")
        return 0
    device = Device()
    for name in sys.argv[1:]:
        CASES[name](device)
    return 0


if __name__ == "__main__":
    sys.exit(main())
