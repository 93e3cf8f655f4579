"""What the scheduler's loop has done since its start. Nothing is decided by it, so no plan log keeps it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from tercet.metrics.distribution import SHORT_SECONDS, STEPS, Distribution

from .actions import Plan, WorkerCommand


@dataclass(slots=True)
class LoopCounts:
    """Called for rounds, commands and facts of the log, never for tokens."""

    # Of a round, in seconds: events are applied, plans made, messages handed over.
    round_s: Distribution = field(default_factory=lambda: Distribution(SHORT_SECONDS))
    plan_steps: Distribution = field(default_factory=lambda: Distribution(STEPS))
    # Of the plans, those that took others back.
    plans_revoking: int = 0
    # Facts that the log was told, by event.
    facts: Counter[str] = field(default_factory=Counter)
    # What did not add up when nothing ran: blocks, slots or places that belong to nobody.
    audit_problems: int = 0
    # Requests that ran here, and no gateway knew.
    orphans: int = 0

    def command(self, command: WorkerCommand) -> None:
        """A worker is sent something."""
        if isinstance(command, Plan):
            self.plan_steps.add(command.num_steps)
            self.plans_revoking += command.revoke_through > 0
