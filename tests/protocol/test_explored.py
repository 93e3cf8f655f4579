"""Whatever the order of messages, losses and cancels: nothing is lost, doubled, left behind or leaked.

The real core and checked workers, each order of all that can happen in a small story, or the first so many states of
it. In every state the core's books and the workers' pools balance and each text is a beginning of what it would be
alone; in every state of rest each request has had one end, each cancel its answer, no worker has a sequence or a block
in use, and both sides count the same blocks. test_mutations.py has faults that are found by this.

HYPOTHESIS_PROFILE=long sees five hundred times as many states, most stories to their ends. By default random walks go
there instead.
"""

from __future__ import annotations

import os
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from .explorer import explore, walk
from .gateway_world import GatewayWorld
from .stories import GATEWAY_STORIES, STORIES
from .worker_world import Story, WorkerWorld

LONG = os.environ.get("HYPOTHESIS_PROFILE") == "long"
LIMIT_S = 3600 if LONG else 240
MAX_STATES = 100_000 if LONG else 200


@pytest.mark.parametrize("name", STORIES)
@pytest.mark.timeout(LIMIT_S)
def test_every_order(name: str) -> None:
    explored = explore(WorkerWorld(STORIES[name]), MAX_STATES)
    assert explored.interleavings is None or explored.interleavings > explored.states


@pytest.mark.parametrize("name", GATEWAY_STORIES)
@pytest.mark.timeout(LIMIT_S)
def test_every_order_at_the_gateway(name: str) -> None:
    explored = explore(GatewayWorld(GATEWAY_STORIES[name]), MAX_STATES)
    assert explored.interleavings is None or explored.interleavings > explored.states


@settings(max_examples=20_000 if LONG else 150)
@given(name=st.sampled_from(sorted(GATEWAY_STORIES)), rng=st.randoms(use_true_random=False))
@pytest.mark.timeout(LIMIT_S)
def test_orders_at_the_gateway_to_their_ends(name: str, rng: random.Random) -> None:
    walk(GatewayWorld(GATEWAY_STORIES[name]), rng.choice)


@settings(max_examples=20_000 if LONG else 150)
@given(name=st.sampled_from(sorted(STORIES)), rng=st.randoms(use_true_random=False))
@pytest.mark.timeout(LIMIT_S)
def test_orders_to_their_ends_where_there_are_too_many(name: str, rng: random.Random) -> None:
    walk(WorkerWorld(STORIES[name]), rng.choice)


def test_a_story_in_which_nothing_breaks_has_one_end() -> None:
    story = STORIES["two requests"]
    alone = Story(story.workers, story.submissions[:1])
    explored = explore(WorkerWorld(alone), MAX_STATES)
    assert explored.interleavings is not None
    # Before the request and behind it.
    assert explored.rests == 2


@pytest.mark.parametrize("name", [name for name in STORIES if "swapped" in name])
def test_these_are_swapped(name: str) -> None:
    swaps = 0
    for seed in range(40):
        world = WorkerWorld(STORIES[name])
        walk(world, random.Random(seed).choice)
        swaps += world.core.view().swaps
    assert swaps >= 2
