"""How long a worker's prompts have waited for first tokens that are owed. Knows no plans, only when they are made."""

from __future__ import annotations

from dataclasses import dataclass

# Steps in a row. Where first tokens that are owed come with every step, the others' prompts would wait for ever.
MOST_WAITS = 3


@dataclass(slots=True, eq=False)
class OwedWaits:
    """Steps in a row whose plans let them wait, and how many had run when the last of these plans was made."""

    count: int = 0
    planned_at: int = -2

    def over(self, steps: int) -> bool:
        """Whether a plan that is made after so many steps is not to let them wait again."""
        return self.count >= MOST_WAITS and steps == self.planned_at + 1

    def note(self, steps: int) -> None:
        """A plan that is made after so many steps lets them wait. Another one after as many is in place of it."""
        if steps != self.planned_at:
            self.count = self.count + 1 if steps == self.planned_at + 1 else 1
            self.planned_at = steps
