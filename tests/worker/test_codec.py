"""Commands and events of forks, swap and the prefix cache as messages; the rest is proved through the service."""

from __future__ import annotations

import math
from typing import Any

import pytest

from tercet.grammar.grammar import Grammar, Syntax
from tercet.mesh.v1 import sequence_pb2, worker_pb2
from worker.codec import decode_command, encode_event
from worker.messages import (
    BlockCounts,
    Fork,
    KvEvents,
    NewSequence,
    Penalties,
    PlanDone,
    Release,
    ReleaseCause,
    Released,
    Resume,
    StepResult,
    Structure,
    TokenLogprobs,
)

LIMITS = worker_pb2.Hello(vocab_size=50, max_model_len=100)
COUNTS = BlockCounts(1, 2, 3)


def new_sequence(*forks: worker_pb2.Fork) -> worker_pb2.WorkerCommand:
    new = worker_pb2.NewSequence(sequence_id=7, token_ids=[1, 2], max_length=9, forks=forks)
    return worker_pb2.WorkerCommand(new_sequence=new)


def test_forks_are_named_with_their_seeds() -> None:
    command = new_sequence(worker_pb2.Fork(sequence_id=8, seed=2**64 - 1), worker_pb2.Fork(sequence_id=9))
    decoded = decode_command(command, LIMITS)
    assert isinstance(decoded, NewSequence)
    assert decoded.problem is None
    assert decoded.forks == (Fork(8, 2**64 - 1), Fork(9, 0))


@pytest.mark.parametrize("ids", [(7,), (8, 8), (8, 9, 7)])
def test_an_id_twice_breaks_the_protocol(ids: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="sequence 7: it and its forks have an id twice"):
        decode_command(new_sequence(*(worker_pb2.Fork(sequence_id=key) for key in ids)), LIMITS)


def penalized(**fields: Any) -> NewSequence:
    message = sequence_pb2.Penalties(**{"prompt_tokens": 2, "repetition": 1, **fields})
    new = worker_pb2.NewSequence(
        sequence_id=7, token_ids=[1, 2], max_length=9, sampling=sequence_pb2.Sampling(penalties=message)
    )
    decoded = decode_command(worker_pb2.WorkerCommand(new_sequence=new), LIMITS)
    assert isinstance(decoded, NewSequence)
    return decoded


def test_penalties() -> None:
    decoded = penalized(frequency=-0.5, presence=2, biased_ids=[49, 0], biases=[1.5, -100], min_tokens=3)
    assert decoded.problem is None
    assert decoded.sampling.penalties == Penalties(2, 1.0, -0.5, 2.0, ((49, 1.5), (0, -100.0)), None, 3)
    assert penalized(allowed_ids=[3, 4]).sampling.penalties == Penalties(2, allowed_ids=(3, 4))


def test_a_grammar_has_the_salt_of_its_prefixes() -> None:
    given = sequence_pb2.Grammar(prompt_tokens=2, syntax=sequence_pb2.GRAMMAR_SYNTAX_REGEX, text="a", end_ids=[4])
    new = worker_pb2.NewSequence(
        sequence_id=7, token_ids=[1, 2], max_length=9, sampling=sequence_pb2.Sampling(grammar=given), prefix_salt=b"s"
    )
    decoded = decode_command(worker_pb2.WorkerCommand(new_sequence=new), LIMITS)
    assert isinstance(decoded, NewSequence)
    assert decoded.problem is None
    assert decoded.sampling.structure == Structure(Grammar(Syntax.REGEX, "a", b"s"), 2, (4,))


def test_logprobs() -> None:
    for wanted in (None, 0, 20):
        new = worker_pb2.NewSequence(sequence_id=7, token_ids=[1, 2], max_length=9)
        new.sampling.num_logprobs = wanted or 0
        if wanted is None:
            new.sampling.ClearField("num_logprobs")
        decoded = decode_command(worker_pb2.WorkerCommand(new_sequence=new), LIMITS)
        assert isinstance(decoded, NewSequence)
        assert (decoded.sampling.num_logprobs, decoded.problem) == (wanted, None)
    new.sampling.num_logprobs = 21
    decoded = decode_command(worker_pb2.WorkerCommand(new_sequence=new), LIMITS)
    assert isinstance(decoded, NewSequence)
    assert decoded.problem == "sampling parameters are out of range"
    of_token = TokenLogprobs(-1.5, (3, 4), (-0.5, -1.5))
    step = encode_event(StepResult(1, 0, (7,), (4,), (), (), COUNTS, 10, ((7, of_token),))).step
    assert [(item.sequence_id, item.logprob) for item in step.logprobs] == [(7, -1.5)]
    assert (list(step.logprobs[0].top_ids), list(step.logprobs[0].top_logprobs)) == ([3, 4], [-0.5, -1.5])


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"repetition": 0}, "out of range"), ({"repetition": math.nan}, "out of range"),
        ({"repetition": 1e-45}, "out of range"), ({"frequency": math.inf}, "out of range"),
        ({"biased_ids": [1], "biases": [math.inf]}, "out of range"), ({"biased_ids": [1]}, "1 tokens have 0 biases"),
        ({"prompt_tokens": 3}, "too many"), ({"min_tokens": 2**31}, "too many"),
        ({"biased_ids": [50], "biases": [1]}, "not below 50"), ({"allowed_ids": [3, 50]}, "not below 50"),
    ],
)  # fmt: skip
def test_penalties_that_no_kernel_may_see(fields: dict[str, Any], problem: str) -> None:
    assert problem in str(penalized(**fields).problem)


def test_swap_and_resume() -> None:
    release = worker_pb2.Release(sequence_ids=[3, 4], cause=worker_pb2.RELEASE_CAUSE_SWAP)
    decoded = decode_command(worker_pb2.WorkerCommand(release=release), LIMITS)
    assert decoded == Release((3, 4), ReleaseCause.SWAP)
    resume = worker_pb2.WorkerCommand(resume=worker_pb2.Resume(sequence_ids=[4]))
    assert decode_command(resume, LIMITS) == Resume((4,))
    message = encode_event(Released(3, ReleaseCause.SWAP, True, 5, 4, COUNTS, swapped=True)).released
    assert (message.cause, message.swapped) == (worker_pb2.RELEASE_CAUSE_SWAP, True)
    assert (message.blocks_used, message.blocks_freed) == (5, 4)


def test_keys_keep_all_their_bits() -> None:
    message = encode_event(KvEvents(True, (0, 2**64 - 1), (1,))).kv
    assert (message.reset, list(message.removed), list(message.stored)) == (True, [0, 2**64 - 1], [1])


def test_a_plan_tells_the_time_of_each_step() -> None:
    message = encode_event(PlanDone(4, 3, True, COUNTS, (10, 0, 30))).plan_done
    assert (message.steps_run, list(message.step_us)) == (3, [10, 0, 30])
