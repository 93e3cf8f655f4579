"""A question of capacity in an operator's terms, and its answer as plain data: what `tercet simulate` is about."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from math import isfinite
from typing import Any

from tercet.errors import ConfigError

from ..admission import QueueBounds
from ..events import WorkerInfo
from ..planner import Policy
from ..traffic_class import CLASSES, DEFAULT_CLASS
from .capacity import CapacityMesh, Fleet, Result, simulated_info
from .cost import StepCost
from .spread import Spread
from .workload import Arrivals, Lengths, Workload

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
        for option, least in _LEAST.items():
            if not getattr(self, option) >= least:
                raise ConfigError(_flag(option), f"{getattr(self, option)} is too small; at least {least}")
        for option in ("rate", *_LEAST):
            if isinstance(value := getattr(self, option), float) and not isfinite(value):
                raise ConfigError(_flag(option), f"{value} is not finite")
        if self.rate is not None and self.rate < 0:
            raise ConfigError("--rate", f"{self.rate} is negative")
        if self.arrivals not in {each.value for each in Arrivals}:
            raise ConfigError(
                "--arrivals", f"{self.arrivals!r} is none of {', '.join(each.value for each in Arrivals)}"
            )
        if self.cancel_ratio > 1:
            raise ConfigError("--cancel-ratio", f"{self.cancel_ratio} is more than 1")
        if self.speed_spread >= 1:
            raise ConfigError("--speed-spread", f"{self.speed_spread} is not below 1")
        if not self.step_base_ms + self.step_token_us + self.step_context_ns:
            raise ConfigError("--step-base-ms", "a step must take some time")

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


_LEAST: dict[str, float] = {
    "workers": 1,
    "requests": 1,
    "seed": 0,
    "burst_size": 1,
    "max_tokens": 0,
    "n": 1,
    "cancel_ratio": 0,
    "block_size": 1,
    "num_blocks": 1,
    "swap_blocks": 0,
    "swap_block_us": 0,
    "max_num_seqs": 1,
    "max_num_batched_tokens": 1,
    "max_model_len": 2,
    "step_base_ms": 0,
    "step_token_us": 0,
    "step_context_ns": 0,
    "speed_spread": 0,
    "message_delay_ms": 0,
    "num_scheduler_steps": 0,
    "max_prefill_tokens": 0,
    "max_mixed_step_ms": 1,
    "max_queued_requests": 1,
    "max_queued_tokens": 1,
}


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
    if len(parts) > 3 or mean < 1 or not 0 <= sigma <= 4 or most < mean:
        raise ConfigError(
            flag, f"{text!r} is not MEAN[:SIGMA[:MOST]] with MEAN >= 1, SIGMA from 0 to 4 and MOST >= MEAN"
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
    if len(parts) > 3 or not 0 <= ratio <= 1 or tokens < 0 or count < 1:
        problem = f"{text!r} is not RATIO[:TOKENS[:COUNT]] with RATIO from 0 to 1 and COUNT >= 1"
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
        if name not in CLASSES or not 0 < share < float("inf"):
            served = ", ".join(CLASSES)
            raise ConfigError(
                "--classes", f"{part.strip()!r} is not NAME=WEIGHT with NAME one of {served} and WEIGHT > 0"
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
