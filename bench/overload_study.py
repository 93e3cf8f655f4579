"""The same loads on a virtual clock: the real scheduler with a simulated worker of an H200's speed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from bench.offer import Offer
from scheduler.server import core_settings
from scheduler.simulator.capacity import CapacityMesh, Fleet, Result, simulated_info
from scheduler.simulator.cost import StepCost
from scheduler.simulator.workload import Workload
from tercet.sections import MeshConfig

# Of the 8b preset in bfloat16 (docs/results.md): a step of one token, what each further one takes, what each token in
# the caches of its sequences takes; and blocks in what the model leaves of the memory.
COST = StepCost(4.3e-3, 22e-6, 22e-9)
NUM_BLOCKS, BLOCK_SIZE = 13_000, 64
MESSAGE_DELAY_S = 0.25e-3


def capacity(config: MeshConfig, offer: Offer, count: int) -> float:
    """Requests a second of so many that come at once. Raises RuntimeError if some are refused."""
    result = _run(config, offer, float("inf"), count)
    if result.tally.completed < count:
        raise RuntimeError(f"of {count} requests that came at once not all were done: {result.tally.problems}")
    return count / result.seconds


def under_loads(config: MeshConfig, offer: Offer, rates: Sequence[float]) -> Iterator[dict[str, Any]]:
    """What became of the requests at each rate."""
    for rate in rates:
        result = _run(config, offer, rate, round(rate * offer.seconds))
        flows = {name: tally.report(result.loaded_seconds) for name, tally in result.tally.flows.items()}
        yield {"rate": rate, "seconds": offer.seconds, "flows": flows}


def _run(config: MeshConfig, offer: Offer, rate: float, count: int) -> Result:
    settings = core_settings(config)
    info = simulated_info(
        block_size=BLOCK_SIZE,
        num_blocks=NUM_BLOCKS,
        max_num_seqs=config.worker.max_num_seqs,
        max_num_batched_tokens=config.worker.max_num_batched_tokens,
        max_model_len=offer.max_model_len,
    )
    mesh = CapacityMesh(
        Fleet(1, info, COST, 0.0, MESSAGE_DELAY_S, caching=True),
        Workload(count, rate, tuple(offer.flows), COST.base_s),
        settings.policy,
        settings.bounds,
        offer.seed,
        classes=settings.classes,
        admission_mode=settings.admission_mode,
    )
    mesh.run()
    return mesh.result()
