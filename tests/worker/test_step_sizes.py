"""Every step finds a size that is not much larger."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from tests.worker.recall_model import CONFIG
from worker.model.tensors import workspace_bytes
from worker.step_sizes import CHUNK_TOKENS, MAX_TOKENS, graph_bytes, max_context, mixed_sizes, run_sizes

CUDA = Path(__file__).resolve().parents[2] / "cpp" / "cuda"


def test_chunks_are_those_of_the_kernel() -> None:
    found = re.search(r"constexpr int kChunk = (\d+);", (CUDA / "attention_plan.cuh").read_text())
    assert found is not None
    assert int(found[1]) == CHUNK_TOKENS


@pytest.mark.parametrize("max_rows", [1, 3, 8, 32, 33, 160, 250, 256, 1024])
def test_runs(max_rows: int) -> None:
    sizes = run_sizes(max_rows)
    assert sizes == sorted(set(sizes))
    assert sizes[-1] == max_rows
    for rows in range(1, max_rows + 1):
        size = min(size for size in sizes if size >= rows)
        assert size - rows < max(2, rows / 2, 8 if rows < 24 else 0)


@pytest.mark.parametrize("max_rows", [1, 8, 9, 32, 256, 1500])
def test_other_steps(max_rows: int) -> None:
    sizes = mixed_sizes(max_rows)
    assert len(set(sizes)) == len(sizes)
    assert all(rows < tokens <= MAX_TOKENS and rows <= max_rows for tokens, rows in sizes)
    for tokens in range(1, MAX_TOKENS + 1):
        for rows in {1, min(tokens, max_rows, 512)}:
            if tokens > rows:
                found = min(size for size in sizes if size[0] >= tokens and size[1] >= rows)
                assert found[0] - tokens <= max(128, rows)


def test_contexts_are_bounded_by_their_lengths_and_by_the_cache() -> None:
    assert max_context(2, 100, 1000) == 200
    # Shared blocks count for everybody who has them.
    assert max_context(200, 100, 1000) == 4000


def test_graphs_take_what_the_largest_does_and_more_for_more_of_them() -> None:
    largest = workspace_bytes(CONFIG, torch.bfloat16, MAX_TOKENS, 8)
    few = graph_bytes(CONFIG, torch.bfloat16, 8, 1000)
    assert largest < few < graph_bytes(CONFIG, torch.bfloat16, 64, 1000) < graph_bytes(CONFIG, torch.bfloat16, 64, 9000)
