"""What a mesh is offered: requests of some flows, as the simulator draws them, in a form that any mesh takes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from bench.arrivals import greedy
from scheduler.simulator.workload import Flow, Requests, Workload
from tercet.load.ask import Ask

# Prompts of the simulator are bytes; below this a vocabulary has special tokens.
FIRST_TOKEN = 300


@dataclass(frozen=True, slots=True)
class Offer:
    """Requests of some flows, for so many seconds of a load."""

    flows: Sequence[Flow]
    seconds: float
    seed: int
    max_model_len: int

    def alike(self) -> Offer:
        """The same requests, all in the last flow's class: so they are served as they come, and mixed at any time."""
        last = self.flows[-1].traffic_class
        return replace(self, flows=[replace(flow, traffic_class=last) for flow in self.flows])

    def asks(self, rate: float, count: int) -> Iterator[tuple[Flow, Ask]]:
        """`count` of them, `rate` a second; infinite: all at once. Each is as long as an answer of the flow."""
        requests = Requests(
            Workload(count, rate, tuple(self.flows), 0.0), self.seed, model="", max_model_len=self.max_model_len
        )
        for arrival in requests:
            asked = arrival.submission
            prompt = tuple(FIRST_TOKEN + token for token in asked.prompt_token_ids)
            length = requests.lengths[asked.sampling.seed] - len(prompt)
            yield (
                arrival.flow,
                greedy(arrival.at, prompt, length, traffic_class=asked.traffic_class, timeout_s=asked.deadline_s),
            )
