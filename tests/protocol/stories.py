"""The stories that are explored: small enough that all their orders can be seen, each about one thing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from scheduler.events import Submission
from scheduler.simulator.cost import StepCost
from scheduler.simulator.small import submission, worker_info

from . import gateway_world
from .clients import Ask, text_alone
from .worker_world import Story

# The requests below have room in it, two sequences at a time.
_ROOMY = worker_info(block_size=2, num_blocks=6, max_num_seqs=2, max_num_batched_tokens=4)
# They can begin in these, and not all end: one gives way.
_TIGHT = worker_info(block_size=1, num_blocks=9, max_num_seqs=2, max_num_batched_tokens=8)
_SWAPPING = replace(_TIGHT, num_blocks=10, max_num_seqs=3, num_swap_blocks=20, swap_block_ns=1)
_COST = StepCost(0.01, 0.001)


def _ask(key: int, max_tokens: int = 2, **changes: Any) -> Submission:
    return submission(key, (1, 2, 3), max_tokens, **changes)


def _crowd(size: int, max_tokens: int) -> tuple[Submission, ...]:
    """Requests that share nothing."""
    return tuple(submission(key, (2 * key, 2 * key + 1), max_tokens) for key in range(1, size + 1))


STORIES: Mapping[str, Story] = {
    "a cancel at any moment": Story((_ROOMY,), (_ask(1, 4),), cancels=2),
    "a stream breaks, and its last words come late": Story((_ROOMY,), (_ask(1),), cuts=1, cancels=1, late=True),
    "it breaks again": Story((_ROOMY,), (_ask(1),), cuts=2),
    "a worker dies twice": Story((_ROOMY,), (_ask(1),), kills=2),
    "a worker dies on a stream that breaks": Story((_ROOMY,), (_ask(1),), kills=1, cuts=1),
    "a worker hangs, is given up and comes back": Story((_ROOMY,), (_ask(1),), hangs=1, late=True),
    "a worker hangs twice": Story((_ROOMY,), (_ask(1),), hangs=2),
    "a worker hangs, and its client leaves": Story((_ROOMY,), (_ask(1),), hangs=1, cancels=1, late=True),
    "one of two workers hangs": Story((_ROOMY, _ROOMY), (_ask(1), _ask(2)), hangs=1, late=True),
    "both hang": Story((_ROOMY, _ROOMY), (_ask(1),), hangs=2),
    "one is swapped, and the worker hangs": Story(
        (_SWAPPING,), _crowd(3, 8), cost=_COST, crowded=0, hangs=1, late=True
    ),
    "a worker stops, and hangs": Story((_ROOMY, _ROOMY), (_ask(1),), hangs=1, drains=1),
    "a reader falls behind": Story((_ROOMY,), (_ask(1, 3),), stalls=1),
    "a reader falls behind, twice": Story((_ROOMY,), (_ask(1, 4),), stalls=2, cancels=1),
    "a reader falls behind, and the stream breaks": Story((_ROOMY,), (_ask(1, 3),), stalls=1, cuts=1, late=True),
    "a reader of two outputs falls behind": Story((_ROOMY,), (_ask(1, 3, n=2),), stalls=1, stops=1),
    "a reader falls behind where there is not room for both": Story((_TIGHT,), _crowd(2, 6), stalls=1, cancels=1),
    "a reader falls behind, and the worker stops": Story((_ROOMY, _ROOMY), (_ask(1, 3),), stalls=1, drains=1),
    "a reader falls behind, and the worker dies": Story((_ROOMY,), (_ask(1, 3),), stalls=2, kills=1, late=True),
    "a reader falls behind, and the worker hangs": Story((_ROOMY,), (_ask(1, 3),), stalls=2, hangs=1, late=True),
    "a reader falls behind, and the gateway goes": Story((_ROOMY,), (_ask(1, 3), _ask(2)), stalls=2, gateways_lost=1),
    "a reader falls behind, and its deadline passes": Story(
        (_ROOMY,), (_ask(1, 3, deadline_s=1.0),), stalls=2, alarms=1, cancels=1
    ),
    "one is swapped, and a reader falls behind": Story(
        (_SWAPPING,), _crowd(3, 8), cost=_COST, crowded=0, stalls=2, cancels=1
    ),
    "two outputs, of which one is enough": Story((_ROOMY,), (_ask(1, n=2),), cancels=1, stops=1),
    "two outputs on a stream that breaks": Story((_ROOMY,), (_ask(1, n=2),), cuts=1, late=True),
    "two requests": Story((_ROOMY,), (_ask(1), _ask(2)), cancels=1),
    "two requests on a stream that breaks": Story((_ROOMY,), (_ask(1), _ask(2)), cuts=1),
    "there is not room for both": Story((_TIGHT,), _crowd(2, 6)),
    "one gives way": Story((_TIGHT,), _crowd(2, 6), crowded=0, cancels=2),
    "one gives way on a stream that breaks": Story((_TIGHT,), _crowd(2, 6), crowded=0, cuts=1, late=True),
    "one is swapped and cancelled": Story((_SWAPPING,), _crowd(3, 8), cost=_COST, crowded=0, cancels=2),
    "one is swapped, and the stream breaks": Story((_SWAPPING,), _crowd(3, 8), cost=_COST, crowded=0, cuts=1),
    "one is swapped, and the worker stops": Story((_SWAPPING,), _crowd(3, 8), cost=_COST, crowded=0, drains=1),
    "a long plan is revoked": Story((_ROOMY,), (_ask(1, 4), _ask(2)), num_steps=4, cancels=1),
    "a worker stops, and the stream breaks": Story((_ROOMY,), (_ask(1),), drains=1, cuts=1),
    "one of two workers stops": Story((_ROOMY, _ROOMY), (_ask(1),), drains=1),
    "one of two streams breaks": Story((_ROOMY, _ROOMY), (_ask(1), _ask(2)), cuts=1),
    "the gateway goes": Story((_ROOMY,), (_ask(1), _ask(2)), gateways_lost=1, cuts=1),
    "a deadline passes": Story((_ROOMY,), (_ask(1, deadline_s=1.0),), alarms=1, cuts=1),
    "no worker comes back in time": Story((_ROOMY,), (_ask(1),), alarms=1, kills=1),
    "the scheduler stops": Story((_ROOMY,), (_ask(1),), ends=2, cuts=1),
    "a message comes twice": Story((_ROOMY,), (_ask(1),), echoes=1, cancels=1),
    "one of a group's comes twice": Story((_ROOMY,), (_ask(1, n=2),), echoes=1, stops=1),
    "one comes twice where one gives way": Story((_TIGHT,), _crowd(2, 6), crowded=0, echoes=1),
    "one comes twice where one is swapped": Story((_SWAPPING,), _crowd(3, 8), cost=_COST, crowded=0, echoes=1),
    "one comes twice while a reader is behind": Story((_ROOMY,), (_ask(1, 3),), stalls=1, echoes=1),
}

_LONG = Ask(4, 2)

GATEWAY_STORIES: Mapping[str, gateway_world.Story] = {
    "a client leaves at any moment": gateway_world.Story((Ask(),), cancels=1, cuts=1),
    "two requests on a stream that breaks": gateway_world.Story((Ask(), Ask()), cuts=1),
    "it breaks again": gateway_world.Story((Ask(),), cuts=2),
    "the scheduler starts anew, twice": gateway_world.Story((Ask(),), restarts=2, cancels=1),
    "it does on a stream that breaks": gateway_world.Story((Ask(), Ask()), restarts=1, cuts=1),
    "the scheduler is told to stop": gateway_world.Story((Ask(), Ask()), stops=1),
    "it is, and a client leaves": gateway_world.Story((Ask(), Ask()), stops=1, cancels=1),
    "it is, on a stream that breaks": gateway_world.Story((Ask(), Ask()), stops=1, cuts=1),
    "two outputs": gateway_world.Story((Ask(n=2),), cancels=1, cuts=1),
    "a stop string ends one of them": gateway_world.Story(
        (replace(_LONG, stop_strings=(text_alone(_LONG, 0)[1],)),), cancels=1, cuts=1
    ),
    "both compare what runs": gateway_world.Story((Ask(), Ask()), compares=2, cancels=1),
    "they compare on a stream that breaks": gateway_world.Story((Ask(),), compares=1, cuts=1, cancels=1),
    "they compare while the next one takes over": gateway_world.Story(
        (Ask(3),), restarts=1, compares=1, hands_over=True
    ),
    "a message is lost": gateway_world.Story((Ask(), Ask()), slips=1),
    "one is lost, and a client leaves": gateway_world.Story((Ask(),), slips=1, cancels=1),
    "the gateway forgets a request": gateway_world.Story((Ask(4, unread=1),), lapses=1),
    "it does, and the stream breaks": gateway_world.Story((Ask(3),), lapses=1, cuts=1),
    "a message comes twice": gateway_world.Story((Ask(4, unread=1),), echoes=1, cancels=1, compares=1),
    "one about an output does": gateway_world.Story(
        (replace(_LONG, stop_strings=(text_alone(_LONG, 0)[1],)),), echoes=1, cancels=1
    ),
    "a client never reads": gateway_world.Story((Ask(4, unread=1, deaf=True), Ask()), cuts=1),
    "a client reads now and then": gateway_world.Story((Ask(4, unread=1),), cuts=1, cancels=1),
    "the next one takes over": gateway_world.Story((Ask(),), restarts=1, hands_over=True),
    "it takes over two": gateway_world.Story((Ask(3), Ask()), restarts=1, cancels=1, hands_over=True),
    "it does, twice": gateway_world.Story((Ask(3),), restarts=1, cuts=1, hands_over=True),
    "the scheduler leaves to the next one": gateway_world.Story((Ask(3), Ask()), partings=1, cuts=1, hands_over=True),
    "it drains, and what it refuses goes to the next one": gateway_world.Story(
        (Ask(), Ask()), stops=1, cancels=1, hands_over=True
    ),
    "two outputs go on at the next one": gateway_world.Story((Ask(3, n=2),), restarts=2, cancels=1, hands_over=True),
    "one of them has its stop string": gateway_world.Story(
        (replace(_LONG, stop_strings=(text_alone(_LONG, 0)[1],)),), restarts=1, partings=1, hands_over=True
    ),
    "a client that reads now and then goes on at the next one": gateway_world.Story(
        (Ask(4, unread=1),), restarts=2, hands_over=True
    ),
}
