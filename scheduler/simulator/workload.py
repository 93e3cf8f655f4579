"""Who asks for what, and when: flows of requests from one seed.

How long an answer will be is drawn here, and told to nobody but the simulated workers.
"""

from __future__ import annotations

import heapq
import itertools
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
class Flow:
    """Requests of one kind. Each answer ends by itself, or at `max_tokens`; 0: at a bound of the outputs."""

    name: str
    prompt: Lengths
    output: Lengths
    # In proportion to those of the other flows.
    share: float = 1.0
    # Empty: the default of the tenant.
    traffic_class: str = ""
    tenant: str = ""
    priority: int = 0
    max_tokens: int = 0
    n: int = 1
    # Seconds that its clients give a request from its arrival on; None: all of them.
    deadline_s: float | None = None
    arrivals: Arrivals = Arrivals.POISSON
    burst_size: int = 50
    # The share of requests that begin with one of `prefixes` common texts of `prefix_tokens` tokens.
    prefix_ratio: float = 0.0
    prefix_tokens: int = 0
    prefixes: int = 1
    # The share of requests whose client goes away before the end.
    cancel_ratio: float = 0.0

    @property
    def most_tokens(self) -> int:
        """What its clients ask for."""
        return self.max_tokens or self.output.bound


@dataclass(frozen=True, slots=True)
class Workload:
    """`requests` of all flows together, `rate` of them a second; infinite: all at once."""

    requests: int
    rate: float
    flows: tuple[Flow, ...]
    # What a step takes at least, in seconds: how fast an answer can be, and so when clients lose patience.
    token_s: float


@dataclass(frozen=True, slots=True)
class Arrival:
    """A request at `at` seconds, and after how long its client goes away; None if it does not."""

    at: float
    flow: Flow
    submission: Submission
    cancel_after_s: float | None


class Requests:
    """The requests of a workload, in order of arrival. `lengths` tells the workers where each output ends.

    What one flow asks for, and when, is the same whatever the others do.
    """

    def __init__(self, workload: Workload, seed: int, *, model: str, max_model_len: int) -> None:
        self._workload = workload
        self._seed = seed
        self._model = model
        self._max_model_len = max_model_len
        self.lengths: dict[int, int] = {}

    def __iter__(self) -> Iterator[Arrival]:
        workload = self._workload
        # Seconds in which as many requests come as the flows have shares.
        unit_s = sum(flow.share for flow in workload.flows) / workload.rate
        asking = [self._asked(flow) for flow in workload.flows]
        moments = heapq.merge(*(self._moments(index, flow) for index, flow in enumerate(workload.flows)))
        for key, (moment, index) in enumerate(itertools.islice(moments, workload.requests), start=1):
            yield self._arrival(key, moment * unit_s, workload.flows[index], next(asking[index]))

    def forget(self, submission: Submission) -> None:
        """A request is over."""
        for index in range(submission.n):
            self.lengths.pop(submission.sampling.seed + index, None)

    def _moments(self, index: int, flow: Flow) -> Iterator[tuple[float, int]]:
        rng = random.Random(f"{self._seed} moments {flow.name}")
        moment = 0.0
        for count in itertools.count(1):
            if flow.arrivals is Arrivals.POISSON:
                moment += rng.expovariate(flow.share)
                yield moment, index
                continue
            yield moment, index
            size = 1 if flow.arrivals is Arrivals.CONSTANT else flow.burst_size
            if not count % size:
                moment += size / flow.share

    def _asked(self, flow: Flow) -> Iterator[_Asked]:
        rng = random.Random(f"{self._seed} requests {flow.name}")
        prefixes = [rng.randbytes(flow.prefix_tokens) for _ in range(flow.prefixes)] if flow.prefix_ratio else []
        while True:
            length = min(flow.prompt.draw(rng), self._max_model_len - 1)
            prefix = rng.choice(prefixes)[: length - 1] if prefixes and rng.random() < flow.prefix_ratio else b""
            prompt = tuple(prefix + rng.randbytes(length - len(prefix)))
            most = min(flow.most_tokens, max(1, self._max_model_len - length))
            outputs = [min(flow.output.draw(rng), most) for _ in range(flow.n)]
            leaves = rng.random() < flow.cancel_ratio
            yield _Asked(
                prompt, most, outputs, rng.random() * max(outputs) * self._workload.token_s if leaves else None
            )

    def _arrival(self, key: int, at: float, flow: Flow, asked: _Asked) -> Arrival:
        seed = key * _SEEDS_PER_REQUEST
        self.lengths.update((seed + index, len(asked.prompt) + length) for index, length in enumerate(asked.outputs))
        submitted = submission(
            key,
            asked.prompt,
            asked.max_tokens,
            model=self._model,
            stop_token_ids=(DrawnText.END,),
            sampling=Sampling(1.0, 1.0, 0, 0.0, seed),
            deadline_s=flow.deadline_s,
            # As a gateway does: tenants share no cached prompts.
            prefix_salt=flow.tenant.encode(),
            n=flow.n,
            traffic_class=flow.traffic_class,
            priority=flow.priority,
            tenant=flow.tenant,
        )
        return Arrival(at, flow, submitted, asked.cancel_after_s)


@dataclass(frozen=True, slots=True)
class _Asked:
    """One request of a flow: `outputs` are the lengths of its answers."""

    prompt: tuple[int, ...]
    max_tokens: int
    outputs: list[int]
    cancel_after_s: float | None
