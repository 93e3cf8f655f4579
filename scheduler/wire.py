"""Parts of the contract that both edges translate: sampling and enums between protos and plain values."""

from __future__ import annotations

from enum import IntEnum
from typing import TypeVar

from tercet.mesh.v1 import sequence_pb2

from .events import Sampling

Kind = TypeVar("Kind", bound=IntEnum)


def enum_value(kind: type[Kind], number: int) -> Kind:
    """A number of the wire; one that this version does not know is UNSPECIFIED (0)."""
    try:
        return kind(number)
    except ValueError:
        return kind(0)


def sampling_to_proto(sampling: Sampling) -> sequence_pb2.Sampling:
    penalties = sequence_pb2.Penalties.FromString(sampling.penalties) if sampling.penalties else None
    grammar = sequence_pb2.Grammar.FromString(sampling.grammar) if sampling.grammar else None
    return sequence_pb2.Sampling(
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        min_p=sampling.min_p,
        seed=sampling.seed,
        penalties=penalties,
        num_logprobs=sampling.num_logprobs,
        num_prompt_logprobs=sampling.num_prompt_logprobs,
        grammar=grammar,
    )


def sampling_from_proto(sampling: sequence_pb2.Sampling) -> Sampling:
    return Sampling(
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        min_p=sampling.min_p,
        seed=sampling.seed,
        penalties=sampling.penalties.SerializeToString() if sampling.HasField("penalties") else b"",
        num_logprobs=sampling.num_logprobs if sampling.HasField("num_logprobs") else None,
        num_prompt_logprobs=sampling.num_prompt_logprobs if sampling.HasField("num_prompt_logprobs") else None,
        grammar=sampling.grammar.SerializeToString() if sampling.HasField("grammar") else b"",
        min_tokens=sampling.penalties.min_tokens,
        has_grammar=sampling.HasField("grammar"),
    )
