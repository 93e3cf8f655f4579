"""The sizes of steps that a GPU captures, and to which smaller ones are filled up. Pure arithmetic."""

from __future__ import annotations

# Larger steps keep a GPU busy for longer than their operations take to be launched one by one.
MAX_TOKENS = 1024
_MIXED_TOKENS = (*range(32, 129, 32), *range(192, 513, 64), *range(640, MAX_TOKENS + 1, 128))
_MIXED_ROWS = (8, 32, 128, 256, 512)


def run_sizes(max_rows: int) -> list[int]:
    """Rows of runs, ascending up to `max_rows`: so close that little is computed in vain."""
    sizes = (1, 2, 4, 8, 16, 24, 32, *range(48, 129, 16), *range(160, max_rows, 32))
    return [size for size in sizes if size < max_rows] + [max_rows]


def mixed_sizes(max_rows: int) -> list[tuple[int, int]]:
    """Tokens and rows of other steps, ascending. Always more tokens than rows, which tells them from runs."""
    rows = [size for size in _MIXED_ROWS if size < max_rows] + [max_rows]
    return [(tokens, size) for tokens in _MIXED_TOKENS for size in rows if size < tokens]
