"""A mean that follows what changes."""

from __future__ import annotations

from dataclasses import dataclass

# Each new value counts for at least one in so many.
WINDOW = 64


@dataclass(slots=True, eq=False)
class Mean:
    """Of all values while they are few, then with a weight that fades."""

    value: float = 0.0
    count: int = 0

    def add(self, value: float) -> None:
        self.count = min(self.count + 1, WINDOW)
        self.value += (value - self.value) / self.count
