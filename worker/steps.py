"""What computes steps: the face that the executor sees, whatever the device."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Protocol

from .messages import TokenLogprobs
from .sequence import Sequence


class DeviceLost(Exception):
    """The device is of no further use: whoever computes on it must end."""


@dataclass(frozen=True, slots=True)
class Row:
    """`count` tokens of a sequence to compute in a step, from its num_computed on; blocks are reserved."""

    sequence: Sequence
    count: int

    @property
    def num_draws(self) -> int:
        """Tokens that the step chooses: none before the end of the known ones, else one for it and each fork."""
        return 1 + len(self.sequence.forks) if self.count == self.sequence.num_missing else 0


@dataclass(frozen=True, slots=True)
class Computed:
    """The tokens of a step; NOT_FINITE in place of one whose logits were not.

    `step_us` is how long the step took, in microseconds, where the device knows that better than who waited for it.
    `logprobs` is beside `tokens`, or None if none of them wants any.
    """

    tokens: list[int]
    step_us: int | None = None
    logprobs: list[TokenLogprobs | None] | None = None


class Steps(Protocol):
    """Computes steps on a device. One thread calls it, but for `stop`.

    A *run* is several decode steps over the same rows, a token of each, for which nobody is asked in between. A row
    ends in mid-run with its last token or at a stop id, or where its logits are not finite; it stays, and is empty.
    None of its rows `needs_host` between two steps. Blocks are reserved by the caller, and what was begun before is
    over. Whatever fails raises: then nothing is known of the step, and the run is over; DeviceLost, if there is no
    sense in another one.
    """

    def begin_step(self, rows: Seq[Row]) -> None:
        """Begins one step of any rows: `next` gives the tokens that they draw, one row behind the other."""

    def begin_run(self, sequences: Seq[Sequence], num_steps: int) -> None:
        """Begins a run of at most `num_steps` steps, for which every table has room."""

    def next(self) -> Computed | None:
        """The step that was begun, or the run's next one: a token for each sequence, NO_TOKEN for one that had ended.
        None: the run is over."""

    def extend(self, num_steps: int) -> bool:
        """Makes the run longer, for the tables have grown; False, and nothing is changed, if that comes too late."""

    def stop(self) -> None:
        """Ends the run, if there is one, with the step that is being computed, at the latest with the one after it.

        From any thread.
        """
