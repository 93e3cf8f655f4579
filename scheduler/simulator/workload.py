"""Who asks for what, and when: a stream of requests from one seed.

How long an answer will be is drawn here, and told to nobody but the simulated workers.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from math import exp, log

from ..events import Sampling, Submission
from .small import submission
from .text import DrawnText

# Room for the seeds of the outputs of one request.
_SEEDS_PER_REQUEST = 1 << 16


# Longer than any sequence.
MAX_TOKENS = 1 << 20


class Arrivals(Enum):
    """How requests come."""

    POISSON = "poisson"  # independently of each other
    CONSTANT = "constant"  # at equal distances
    BURST = "burst"  # many at one moment, then none for a while


@dataclass(frozen=True, slots=True)
class Lengths:
    """Token counts: `mean` always if `sigma` is 0, else log-normal around it, cut off at 1 and at `most`."""

    mean: int
    sigma: float = 0.0
    most: int = MAX_TOKENS

    def draw(self, rng: random.Random) -> int:
        """One of them."""
        if not self.sigma:
            return min(self.mean, self.most)
        return max(1, min(self.most, round(rng.lognormvariate(log(self.mean) - self.sigma**2 / 2, self.sigma))))

    @property
    def longest(self) -> int:
        """No draw is longer."""
        return self.most if self.sigma else min(self.mean, self.most)

    @property
    def bound(self) -> int:
        """What a client would ask for that does not know how long its answer will be."""
        likely = self.mean * exp(3 * self.sigma) if self.sigma else 2 * self.mean
        return min(self.most, max(1, round(likely)))


@dataclass(frozen=True, slots=True)
class Workload:
    """`rate` is in requests per second; infinite: all at once. Each answer ends by itself, or at `max_tokens`."""

    requests: int
    rate: float
    arrivals: Arrivals
    burst_size: int
    prompt: Lengths
    output: Lengths
    max_tokens: int
    # The share of requests that begin with one of `prefixes` common texts of `prefix_tokens` tokens.
    prefix_ratio: float
    prefix_tokens: int
    prefixes: int
    # The share of requests whose client goes away before the end.
    cancel_ratio: float
    n: int
    # Traffic classes and their weights.
    classes: tuple[tuple[str, float], ...]
    # What a step takes at least, in seconds: how fast an answer can be, and so when clients lose patience.
    token_s: float


@dataclass(frozen=True, slots=True)
class Arrival:
    """A request at `at` seconds, and after how long its client goes away; None if it does not."""

    at: float
    submission: Submission
    cancel_after_s: float | None


class Requests:
    """The requests of a workload, in order of arrival. `lengths` tells the workers where each output ends."""

    def __init__(self, workload: Workload, seed: int, *, model: str, max_model_len: int) -> None:
        self._workload = workload
        self._rng = random.Random(seed)
        self._model = model
        self._max_model_len = max_model_len
        self._prefixes = [self._rng.randbytes(workload.prefix_tokens) for _ in range(workload.prefixes)]
        self.lengths: dict[int, int] = {}

    def __iter__(self) -> Iterator[Arrival]:
        rng, workload = self._rng, self._workload
        names = [name for name, _ in workload.classes]
        weights = [weight for _, weight in workload.classes]
        at = 0.0
        for key in range(1, workload.requests + 1):
            prompt = self._prompt()
            room = max(1, self._max_model_len - len(prompt))
            outputs = [min(workload.output.draw(rng), workload.max_tokens, room) for _ in range(workload.n)]
            seed = key * _SEEDS_PER_REQUEST
            self.lengths.update((seed + index, len(prompt) + output) for index, output in enumerate(outputs))
            submitted = submission(
                key,
                prompt,
                min(workload.max_tokens, room),
                model=self._model,
                stop_token_ids=(DrawnText.END,),
                sampling=Sampling(1.0, 1.0, 0, 0.0, seed),
                n=workload.n,
                traffic_class=rng.choices(names, weights)[0],
            )
            patience = None
            if rng.random() < workload.cancel_ratio:
                patience = rng.random() * max(outputs) * workload.token_s
            yield Arrival(at, submitted, patience)
            at = self._next(at, key)

    def forget(self, submission: Submission) -> None:
        """A request is over."""
        for index in range(submission.n):
            self.lengths.pop(submission.sampling.seed + index, None)

    def _prompt(self) -> tuple[int, ...]:
        workload, rng = self._workload, self._rng
        length = min(workload.prompt.draw(rng), self._max_model_len - 1)
        prefix = b""
        if self._prefixes and rng.random() < workload.prefix_ratio:
            prefix = rng.choice(self._prefixes)[: length - 1]
        return tuple(prefix + rng.randbytes(length - len(prefix)))

    def _next(self, at: float, key: int) -> float:
        workload = self._workload
        if workload.arrivals is Arrivals.POISSON:
            return at + self._rng.expovariate(workload.rate)
        if workload.arrivals is Arrivals.CONSTANT:
            return at + 1 / workload.rate
        return at if key % workload.burst_size else at + workload.burst_size / workload.rate
