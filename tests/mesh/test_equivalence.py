"""The central promise: whatever the scheduler plans, revokes and takes away, each text is what it would be alone.

The real core and real executors (the C++ block pool, models in float32 on the CPU, both codecs) live random lives on a
virtual clock: requests with shared prefixes and several outputs, plans of any length, arrivals that revoke them,
cancels, stop strings, deadlines, readers that fall behind and catch up, both kinds of preemption, lost streams, workers
that crash or are told to stop, lost gateways. Each text is compared with that of the sequence on an executor of its
own, one step at a time. After every event the core's books and the executor's pools are checked.

HYPOTHESIS_PROFILE=long lives for a quarter of an hour instead of a minute. --hypothesis-show-statistics tells in how
many lives what was seen.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, event, given, note, settings
from hypothesis import strategies as st

from tests.mesh.lives import Life, Player, random_life

MODELS = ("hash", "hash", "llama", "qwen3")
LONG = os.environ.get("HYPOTHESIS_PROFILE") == "long"
NUM_LIVES = 20_000 if LONG else 500

# What must have happened in how many of the lives below: a promise that is never put to the test is worth nothing.
WALKED = {
    "prefix hit": 20,
    "prefill in chunks": 20,
    "revocation in mid-plan": 10,
    "release to preempt": 10,
    "made room": 4,
    "swap": 4,
    "resume": 4,
    "rest": 40,
    "rested and went on": 20,
    "rested and gave way": 4,
    "forks": 20,
    "copy on write": 20,
    "reconnect": 10,
    "crash": 4,
    "drain": 4,
    "moved off a draining worker": 1,
    "stopped by its gateway": 10,
    "DEADLINE_PASSED": 4,
    "end stop": 10,
    "penalties": 10,
    "structure": 10,
    "logprobs of a prompt": 20,
    "end length": 10,
}


def live(life: Life, tell: Callable[[str], object]) -> Counter[str]:
    """Lives it; a failure comes with its story."""
    player = Player(life)
    try:
        player.play()
    except BaseException:
        tell(str(life))
        tell("\n".join(player.timeline))
        raise
    return player.seen


@pytest.mark.parametrize("model", MODELS)
@settings(max_examples=NUM_LIVES // len(MODELS), deadline=None, suppress_health_check=list(HealthCheck))
@given(rng=st.randoms(use_true_random=False))
@pytest.mark.timeout(3600 if LONG else 240)
def test_each_text_is_what_it_would_be_alone(rng: random.Random, model: str) -> None:
    for what, count in live(random_life(rng, model), note).items():
        if count:
            event(what)


@pytest.mark.timeout(600)
def test_the_lives_walk_every_path() -> None:
    lives_with: Counter[str] = Counter()
    for seed in range(200):
        rng = random.Random(seed)
        seen = live(random_life(rng, rng.choice(MODELS)), print)
        lives_with.update(what for what, count in seen.items() if count)
    missing = {what: lives_with[what] for what, least in WALKED.items() if lives_with[what] < least}
    assert not missing
