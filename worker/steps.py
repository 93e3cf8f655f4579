"""What computes steps: the face that the executor sees, whatever the device."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Protocol

from .messages import PromptLogprobs, TokenLogprobs
from .ops.follow import NONE
from .sequence import Sequence


class DeviceLost(Exception):
    """The device is of no further use: whoever computes on it must end."""


@dataclass(frozen=True, slots=True)
class Row:
    """`count` tokens of a sequence to compute in a step, from position `first` on; blocks are reserved.

    While steps are on their way its sequence does not know yet what they add: then `first` is beyond its num_computed.
    If the token there is one that the step before draws, `follows` is the number of that draw; it is the last one.
    """

    sequence: Sequence
    count: int
    first: int
    follows: int = NONE

    @property
    def num_known(self) -> int:
        """Tokens that the sequence has before the step."""
        return len(self.sequence.token_ids) if self.follows == NONE else self.first + 1

    @property
    def num_draws(self) -> int:
        """Tokens that the step chooses: none before the end of the known ones, else one for it and each fork."""
        return 1 + len(self.sequence.forks) if self.first + self.count == self.num_known else 0

    @property
    def prompt_places(self) -> range:
        """Tokens of its prompt whose logprobs the step finds: what comes behind each of its own tokens."""
        if self.sequence.spec.sampling.num_prompt_logprobs is None:
            return range(0)
        return range(self.first + 1, min(self.first + self.count + 1, len(self.sequence.spec.token_ids)))


def next_row(sequence: Sequence, count: int = 1) -> Row:
    """A row of a sequence that no step on its way has."""
    return Row(sequence, count, sequence.num_computed)


@dataclass(frozen=True, slots=True)
class Computed:
    """The tokens of a step; NOT_FINITE in place of one whose logits were not, NOTHING_LEFT of one of which what its
    request asks for left no token.

    `step_us` is how long the step took, in microseconds, where the device knows that better than who waited for it.
    `logprobs` is beside `tokens`, or None if none of them wants any; `prompt_logprobs` are of all rows.
    """

    tokens: list[int]
    step_us: int | None = None
    logprobs: list[TokenLogprobs | None] | None = None
    prompt_logprobs: Seq[PromptLogprobs] = ()


class Steps(Protocol):
    """Computes steps on a device. One thread calls it, but for `stop` and `wake`.

    A *run* is several decode steps over the same rows, a token of each, for which nobody is asked in between. A row
    ends in mid-run with its last token or at a stop id, or where its logits are not finite; it stays, and is empty.
    None of its rows `needs_host` between two steps. Blocks are reserved by the caller. Whatever fails raises: then
    nothing is known of the step, and the run is over; DeviceLost, if there is no sense in another one.

    What is begun while other steps are on their way is computed behind them, where the device can do that: `settle`
    says so. `next` is for the oldest that is not over.
    """

    def begin_step(self, rows: Seq[Row]) -> bool:
        """Begins one step of any rows: `next` gives the tokens that they draw, one row behind the other. False, and
        nothing is begun, if that can only be when all before is over."""

    def begin_run(self, rows: Seq[Row], num_steps: int) -> bool:
        """Begins a run of at most `num_steps` steps, for which every table has room. False as in `begin_step`."""

    def settle(self) -> int | None:
        """How many steps of what was begun last will still be given by `next`, none further of a run; one of no live
        row may be among them. None: nothing can be begun behind it."""

    def wait(self) -> bool:
        """Waits until `next` need not, or until `wake`; whether the former."""

    def wake(self) -> None:
        """Lets whoever waits, or is about to, go. From any thread."""

    def next(self) -> Computed | None:
        """The step that was begun, or the run's next one: a token for each row, NO_TOKEN for one that had ended. None:
        the run is over."""

    def extend(self, num_steps: int) -> bool:
        """Makes the run longer, for the tables have grown; False, and nothing is changed, if that comes too late."""

    def stop(self) -> None:
        """Ends the run that was begun last, if it is one, with the step that is being computed, at the latest with the
        one after it.

        From any thread.
        """

    def close(self) -> None:
        """Ends what is on its way. Of no use afterwards."""
