"""What a worker has done since its start, counted by the thread that owns the device. Knows no commands and no device.

Plain numbers, which others may read at any time: one look may find a step counted and its tokens not yet.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace

from tercet.metrics.distribution import SHORT_SECONDS, Distribution

from .messages import BlockCounts, EndReason
from .outcome import Outcome

# Steps of decodes alone, and those that computed prompts, too.
DECODE, PROMPT = KINDS = ("decode", "prompt")


@dataclass(frozen=True, slots=True)
class Waits:
    """For how long the thread has waited for commands, in seconds: while no sequence could decode, and while some could
    and waited for a plan. `since` is when the wait began that goes on, None if there is none."""

    idle_s: float = 0.0
    starved_s: float = 0.0
    since: float | None = None
    starves: bool = False

    def until(self, now: float) -> Waits:
        """The same with the wait that goes on, which ends now."""
        if self.since is None:
            return self
        took_s = max(0.0, now - self.since)
        if self.starves:
            return Waits(self.idle_s, self.starved_s + took_s)
        return Waits(self.idle_s + took_s, self.starved_s)


def _by_kind() -> dict[str, Distribution]:
    return {kind: Distribution(SHORT_SECONDS) for kind in KINDS}


@dataclass(slots=True)
class StepCounts:
    """Counts since the start. Times are seconds on the worker's clock."""

    step_s: dict[str, Distribution] = field(default_factory=_by_kind)
    # From the end of a step behind which the device had nothing to the beginning of the next one, without waits.
    gap_s: Distribution = field(default_factory=lambda: Distribution(SHORT_SECONDS))
    # Generated; and computed of prompts, those that several outputs share once.
    tokens: int = 0
    prompt_tokens: int = 0
    # One value: whoever reads while a wait ends does not count it twice, or not at all.
    waits: Waits = Waits()
    plans_run: int = 0
    plans_revoked: int = 0
    # Sequences that have ended here by themselves.
    ended: Counter[EndReason] = field(default_factory=Counter)
    # Looks at the block pool that found it broken.
    num_broken: int = 0
    # As the scheduler was told last.
    blocks: BlockCounts = BlockCounts(0, 0, 0)
    # When the last step ended, unless something has come of that already.
    _step_ended_at: float | None = None

    def begin(self, now: float) -> None:
        """A step begins, and the device has nothing before it."""
        if self._step_ended_at is not None:
            self.gap_s.add(max(0.0, now - self._step_ended_at))
            self._step_ended_at = None

    def step(self, outcome: Outcome, took_us: int, blocks: BlockCounts, now: float) -> None:
        """A step was computed, or there was only something to tell."""
        self.blocks = blocks
        for ended in outcome.ended:
            self.ended[ended.reason] += 1
        if not (outcome.token_ids or outcome.prefills):
            return
        self.step_s[PROMPT if outcome.prefills else DECODE].add(took_us / 1e6)
        self.tokens += len(outcome.token_ids)
        self.prompt_tokens += sum(outcome.chunk_sizes)
        self._step_ended_at = now

    def plan_done(self, blocks: BlockCounts, *, revoked: bool) -> None:
        """A plan is over."""
        self.blocks = blocks
        if revoked:
            self.plans_revoked += 1
        else:
            self.plans_run += 1

    def begin_wait(self, now: float, *, starves: bool) -> None:
        """The thread begins to wait for commands, with sequences that could decode if it `starves`."""
        self._step_ended_at = None
        self.waits = replace(self.waits, since=now, starves=starves)

    def end_wait(self, now: float) -> None:
        """A command has come, or it is time to look at something else."""
        self.waits = self.waits.until(now)
