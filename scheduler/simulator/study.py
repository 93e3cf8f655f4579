"""A question of capacity in an operator's terms, and its answer as plain data: what `tercet simulate` is about."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from math import isfinite
from typing import Any

from tercet.errors import ConfigError

from ..admission import QueueBounds
from ..core import STALL_SECONDS
from ..events import WorkerInfo
from ..planner import Policy
from ..traffic_class import CLASSES, DEFAULT_CLASS
from .capacity import CapacityMesh, Fleet, Result, simulated_info
from .cost import StepCost
from .spread import Spread
from .workload import MAX_TOKENS, Arrivals, Lengths, Workload

# Of what the workers can do by estimate: busy, and far enough from the knee that queues stay short.
DEFAULT_LOAD = 0.7


@dataclass(frozen=True, slots=True)
class Study:
    """All options. Lengths are ``MEAN[:SIGMA[:MOST]]`` in tokens, a shared prefix ``RATIO[:TOKENS[:COUNT]]``, classes
    ``NAME=WEIGHT,...``; `rate` None is 70 % of the estimated capacity, 0 is all at once."""

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

    def run(self, progress: Callable[[int], None] = lambda _: None) -> dict[str, Any]:
        """The answer; the same study gives the same. `progress` is told how many requests are over.

        Raises ConfigError naming the option that makes no sense.
        """
        self.check()
        fleet = self._fleet()
        prompt = _lengths("--prompt-tokens", self.prompt_tokens)
        output = _lengths("--output-tokens", self.output_tokens)
        if prompt.mean + output.mean > self.max_model_len:
            problem = f"{prompt.mean} of prompt + {output.mean} of output are more than that"
            raise ConfigError("--max-model-len", problem)
        self._check_longest_step(prompt, output)
        capacity = fleet.requests_per_second(prompt.mean, output.mean, self.n)
        rate = DEFAULT_LOAD * capacity if self.rate is None else self.rate or float("inf")
        workload = self._workload(rate, prompt, output)
        policy = Policy(self.num_scheduler_steps, self.max_prefill_tokens, self.max_mixed_step_ms / 1e3)
        bounds = QueueBounds(self.max_queued_requests, self.max_queued_tokens)
        mesh = CapacityMesh(fleet, workload, policy, bounds, self.seed, progress)
        mesh.run()
        return {
            "study": asdict(self),
            "requests_per_second_estimated": _rounded(capacity),
            "requests_per_second_offered": _rounded(rate) if isfinite(rate) else None,
            **_answer(mesh.result()),
        }

    def check(self) -> None:
        """Raises ConfigError naming the option that makes no sense."""
        for option, (least, most) in _RANGES.items():
            if not least <= (value := getattr(self, option)) <= most:
                problem = (
                    f"too small; at least {least}" if value < least else f"not in the range from {least} to {most}"
                )
                raise ConfigError(_flag(option), f"{value} is {problem}")
        if self.rate and not _LEAST_RATE <= self.rate <= _MOST_RATE:
            raise ConfigError("--rate", f"{self.rate} is neither 0 nor in the range from {_LEAST_RATE} to {_MOST_RATE}")
        if self.arrivals not in {each.value for each in Arrivals}:
            raise ConfigError(
                "--arrivals", f"{self.arrivals!r} is none of {', '.join(each.value for each in Arrivals)}"
            )
        if self.speed_spread >= 1:
            raise ConfigError("--speed-spread", f"{self.speed_spread} is not below 1")
        if self.step_base_ms * 1e6 + self.step_token_us * 1e3 + self.step_context_ns < 1:
            raise ConfigError("--step-base-ms", "a step must take some time, at least 1 ns")
        if self.workers * self.num_blocks > _MOST_BLOCKS:
            problem = f"{self.num_blocks} for each of {self.workers} workers are more than {_MOST_BLOCKS} to simulate"
            raise ConfigError("--num-blocks", problem)

    def _check_longest_step(self, prompt: Lengths, output: Lengths) -> None:
        """Of a worker that is silent for too long the scheduler thinks that it hangs. Raises ConfigError."""
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
        if (seconds := sum(parts.values())) >= STALL_SECONDS:
            longest = max(parts, key=lambda option: parts[option])
            raise ConfigError(
                _flag(longest),
                f"{getattr(self, longest)} makes a full step take up to {seconds:.0f} s with its messages; "
                f"a worker that is silent for {STALL_SECONDS:.0f} s is taken for one that hangs",
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

    def _workload(self, rate: float, prompt: Lengths, output: Lengths) -> Workload:
        ratio, tokens, count = _shared_prefix(self.shared_prefix, prompt.mean)
        return Workload(
            requests=self.requests,
            rate=rate,
            arrivals=Arrivals(self.arrivals),
            burst_size=self.burst_size,
            prompt=prompt,
            output=output,
            max_tokens=self.max_tokens or output.bound,
            prefix_ratio=ratio,
            prefix_tokens=tokens,
            prefixes=count,
            cancel_ratio=self.cancel_ratio,
            n=self.n,
            classes=_classes(self.classes),
            token_s=self.step_base_ms * 1e-3,
        )


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
# Of all workers together, and of all common texts; each block takes some 50 bytes, each token of a text one, and a text
# some 100 besides.
_MOST_BLOCKS = 20_000_000
_MOST_PREFIX_TOKENS = 100_000_000
_MOST_PREFIXES = 1_000_000
_WEIGHTS = (1e-6, 1e6)


def _flag(option: str) -> str:
    return "--" + option.replace("_", "-")


def _lengths(flag: str, text: str) -> Lengths:
    """Raises ConfigError."""
    parts = text.split(":")
    try:
        mean = int(parts[0])
        sigma = float(parts[1]) if len(parts) > 1 else 0.0
        most = int(parts[2]) if len(parts) > 2 else Lengths(mean).most
    except ValueError:
        mean = 0
        sigma, most = 0.0, 0
    if len(parts) > 3 or mean < 1 or not 0 <= sigma <= 4 or not mean <= most <= MAX_TOKENS:
        raise ConfigError(
            flag,
            f"{text!r} is not MEAN[:SIGMA[:MOST]] with MEAN >= 1, SIGMA from 0 to 4 and MOST from MEAN to {MAX_TOKENS}",
        )
    return Lengths(mean, sigma, most)


def _shared_prefix(text: str, mean: int) -> tuple[float, int, int]:
    """(ratio, tokens, count). Raises ConfigError."""
    parts = text.split(":")
    try:
        ratio = float(parts[0])
        tokens = int(parts[1]) if len(parts) > 1 else mean // 2
        count = int(parts[2]) if len(parts) > 2 else 1
    except ValueError:
        ratio, tokens, count = -1.0, 0, 0
    if len(parts) > 3 or not 0 <= ratio <= 1 or tokens < 0 or not 1 <= count <= _MOST_PREFIXES:
        problem = f"{text!r} is not RATIO[:TOKENS[:COUNT]] with RATIO from 0 to 1 and COUNT from 1 to {_MOST_PREFIXES}"
        raise ConfigError("--shared-prefix", problem)
    if tokens * count > _MOST_PREFIX_TOKENS:
        problem = f"{text!r}: COUNT texts of TOKENS tokens are more than {_MOST_PREFIX_TOKENS} tokens"
        raise ConfigError("--shared-prefix", problem)
    return ratio, tokens, count


def _classes(text: str) -> tuple[tuple[str, float], ...]:
    """Raises ConfigError."""
    classes = []
    for part in text.split(","):
        name, _, weight = part.strip().partition("=")
        try:
            share = float(weight or 1)
        except ValueError:
            share = -1.0
        if name not in CLASSES or not _WEIGHTS[0] <= share <= _WEIGHTS[1]:
            served = ", ".join(CLASSES)
            raise ConfigError(
                "--classes",
                f"{part.strip()!r} is not NAME=WEIGHT with NAME one of {served} and WEIGHT from "
                f"{_WEIGHTS[0]:g} to {_WEIGHTS[1]:g}",
            )
        classes.append((name, share))
    return tuple(classes)


def _answer(result: Result) -> dict[str, Any]:
    tally = result.tally
    prompt_tokens = result.prompt_tokens_cached + result.prompt_tokens_computed
    seconds = result.seconds
    return {
        "seconds": _rounded(seconds),
        "requests": {
            "completed": tally.completed,
            "cancelled": tally.cancelled,
            "failed": dict(sorted(tally.failed.items())),
            "refused": dict(sorted(tally.refused.items())),
        },
        "problems": dict(sorted(tally.problems.items())),
        "requests_per_second": _rounded(tally.completed / seconds) if seconds else 0.0,
        "tokens": tally.tokens,
        "tokens_per_second": _rounded(tally.tokens / seconds) if seconds else 0.0,
        "ttft_ms": _milliseconds(tally.first_token),
        "ttft_ms_by_class": {
            name: _milliseconds(spread) for name, spread in sorted(tally.first_token_by_class.items())
        },
        "gap_ms": _milliseconds(tally.gap),
        "queue_ms": _milliseconds(tally.queue),
        "total_ms": _milliseconds(tally.total),
        "worker_busy_ratio": _rounded(result.busy),
        "kv_used_ratio": {"mean": _rounded(result.blocks_used), "max": _rounded(result.blocks_used_most)},
        "prefix_hit_ratio": _rounded(result.prompt_tokens_cached / prompt_tokens) if prompt_tokens else 0.0,
        "preemptions": tally.preemptions,
        "swaps": tally.swaps,
        "plans": tally.plans,
        "plan_steps_mean": _rounded(tally.plan_steps / tally.plans) if tally.plans else 0.0,
        "revocations": tally.revocations,
        "steps": tally.steps,
    }


def _milliseconds(spread: Spread) -> dict[str, float]:
    numbers = {"mean": spread.mean, **{f"p{percent}": spread.percentile(percent) for percent in (50, 95, 99)}}
    return {name: _rounded(number * 1e3) for name, number in {**numbers, "max": spread.largest}.items()}


def _rounded(number: float) -> float:
    return round(number, 4)
