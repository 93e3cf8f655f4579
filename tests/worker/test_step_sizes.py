"""Every step finds a size that is not much larger."""

from __future__ import annotations

import pytest

from worker.step_sizes import MAX_TOKENS, mixed_sizes, run_sizes


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
