"""Penalties as a gateway sends them and as a worker knows them."""

from __future__ import annotations

import random

from tercet.mesh.v1.sequence_pb2 import Penalties as PenaltiesProto
from worker.messages import Penalties


def draw_penalties(rng: random.Random, prompt: tuple[int, ...], max_tokens: int, vocab_size: int) -> Penalties:
    """Each setting is off as often as not."""
    some = tuple(rng.randrange(vocab_size) for _ in range(4))
    return Penalties(
        prompt_tokens=len(prompt),
        repetition=rng.choice([1.0, 1.0, 0.75, 1.5]),
        frequency=rng.choice([0.0, 0.0, 0.5, -0.25]),
        presence=rng.choice([0.0, 0.0, 1.0, -0.5]),
        bias=tuple((token_id, rng.choice([-4.0, 2.0])) for token_id in dict.fromkeys(some[: rng.choice([0, 0, 2])])),
        allowed_ids=rng.choice([None, None, tuple(range(0, vocab_size, 2))]),
        min_tokens=rng.choice([0, rng.randint(0, max_tokens)]),
        bad=tuple(
            tuple(rng.randrange(vocab_size) for _ in range(rng.choice([1, 2]))) for _ in range(rng.choice([0, 0, 5]))
        ),
    )


def penalties_to_bytes(penalties: Penalties) -> bytes:
    """As the scheduler carries them."""
    return PenaltiesProto(
        prompt_tokens=penalties.prompt_tokens,
        repetition=penalties.repetition,
        frequency=penalties.frequency,
        presence=penalties.presence,
        biased_ids=[token_id for token_id, _ in penalties.bias],
        biases=[bias for _, bias in penalties.bias],
        allowed_ids=penalties.allowed_ids,
        min_tokens=penalties.min_tokens,
        bad_ids=[token_id for each in penalties.bad for token_id in each],
        bad_lengths=map(len, penalties.bad),
    ).SerializeToString()
