"""A question of capacity in an operator's terms, and its answer as plain data: what `tercet simulate` is about."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict, dataclass, replace
from math import isfinite
from typing import Any

from tercet.errors import ConfigError

from ..admission import AdmissionMode, QueueBounds
from ..events import WorkerInfo
from ..policy import Policy
from ..progress import HUNG_SECONDS, HUNG_TIMES, Foreseen
from ..tenant import NamedPlan
from ..traffic_class import DEFAULT_CLASS
from .capacity import CapacityMesh, Fleet, simulated_info
from .cost import StepCost
from .flow_text import flag, to_arrivals, to_classes, to_flow, to_lengths, to_prefix, to_tenant, to_traffic_classes
from .report import answer, rounded
from .workload import MAX_TOKENS, Flow, Workload

# Of what the workers can do by estimate: busy, and far enough from the knee that queues stay short.
DEFAULT_LOAD = 0.7


@dataclass(frozen=True, slots=True)
class Study:
    """All options. Lengths are ``MEAN[:SIGMA[:MOST]]`` in tokens, a shared prefix ``RATIO[:TOKENS[:COUNT]]``, classes
    ``NAME=WEIGHT,...``, flows and tenants ``NAME:KEY=VALUE,...``; `rate` None is 70 % of the estimated capacity, 0 is
    all at once. Without flows there is one for each of `classes`; what a flow does not say, the options say."""

    workers: int = 1
    requests: int = 1000
    seed: int = 0
    # The workload.
    rate: float | None = None
    arrivals: str = "poisson"
    burst_size: int = 50
    prompt_tokens: str = "500"
    output_tokens: str = "150"
    max_tokens: int = 0
    n: int = 1
    shared_prefix: str = "0"
    cancel_ratio: float = 0.0
    classes: str = DEFAULT_CLASS.name
    flow: tuple[str, ...] = ()
    tenant: tuple[str, ...] = ()
    traffic_class: tuple[str, ...] = ()
    # A worker.
    block_size: int = 64
    num_blocks: int = 8192
    swap_blocks: int = 0
    swap_block_us: float = 200.0
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 8192
    max_model_len: int = 32768
    prefix_caching: bool = True
    step_base_ms: float = 6.0
    step_token_us: float = 25.0
    step_context_ns: float = 40.0
    speed_spread: float = 0.0
    message_delay_ms: float = 0.25
    # The scheduler.
    num_scheduler_steps: int = 0
    max_prefill_tokens: int = 0
    max_mixed_step_ms: float = 50.0
    max_queued_requests: int = 1024
    max_queued_tokens: int = 4_000_000
    admission_mode: str = AdmissionMode.ENFORCE.value

    def run(self, progress: Callable[[int], None] = lambda _: None) -> dict[str, Any]:
        """The answer; the same study gives the same. `progress` is told how many requests are over.

        Raises ConfigError naming the option that makes no sense.
        """
        self.check()
        served = to_traffic_classes("--traffic-class", self.traffic_class)
        fleet, flows = self._fleet(), self._flows(served)
        tenants = self._tenants(served, flows)
        for flow in flows:
            self._check_longest_step(flow)
        capacity = fleet.requests_per_second(flows)
        rate = DEFAULT_LOAD * capacity if self.rate is None else self.rate or float("inf")
        workload = Workload(self.requests, rate, flows, self.step_base_ms * 1e-3)
        policy = Policy(self.num_scheduler_steps, self.max_prefill_tokens, self.max_mixed_step_ms / 1e3)
        bounds = QueueBounds(self.max_queued_requests, self.max_queued_tokens)
        mesh = CapacityMesh(
            fleet,
            workload,
            policy,
            bounds,
            self.seed,
            tenants,
            tuple(served.values()),
            AdmissionMode(self.admission_mode),
            progress,
        )
        mesh.run()
        return {
            "study": {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()},
            "requests_per_second_estimated": rounded(capacity),
            "requests_per_second_offered": rounded(rate) if isfinite(rate) else None,
            **answer(mesh.result()),
        }

    def check(self) -> None:
        """Raises ConfigError naming the option that makes no sense."""
        for option, (least, most) in _RANGES.items():
            if not least <= (value := getattr(self, option)) <= most:
                problem = (
                    f"too small; at least {least}" if value < least else f"not in the range from {least} to {most}"
                )
                raise ConfigError(flag(option), f"{value} is {problem}")
        if self.rate and not _LEAST_RATE <= self.rate <= _MOST_RATE:
            raise ConfigError("--rate", f"{self.rate} is neither 0 nor in the range from {_LEAST_RATE} to {_MOST_RATE}")
        if self.admission_mode not in {mode.value for mode in AdmissionMode}:
            names = ", ".join(mode.value for mode in AdmissionMode)
            raise ConfigError("--admission-mode", f"{self.admission_mode!r} is none of {names}")
        if self.speed_spread >= 1:
            raise ConfigError("--speed-spread", f"{self.speed_spread} is not below 1")
        if self.step_base_ms * 1e6 + self.step_token_us * 1e3 + self.step_context_ns < 1:
            raise ConfigError("--step-base-ms", "a step must take some time, at least 1 ns")
        if self.workers * self.num_blocks > _MOST_BLOCKS:
            problem = f"{self.num_blocks} for each of {self.workers} workers are more than {_MOST_BLOCKS} to simulate"
            raise ConfigError("--num-blocks", problem)

    def _check_longest_step(self, flow: Flow) -> None:
        """Of a worker that is silent for too long the scheduler thinks that it hangs. Raises ConfigError."""
        prompt, output = flow.prompt, flow.output
        if prompt.mean + output.mean > self.max_model_len:
            problem = f"{prompt.mean} of prompt + {output.mean} of output are more than that"
            raise ConfigError("--max-model-len", problem)
        length = min(self.max_model_len, prompt.longest + output.longest)
        slowness = 1 + self.speed_spread
        parts = {
            "step_base_ms": self.step_base_ms * 1e-3 * slowness,
            "step_token_us": self.step_token_us * 1e-6 * self.max_num_batched_tokens * slowness,
            "step_context_ns": self.step_context_ns * 1e-9 * self.max_num_seqs * length * slowness,
            # All of it out, and other blocks in.
            "swap_block_us": self.swap_block_us * 1e-6 * 2 * self.swap_blocks,
            "message_delay_ms": self.message_delay_ms * 1e-3 * 2,
        }
        longest_s = HUNG_TIMES[Foreseen.BY_NOBODY] * HUNG_SECONDS
        if (seconds := sum(parts.values())) >= longest_s:
            longest = max(parts, key=lambda option: parts[option])
            raise ConfigError(
                flag(longest),
                f"{getattr(self, longest)} makes a full step take up to {seconds:.0f} s with its messages; "
                f"a worker that is silent for {longest_s:.0f} s is taken for one that hangs",
            )

    def _fleet(self) -> Fleet:
        info: WorkerInfo = simulated_info(
            block_size=self.block_size,
            num_blocks=self.num_blocks,
            max_num_seqs=self.max_num_seqs,
            max_num_batched_tokens=self.max_num_batched_tokens,
            max_model_len=self.max_model_len,
            num_swap_blocks=self.swap_blocks,
            swap_block_ns=round(self.swap_block_us * 1e3),
        )
        cost = StepCost(self.step_base_ms * 1e-3, self.step_token_us * 1e-6, self.step_context_ns * 1e-9)
        return Fleet(self.workers, info, cost, self.speed_spread, self.message_delay_ms * 1e-3, self.prefix_caching)

    def _flows(self, served: Collection[str]) -> tuple[Flow, ...]:
        """Raises ConfigError."""
        prompt = to_lengths("--prompt-tokens", self.prompt_tokens)
        base = Flow(
            name="",
            prompt=prompt,
            output=to_lengths("--output-tokens", self.output_tokens),
            max_tokens=self.max_tokens,
            n=self.n,
            arrivals=to_arrivals("--arrivals", self.arrivals),
            burst_size=self.burst_size,
            cancel_ratio=self.cancel_ratio,
            **to_prefix("--shared-prefix", self.shared_prefix, prompt.mean),
        )
        shares = to_classes("--classes", self.classes, served)
        if self.flow:
            made = [to_flow("--flow", text, base, served) for text in self.flow]
        else:
            made = [replace(base, name=name, share=share, traffic_class=name) for name, share in shares]
        _check_unique("--flow" if self.flow else "--classes", [each.name for each in made])
        return tuple(made)

    def _tenants(self, served: Collection[str], flows: Sequence[Flow]) -> tuple[NamedPlan, ...]:
        """Those that are named, or, if none are, those of the flows, without limits. Raises ConfigError."""
        if not self.tenant and any(flow.tenant for flow in flows):
            plans = [NamedPlan(name) for name in dict.fromkeys(flow.tenant for flow in flows) if name]
        else:
            plans = [to_tenant("--tenant", text, served) for text in self.tenant]
        _check_unique("--tenant", [plan.tenant for plan in plans])
        _check_tenants(flows, [plan.tenant for plan in plans])
        return tuple(plans)


def _check_unique(where: str, names: Sequence[str]) -> None:
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise ConfigError(where, f"{twice[0]!r} is there twice")


def _check_tenants(flows: Sequence[Flow], known: Sequence[str]) -> None:
    """Where there are tenants, each flow is of one of them: a scheduler refuses the others. Raises ConfigError."""
    for flow in flows:
        if known and flow.tenant not in known:
            what = f"there is no tenant {flow.tenant!r}" if flow.tenant else "it is of no tenant"
            raise ConfigError("--flow", f"{flow.name!r}: {what}; there are {', '.join(known)}")


# Least and most of each option. Above some of these a run would take more memory or hours than a laptop has.
_RANGES: dict[str, tuple[float, float]] = {
    "workers": (1, 1000),
    "requests": (1, 10_000_000),
    "seed": (0, 2**63 - 1),
    "burst_size": (1, 10_000_000),
    "max_tokens": (0, MAX_TOKENS),
    "n": (1, 1024),
    "cancel_ratio": (0, 1),
    "block_size": (1, 65_536),
    "num_blocks": (1, 10_000_000),
    "swap_blocks": (0, 10_000_000),
    "swap_block_us": (0, 1_000_000),
    "max_num_seqs": (1, 65_536),
    "max_num_batched_tokens": (1, MAX_TOKENS),
    "max_model_len": (2, MAX_TOKENS),
    "step_base_ms": (0, 300_000),
    "step_token_us": (0, 100_000_000),
    "step_context_ns": (0, 100_000_000),
    "speed_spread": (0, 1),
    "message_delay_ms": (0, 60_000),
    "num_scheduler_steps": (0, 4096),
    "max_prefill_tokens": (0, MAX_TOKENS),
    "max_mixed_step_ms": (1, 300_000),
    "max_queued_requests": (1, 10_000_000),
    "max_queued_tokens": (1, 10**12),
}
_LEAST_RATE = 0.01
_MOST_RATE = 1_000_000
# Of all workers together; each block takes some 50 bytes.
_MOST_BLOCKS = 20_000_000
