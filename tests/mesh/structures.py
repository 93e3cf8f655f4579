"""What texts have to be, as a gateway sends it and as a worker knows it; of the recall model's vocabulary."""

from __future__ import annotations

import random

from tercet.grammar.grammar import Grammar, Syntax
from tercet.mesh.v1 import sequence_pb2
from tests.worker.grammar_process import END
from worker.messages import Structure

_REGEXES = (r"[a-c]{2,4}(é|-\d+)?", r"(x|yz)*end", r"[^a-z]{3}", r"\d{3}-\w+\.?", r".*")


def draw_structure(rng: random.Random, prompt: tuple[int, ...]) -> Structure:
    """Some end soon, others hardly."""
    return Structure(Grammar(Syntax.REGEX, rng.choice(_REGEXES)), len(prompt), (END,))


def structure_to_bytes(structure: Structure) -> bytes:
    """As the scheduler carries it."""
    return sequence_pb2.Grammar(
        prompt_tokens=structure.prompt_tokens,
        syntax=sequence_pb2.GRAMMAR_SYNTAX_REGEX,
        text=structure.grammar.text,
        end_ids=structure.end_ids,
    ).SerializeToString()
