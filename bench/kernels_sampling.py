"""The CUDA kernels between logits and tokens, on the vocabulary of Llama-3."""

from __future__ import annotations

import numpy as np
import torch

from bench.kernel_timing import GPU, Roofs, Row, memory_row, microseconds, num_sets, timed
from worker.ops.logprobs import logprobs
from worker.ops.penalties import Penalties, PenaltyCounts, PenaltyRow, count_drawn, penalize, penalize_reference
from worker.ops.sampler import SamplingRows, sample_packed, sample_reference

VOCABULARY = 128256


def bench_sampler(roofs: Roofs) -> list[Row]:
    """Choosing tokens; the floor is one read of the logits."""
    rows = []
    for num_rows in (1, 8, 32, 128):
        num_bytes = 4 * num_rows * VOCABULARY
        sets = [torch.randn(num_rows, VOCABULARY, device=GPU) * 3 for _ in range(min(8, num_sets(num_bytes)))]
        for name, temperature, top_k, top_p in (
            ("greedy", 0.0, 0, 1.0),
            ("plain", 1.0, 0, 1.0),
            ("T=0.7", 0.7, 0, 1.0),
            ("top-k 50", 1.0, 50, 1.0),
            ("top-p 0.95", 1.0, 0, 0.95),
            ("both", 0.7, 50, 0.95),
        ):
            settings = SamplingRows(
                temperature=np.full(num_rows, temperature, np.float32), top_k=np.full(num_rows, top_k, np.int32),
                top_p=np.full(num_rows, top_p, np.float32), min_p=np.zeros(num_rows, np.float32),
                seed=np.arange(num_rows, dtype=np.uint64), position=np.arange(num_rows, dtype=np.int64),
            )  # fmt: skip
            params = torch.from_numpy(settings.packed()).to(GPU)
            us = microseconds([lambda x=x, p=params: sample_packed(x, p) for x in sets])  # type: ignore[misc]
            torch_us = timed(lambda x=sets[0], s=settings: sample_reference(x, s), 3)  # type: ignore[misc]
            rows.append(
                memory_row(f"sample {name}", f"B={num_rows} V={VOCABULARY}", num_bytes, us, roofs, torch=torch_us)
            )
    return rows


def bench_penalties(roofs: Roofs) -> list[Row]:
    """Penalties of rows that list 1,200 tokens, or allow ten alone; then counting what was drawn."""
    rows, rng = [], np.random.default_rng(0)
    for num_rows in (1, 128):
        listed = rng.integers(0, VOCABULARY, (num_rows, 1200)).tolist()
        settings = [PenaltyRow(1.2, 0.5, 0.1, prompt_ids=ids[200:], drawn_ids=ids[:200]) for ids in listed]
        penalties = Penalties.of([PenaltyCounts(row, VOCABULARY) for row in settings], VOCABULARY, 1, GPU)
        few = PenaltyCounts(PenaltyRow(allowed_ids=range(10)), VOCABULARY)
        masked = Penalties.of([few] * num_rows, VOCABULARY, 0, GPU)
        sets = [torch.randn(num_rows, VOCABULARY, device=GPU) for _ in range(4)]
        token_ids = torch.tensor([ids[0] for ids in listed], device=GPU)
        shape = f"B={num_rows} V={VOCABULARY}"
        for name, which, num_bytes in (
            ("penalize", penalties, num_rows * 1200 * 24),
            ("penalize, mask", masked, num_rows * VOCABULARY * 4),
        ):
            us = microseconds([lambda x=x, which=which: penalize(x, which) for x in sets])  # type: ignore[misc]
            torch_us = timed(lambda x=sets[0], which=which: penalize_reference(x, which), 3)  # type: ignore[misc]
            rows.append(memory_row(name, shape, num_bytes, us, roofs, torch=torch_us))
        us = microseconds([lambda p=penalties, t=token_ids: count_drawn(p, t)] * 4)  # type: ignore[misc]
        rows.append(memory_row("count_drawn", shape, num_rows * 1200 * 16, us, roofs))
    return rows


def bench_logprobs(roofs: Roofs) -> list[Row]:
    """Logprobs of the chosen token and the likeliest ones; the floor is one read of the logits."""
    rows = []
    for num_rows in (1, 8, 32, 128):
        num_bytes = 4 * num_rows * VOCABULARY
        sets = [torch.randn(num_rows, VOCABULARY, device=GPU) * 3 for _ in range(min(8, num_sets(num_bytes)))]
        chosen = torch.arange(num_rows, device=GPU)
        for count in (0, 20):
            num_top = torch.full((num_rows,), count, dtype=torch.int32, device=GPU)
            args = (chosen, num_top, count)
            us = microseconds([lambda x=x, args=args: logprobs(x, *args) for x in sets])  # type: ignore[misc]
            torch_us = microseconds([lambda x=x, n=count: x.log_softmax(1).topk(n) for x in sets])  # type: ignore[misc]
            shape = f"B={num_rows} V={VOCABULARY}"
            rows.append(memory_row(f"logprobs, top {count}", shape, num_bytes, us, roofs, torch=torch_us))
    return rows
