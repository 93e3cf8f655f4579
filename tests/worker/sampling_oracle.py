"""What `transformers` would choose: its logits processors one after the other, in the order that vLLM has, and the
noise of philox.h on what they leave. Presence and frequency have no processor there; they are vLLM's by definition."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from transformers import (
    LogitsProcessorList,
    MinNewTokensLengthLogitsProcessor,
    MinPLogitsWarper,
    NoBadWordsLogitsProcessor,
    PrefixConstrainedLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from worker import _core
from worker.ops.penalties import Penalties, PenaltyCounts, PenaltyRow, penalize
from worker.ops.sampler import SamplingRows, sample, sample_reference

VOCAB_SIZE = 61
PARAMETERS = (
    "temperature", "top_k", "top_p", "min_p", "repetition", "frequency", "presence", "bias", "allowed", "bad",
    "min_tokens",
)  # fmt: skip


@dataclass(frozen=True)
class Case:
    """One choice: logits [V], the text so far, and what is asked."""

    logits: torch.Tensor
    prompt: list[int]
    drawn: list[int]
    seed: int
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition: float = 1.0
    frequency: float = 0.0
    presence: float = 0.0
    bias: dict[int, float] = field(default_factory=dict)
    allowed: list[int] | None = None
    bad: list[list[int]] = field(default_factory=list)
    min_tokens: int = 0
    ends: list[int] = field(default_factory=list)

    @property
    def position(self) -> int:
        return len(self.prompt) + len(self.drawn)


def random_case(rng: np.random.Generator, asked: Sequence[str]) -> Case:
    """A case in which those parameters are not at rest. What they are about are mostly the likeliest tokens, so that a
    mistake changes what is chosen."""
    logits = (rng.standard_normal(VOCAB_SIZE) * 1.5).astype(np.float32)
    likely = np.argsort(-logits)[:8]

    def tokens(low: int, high: int) -> list[int]:
        count = int(rng.integers(low, high + 1))
        picked = np.where(rng.random(count) < 0.8, rng.choice(likely, count), rng.integers(0, VOCAB_SIZE, count))
        return [int(i) for i in picked]

    prompt, drawn = tokens(1, 12), tokens(0, 12)
    # Of the bad ones some are about to be completed, others would be if the prompt counted.
    text = prompt + drawn
    bad = [tokens(1, 3)] + [[*text[len(text) - n :], t] for n in (1, 2, 3) for t in tokens(2, 2) if n <= len(text)]
    values = {
        "temperature": float(np.float32(rng.choice([0.0, 0.3, 0.7, 1.6]))),
        "top_k": int(rng.integers(1, VOCAB_SIZE)),
        "top_p": float(np.float32(rng.uniform(0.05, 0.99))),
        "min_p": float(np.float32(rng.uniform(0.01, 0.5))),
        "repetition": float(np.float32(rng.uniform(0.5, 2.0))),
        "frequency": float(np.float32(rng.uniform(-2, 2))),
        "presence": float(np.float32(rng.uniform(-2, 2))),
        "bias": {token_id: float(np.float32(rng.uniform(-5, 5))) for token_id in tokens(1, 6)},
        "allowed": sorted({*range(0, VOCAB_SIZE, 7), *tokens(20, 40)}),
        "bad": bad,
        "min_tokens": len(drawn) + int(rng.integers(0, 3)),
    }
    return Case(
        torch.from_numpy(logits),
        prompt,
        drawn,
        int(rng.integers(0, 2**63)),
        ends=tokens(1, 3) if "min_tokens" in asked else [],
        **{name: values[name] for name in asked},
    )


def scores_of(case: Case) -> torch.Tensor:
    """[V], what `transformers` would draw from by softmax; at temperature 0 by the largest."""
    text = torch.tensor([case.prompt + case.drawn])
    scores = case.logits[None].clone()
    if case.allowed is not None:
        allowed = case.allowed
        scores = PrefixConstrainedLogitsProcessor(lambda *_: allowed, 1)(text, scores)
    if case.bad:
        # It looks at all of the text: it gets what was drawn, behind a token that nothing bad has.
        only_drawn = torch.tensor([[VOCAB_SIZE, *case.drawn]])
        scores = NoBadWordsLogitsProcessor(case.bad)(only_drawn, scores)
    if case.ends:
        length = len(case.prompt)
        scores = MinNewTokensLengthLogitsProcessor(length, case.min_tokens, case.ends)(text, scores)
    if case.bias:
        scores = SequenceBiasLogitsProcessor([[[i], float(x)] for i, x in case.bias.items()])(text, scores)
    if case.repetition != 1:
        scores = RepetitionPenaltyLogitsProcessor(case.repetition)(text, scores)
    counts = torch.bincount(torch.tensor(case.drawn, dtype=torch.int64), minlength=VOCAB_SIZE)
    scores = scores - case.frequency * counts - case.presence * (counts > 0)
    if case.temperature == 0:
        return scores[0]
    warpers = LogitsProcessorList([TemperatureLogitsWarper(case.temperature)])
    warpers += [MinPLogitsWarper(case.min_p)] if case.min_p else []
    warpers += [TopKLogitsWarper(case.top_k)] if case.top_k else []
    warpers += [TopPLogitsWarper(case.top_p)] if case.top_p < 1 else []
    return warpers(text, scores)[0]


def chosen_by_transformers(case: Case) -> int:
    """The token that has the largest sum of score and noise."""
    scores = scores_of(case)
    if case.temperature == 0:
        return int(scores.argmax())
    low, high = case.position & 0xFFFFFFFF, case.position >> 32
    key = [case.seed & 0xFFFFFFFF, case.seed >> 32]
    words = [word for i in range(-(-VOCAB_SIZE // 4)) for word in _core.philox4x32([i, low, high, 0], key)]
    noise = -np.log(-np.log((np.array(words[:VOCAB_SIZE]) + 0.5) / 2**32))
    return int((scores.double().numpy() + noise).argmax())


def chosen_here(cases: Sequence[Case], device: torch.device, *, by_twin: bool = False) -> list[int]:
    """What the kernels choose of a batch, or what the twin of the sampler does."""
    rows = [
        PenaltyCounts(
            PenaltyRow(
                case.repetition, case.frequency, case.presence, case.bias, case.allowed,
                max(0, case.min_tokens - len(case.drawn)), case.ends, case.prompt, case.drawn, case.bad,
            ),
            VOCAB_SIZE,
        )
        for case in cases
    ]  # fmt: skip
    logits = torch.stack([case.logits for case in cases]).to(device)
    penalize(logits, Penalties.of(rows, VOCAB_SIZE, 0, device))
    assert not logits.isnan().any()
    columns = SamplingRows(
        np.array([case.temperature for case in cases], np.float32),
        np.array([case.top_k for case in cases], np.int32),
        np.array([case.top_p for case in cases], np.float32),
        np.array([case.min_p for case in cases], np.float32),
        np.array([case.seed for case in cases], np.uint64),
        np.array([case.position for case in cases], np.int64),
    )
    return (sample_reference if by_twin else sample)(logits, columns).tolist()


def may_be_chosen(case: Case) -> bool:
    """Whether anything may."""
    return bool((scores_of(case) > -math.inf).any())
