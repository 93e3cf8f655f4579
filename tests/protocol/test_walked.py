"""Larger worlds, walked at random to their ends: real executors and models behind the real core.

The worlds are those of test_explored.py with more of everything; hypothesis draws them and each of their moves, and
makes what fails small. HYPOTHESIS_PROFILE=long walks for a quarter of an hour.
"""

from __future__ import annotations

import os
import random
from collections.abc import Sequence

import pytest
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st

from scheduler.events import Sampling, Submission
from scheduler.sequence import MAX_LOSSES
from scheduler.simulator.small import submission, worker_info
from tests.mesh.models import model_of

from .explorer import Move, walk
from .real_process import MODEL, RealWorkerWorld
from .worker_world import Story

LONG = os.environ.get("HYPOTHESIS_PROFILE") == "long"
NUM_WALKS = 10_000 if LONG else 100
LIMIT_S = 3600 if LONG else 240
VOCAB_SIZE = model_of(MODEL).config.vocab_size


@st.composite
def _submissions(draw: st.DrawFn, key: int) -> Submission:
    words = draw(st.integers(0, 2**16))
    rng = random.Random(words)
    shared = [random.Random(0).randrange(VOCAB_SIZE) for _ in range(12)]
    prompt = shared[: draw(st.sampled_from([0, 0, 6, 12]))] + [rng.randrange(VOCAB_SIZE) for _ in range(1 + words % 6)]
    return submission(
        key,
        prompt,
        draw(st.integers(1, 12)),
        n=draw(st.sampled_from([1, 1, 2])),
        stop_token_ids=draw(st.sampled_from([(), (), (7, 11)])),
        sampling=Sampling(draw(st.sampled_from([0.0, 1.0])), 1.0, 0, 0.0, key),
        traffic_class=draw(st.sampled_from(["", "batch"])),
        prefix_salt=draw(st.sampled_from([b"", b"", b"tenant"])),
    )


@st.composite
def stories(draw: st.DrawFn) -> Story:
    block_size = draw(st.sampled_from([1, 2, 4]))
    info = worker_info(
        block_size=block_size,
        num_blocks=-(-draw(st.integers(32, 60)) // block_size),
        max_num_seqs=draw(st.integers(2, 4)),
        max_num_batched_tokens=draw(st.sampled_from([3, 8, 16])),
        num_swap_blocks=draw(st.sampled_from([0, 30])),
        swap_block_ns=1,
    )
    # Fewer losses than a request has to fear.
    cuts = draw(st.integers(0, MAX_LOSSES - 1))
    kills = draw(st.integers(0, MAX_LOSSES - 1 - cuts))
    return Story(
        (info,) * draw(st.integers(1, 2)),
        tuple(draw(_submissions(key)) for key in range(1, draw(st.integers(2, 7)))),
        num_steps=draw(st.sampled_from([0, 1, 3, 8])),
        cancels=draw(st.integers(0, 2)),
        stops=draw(st.integers(0, 1)),
        cuts=cuts,
        kills=kills,
        hangs=draw(st.integers(0, MAX_LOSSES - 1 - cuts - kills)),
        drains=draw(st.integers(0, 1)),
        late=draw(st.booleans()),
    )


@settings(max_examples=NUM_WALKS, deadline=None, suppress_health_check=list(HealthCheck))
@given(story=stories(), rng=st.randoms(use_true_random=False))
@pytest.mark.timeout(LIMIT_S)
def test_all_is_well_at_the_end_and_on_the_way(story: Story, rng: random.Random) -> None:
    note(str(story))
    walk(RealWorkerWorld(story), rng.choice)


def test_the_walks_see_what_there_is_to_see() -> None:
    seen: set[str] = set()
    waits = 0

    def choose(moves: Sequence[Move]) -> Move:
        return rng.choice(moves)

    for seed in range(30):
        rng = random.Random(seed)
        asks = tuple(submission(key, (key, 2, 3), 20, traffic_class="batch") for key in range(4))
        info = worker_info(num_blocks=14, max_num_seqs=4)
        world = RealWorkerWorld(Story((info,) * 2, asks, cancels=1, cuts=1, drains=1, late=True))
        seen |= {move[0] for move in walk(world, choose)}
        waits += world.core.view().preemptions
    assert seen >= {"submit", "cancel", "cut", "drain", "exit", "hear_late", "hear_of_loss", "notice", "start", "step"}
    assert waits
