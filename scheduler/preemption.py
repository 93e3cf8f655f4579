"""Who gives way when a worker runs out of blocks, and whether by swap or by recompute. Pure functions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, TypeAlias

from .step_time import LEAST_SECONDS
from .traffic_class import PRIORITY_SECONDS

# What decides before anything else who gives way: smaller goes first.
_Standing: TypeAlias = tuple[bool, bool, bool, int]


class Holder(NamedTuple):
    """What leaves a worker as one: a sequence, or a leader with the forks that wait for it."""

    sequence_ids: tuple[int, ...]
    # Of its traffic class: of two, the higher gives way.
    rank: int
    # Its class and tenant, and its priority among theirs: of two, the higher gives way.
    whose: tuple[str, str]
    priority: int
    claim: tuple[float, int]
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
    def urgency(self) -> tuple[float, int]:
        """Among its tenant's of the class, smaller first."""
        return self.claim[0] + PRIORITY_SECONDS * self.priority, self.claim[1]

    @property
    def slots(self) -> int:
        """Slots that are free when it is gone."""
        return 0 if self.resting else len(self.sequence_ids)


def choose_victims(holders: Sequence[Holder], shortage: int) -> tuple[Holder, ...]:
    """Those whose going makes up for `shortage` blocks, in order; all but one if that is not enough.

    Who has the oldest claim of those that run keeps the most urgent that it has in that class. The others go in the
    order of `first_to_go`, so that nobody loses twice without a token between while anybody else can help.
    """
    running = [each for each in holders if not each.resting]
    oldest = min(running, key=lambda each: each.claim, default=None)
    mine = [each for each in running if oldest is not None and each.whose == oldest.whose]
    keep = min(mine, key=lambda each: each.urgency, default=None)
    victims = []
    for each in first_to_go(each for each in holders if each is not keep):
        if shortage <= 0:
            break
        victims.append(each)
        shortage -= each.blocks
    return tuple(victims)


def choose_yielding(
    yielders: Sequence[Holder], rank: int, claim: tuple[float, int], slots: int, blocks: int
) -> tuple[Holder, ...] | None:
    """Those who make room for one whose promise is at stake: `slots`, and `blocks` besides one to grow by for each that
    stays. None if all that may are not enough: then nobody loses anything.

    `yielders` are in the order of `first_to_go`. Only a higher rank with a younger claim makes room for a lower one,
    so that the oldest of all never does; and nobody who is shielded.
    """
    return _enough((each for each in yielders if each.rank > rank and each.claim > claim), slots, blocks)


def choose_returning(holders: Iterable[Holder], blocks: int) -> tuple[Holder, ...] | None:
    """Those that rest, and those beyond their tenants' shares, who make room for one that lacks `blocks`, as
    `choose_yielding` but whatever their rank and claim."""
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
    class and the work that would be lost; of equals the latest. What a tenant has in a class takes the turns that these
    have among others' by priority first: how often a tenant gives way does not hang on the priorities it asks for."""
    order = sorted(holders, key=lambda each: (_standing(each), each.lost_tokens, -each.claim[0], -each.claim[1]))
    peers: dict[tuple[_Standing, tuple[str, str]], list[Holder]] = {}
    for each in order:
        peers.setdefault((_standing(each), each.whose), []).append(each)
    turns = {key: iter(sorted(mine, key=lambda each: -each.priority)) for key, mine in peers.items()}
    return [next(turns[_standing(each), each.whose]) for each in order]


def _standing(holder: Holder) -> _Standing:
    return not holder.resting, holder.shielded, not holder.beyond_share, -holder.rank


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
