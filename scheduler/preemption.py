"""Who gives way when a worker runs out of blocks, and whether by swap or by recompute. Pure functions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from .step_time import LEAST_SECONDS


class Holder(NamedTuple):
    """What leaves a worker as one: a sequence, or a leader with the forks that wait for it."""

    sequence_ids: tuple[int, ...]
    # Of its traffic class, and of its request: of two, the higher gives way.
    rank: int
    priority: int
    urgency: tuple[float, int]
    # It has grown beyond its tenant's share of blocks.
    beyond_share: bool
    # It has got no token since it gave way the last time.
    shielded: bool
    # Tokens in the KV cache, to be computed again.
    lost_tokens: int
    # Blocks that are free, or need not be promised any more, when it is gone.
    blocks: int
    # It decodes, so that host memory can take it.
    decoding: bool
    # It rests: nobody waits for its next token, and it has no slot.
    resting: bool = False

    @property
    def slots(self) -> int:
        """Slots that are free when it is gone."""
        return 0 if self.resting else len(self.sequence_ids)


def choose_victims(holders: Sequence[Holder], shortage: int) -> tuple[Holder, ...]:
    """Those whose going makes up for `shortage` blocks, in order; all but one if that is not enough.

    The most urgent that runs never goes. The others do in the order of `first_to_go`, so that nobody loses twice
    without a token between while anybody else can help.
    """
    keep = min((each for each in holders if not each.resting), key=lambda each: each.urgency, default=None)
    victims = []
    for each in first_to_go(each for each in holders if each is not keep):
        if shortage <= 0:
            break
        victims.append(each)
        shortage -= each.blocks
    return tuple(victims)


def choose_yielding(
    yielders: Sequence[Holder], rank: int, urgency: tuple[float, int], slots: int, blocks: int
) -> tuple[Holder, ...] | None:
    """Those who make room for one whose promise is at stake: `slots`, and `blocks` besides one to grow by for each that
    stays. None if all that may are not enough: then nobody loses anything.

    `yielders` are in the order of `first_to_go`. Only a higher rank that is less urgent makes room for a lower one, so
    that the most urgent of all never does; and nobody who is shielded.
    """
    return _enough((each for each in yielders if each.rank > rank and each.urgency > urgency), slots, blocks)


def choose_returning(holders: Iterable[Holder], blocks: int) -> tuple[Holder, ...] | None:
    """Those that rest, and those beyond their tenants' shares, who make room for one that lacks `blocks`, as
    `choose_yielding` but whatever their rank and urgency."""
    return _enough((each for each in first_to_go(holders) if each.resting or each.beyond_share), 0, blocks)


def _enough(holders: Iterable[Holder], slots: int, blocks: int) -> tuple[Holder, ...] | None:
    victims = []
    for each in holders:
        if slots <= 0 and blocks <= 0:
            break
        if not each.shielded:
            victims.append(each)
            slots -= each.slots
            blocks -= each.blocks + each.slots
    return tuple(victims) if slots <= 0 and blocks <= 0 else None


def first_to_go(holders: Iterable[Holder]) -> list[Holder]:
    """Those that rest first, those that are shielded last; of others those beyond their tenants' shares first; then by
    class, priority, and the work that would be lost; of equals the latest."""
    return sorted(
        holders,
        key=lambda each: (
            not each.resting,
            each.shielded,
            not each.beyond_share,
            -each.rank,
            -each.priority,
            each.lost_tokens,
            (-each.urgency[0], -each.urgency[1]),
        ),
    )


def prefer_swap(
    *, decoding: bool, num_blocks: int, free_host_blocks: int, swap_block_s: float, recompute_s: float | None
) -> bool:
    """Whether moving `num_blocks` to host memory and back is forecast cheaper than computing their tokens again.

    `swap_block_s` is the time of one block one way, `recompute_s` None while the worker's step times are not known;
    a forecast of less than a clock can tell knows no more. Then it is recomputed: host memory is the last resort.
    """
    if not decoding or recompute_s is None or recompute_s < LEAST_SECONDS or not 0 < num_blocks <= free_host_blocks:
        return False
    return 2 * num_blocks * swap_block_s < recompute_s
