"""CUDA kernels on the shapes of models, each beside its roof and what others take for the same result.

    python -m bench.kernels [--only SUITE] [--out FILE.json]

Calls are captured in a graph and replayed, so that only the GPU's time counts, over inputs too large together for its
L2. Each figure is the median of its replays. `roof` is the share of what a large copy or product reaches, which is
measured first. Peers are PyTorch (for attention scaled_dot_product_attention, which reads keys without pages) and
FlashInfer, where it is installed and can build its kernels.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import torch

from bench.kernel_timing import Roofs, Row, measure_roofs
from bench.kernels_attention import bench_decode, bench_prefill
from bench.kernels_layer import bench_activation, bench_block_copy, bench_heads, bench_linear, bench_norm
from bench.kernels_sampling import bench_logprobs, bench_penalties, bench_sampler

SUITES: dict[str, Callable[[Roofs], list[Row]]] = {
    "norm": bench_norm,
    "heads": bench_heads,
    "activation": bench_activation,
    "linear": bench_linear,
    "decode": bench_decode,
    "prefill": bench_prefill,
    "block_copy": bench_block_copy,
    "sampler": bench_sampler,
    "penalties": bench_penalties,
    "logprobs": bench_logprobs,
}


def line(row: Row) -> str:
    peers = "  ".join(f"{peer} {us:,.1f}" for peer, us in row.peers.items())
    return (
        f"{row.kernel:<20}{row.shape:<28}{row.us:>10,.2f}{row.rate:>10,.0f} {row.unit:<8}{row.roof:>5.0%}   {peers}"
    ).rstrip()


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure the CUDA kernels.")
    parser.add_argument("--only", choices=SUITES, action="append", help="this suite alone; may be repeated")
    parser.add_argument("--out", type=Path, help="write the rows as JSON")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        sys.stderr.write("error: bench.kernels needs a GPU\n")
        return 1
    roofs = measure_roofs()
    print(f"{torch.cuda.get_device_name()}: copies at {roofs.copy:,.0f} GB/s, products at {roofs.product:,.0f} TFLOP/s")
    print(f"{'kernel':<20}{'shape':<28}{'us':>10}{'rate':>10} {'':<8}{'roof':>5}   peers, us")
    rows = []
    for name in arguments.only or SUITES:
        for row in SUITES[name](roofs):
            rows.append(row)
            print(line(row), flush=True)
        torch.cuda.empty_cache()
    if arguments.out:
        arguments.out.write_text(json.dumps({"roofs": asdict(roofs), "rows": [asdict(row) for row in rows]}, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
