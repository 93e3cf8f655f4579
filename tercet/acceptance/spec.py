"""A contract as people write it down, and what belongs to it: loads, promises, questions. Data alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from tercet import setting_check as checks
from tercet.load.arrivals import parse_arrivals
from tercet.load.principals import Principals, parse_classes, parse_priorities, parse_tenant
from tercet.load.slo import Slo
from tercet.load.summary import MAX_LAG_MS
from tercet.load.workload import SYNTHETIC, Workload
from tercet.load.workload_error import number
from tercet.setting_check import Check
from tercet.setting_field import setting

from .measure import MEASURES, Measure

_MOST_MS = checks.MAX_SECONDS * 1e3


def _percent(value: float) -> str | None:
    return checks.between(0, 100)(value)


_milliseconds: Check = checks.between(0, _MOST_MS)


@dataclass(frozen=True, slots=True)
class LoadSpec:
    """``[load.NAME]``: a mix of requests, how they come, and for how long. Forms are those of `tercet bench run`."""

    input: str = setting("short", "tokens of prompts, as --input")
    output: str = setting("short", "max_tokens of requests, as --output")
    arrivals: str = setting("poisson", "how requests come, as --arrivals")
    rate: str = setting("1", "requests a second; several, measured one after the other, are capacity's sweep")
    times: float = setting(
        0.0, "instead of `rate`: so many times the most qualified requests of `of`", checks.between(0, 1e3)
    )
    of: str = setting("", "the load that `times` and `goodput_percent` are about")
    duration_s: float = setting(0.0, "how long requests are due; 30 where `requests` says nothing", checks.seconds(0))
    requests: int = setting(0, "so many at most", checks.count(0))
    warm_up_s: float = setting(0.0, "of the duration: in no figure", checks.seconds(0))
    patience_s: float = setting(60.0, "what is not over so long after the last was due has failed", checks.seconds(0.1))
    max_concurrency: int = setting(0, "requests at a time; 0: as many as are due", checks.count(0))
    classes: str = setting("", "traffic classes and weights, as --classes")
    priorities: str = setting("", "priorities and weights, as --priorities")
    tenants: tuple[str, ...] = setting((), "who asks, as --tenant")
    prompts: str = setting(SYNTHETIC, "synthetic, or a file, as --prompts")
    cancel_percent: float = setting(0.0, "requests whose clients go away", _percent)
    slow_reader_percent: float = setting(0.0, "requests that are read slowly", _percent)
    ignore_eos: bool = setting(True, "outputs are as long as `output` says, whatever the model writes")
    seed: int = setting(0, "same seed, same requests")

    def workload(self, slo: Mapping[str, Slo], rate: float | None = None) -> Workload:
        """With another rate in the place of its own. Raises WorkloadError."""
        rates = (
            (rate,) if rate is not None else tuple(number("rate", each, least=1e-6) for each in self.rate.split(","))
        )
        return Workload(
            input=self.input,
            output=self.output,
            arrivals=self.arrivals,
            rates=rates,
            duration_s=self.duration_s or (0.0 if self.requests else 30.0),
            requests=self.requests,
            warm_up_s=self.warm_up_s,
            patience_s=self.patience_s,
            max_concurrency=self.max_concurrency,
            seed=self.seed,
            prompts=self.prompts,
            principals=Principals(
                tuple(map(parse_tenant, self.tenants)),
                parse_classes(self.classes) if self.classes else {},
                parse_priorities(self.priorities) if self.priorities else {},
            ),
            cancel_ratio=self.cancel_percent / 100,
            slow_reader_ratio=self.slow_reader_percent / 100,
            ignore_eos=self.ignore_eos,
            slo=slo,
        )

    @property
    def has_rate(self) -> bool:
        """Whether requests come at a rate. Raises WorkloadError."""
        return parse_arrivals("arrivals", self.arrivals).has_rate


@dataclass(frozen=True, slots=True)
class SloSpec:
    """``[slo.CLASS]``: what a qualified request of a class keeps; ``[slo.all]`` is of all others. 0 is no limit."""

    ttft_ms: float = setting(0.0, "to the first token, from when it was due", _milliseconds)
    gap_ms: float = setting(0.0, "mean time between two tokens", _milliseconds)
    largest_gap_ms: float = setting(0.0, "longest time without a token", _milliseconds)
    e2e_ms: float = setting(0.0, "the whole request", _milliseconds)

    def slo(self) -> Slo:
        """In seconds."""
        return Slo(*(each / 1e3 or None for each in (self.ttft_ms, self.gap_ms, self.largest_gap_ms, self.e2e_ms)))


@dataclass(frozen=True, slots=True)
class OutputsSpec:
    """``[outputs]``: the questions whose answers are looked at."""

    references: str = setting("", "the file that --record writes and `wrong_references` compares with")
    prompts: tuple[str, ...] = setting(
        (
            "The capital of France is",
            "def fibonacci(n):",
            "Once upon a time, in a small village by the sea,",
            "1, 2, 3, 4,",
        ),
        "texts to continue",
    )
    chats: tuple[str, ...] = setting(
        ("Say hello in one word.", "What is the color of the sky? Answer in one sentence."), "questions of chats"
    )
    max_tokens: int = setting(24, "of each answer", checks.count(4, 4096))
    company: int = setting(8, "requests that run beside one, for `changed_by_company`", checks.count(1, 1024))
    timeout_s: float = setting(60.0, "what is not answered by then is wrong", checks.seconds(0.1))


@dataclass(frozen=True, slots=True)
class FaultsSpec:
    """``[faults]``: clients that go away before the first token, that go away in mid-generation, and that read slowly;
    so many of each, beside as many that do nothing of the kind."""

    requests: int = setting(4, "of each kind", checks.count(1, 4096))
    prompt_tokens: int = setting(48, "of each prompt", checks.count(1))
    max_tokens: int = setting(48, "of each output", checks.count(4))
    slow_tokens_per_s: float = setting(16.0, "what a slow reader reads", checks.between(0.1, 1e6))
    settle_s: float = setting(10.0, "how long a server may take to be idle again", checks.seconds(0))
    timeout_s: float = setting(60.0, "what is not over by then ends wrong", checks.seconds(0.1))


@dataclass(frozen=True, slots=True)
class CapacitySpec:
    """``[capacity]``: when a rate holds."""

    held_percent: float = setting(95.0, "of all requests keep their SLO at a rate that holds", _percent)


@dataclass(frozen=True, slots=True)
class ClientSpec:
    """``[client]``: what is asked of the client itself."""

    max_lag_ms: float = setting(MAX_LAG_MS, "at P99, from due to sent; one that is later was the limit", _milliseconds)


@dataclass(frozen=True, slots=True)
class CostSpec:
    """``[cost]``: what the time of workers costs, in a currency of one's own."""

    worker_hour: float = setting(0.0, "an hour of one worker", checks.between(0, checks.MAX_PRICE))
    workers: int = setting(0, "how many there are; 0: as many as the mesh says", checks.count(0))


@dataclass(frozen=True, slots=True)
class LineSpec:
    """``[[line]]``: one line of the contract. What is 0 or empty is left open."""

    measure: str = setting("", "what is measured; docs/accept.md has the list")
    name: str = setting("", "for people; by default what is measured, and of which load and class")
    limit: float = setting(0.0, "the most, or of capacities and parts the least, that is agreed")
    load: str = setting("", "of which load; by default the first")
    rate: float = setting(0.0, "of which rate of the load; by default the first", checks.between(0, 1e6))
    traffic_class: str = setting("", "only requests of this class")
    from_s: float = setting(0.0, "only requests due from then on", checks.seconds(0))
    until_s: float = setting(0.0, "only requests due before", checks.seconds(0))
    required: bool = setting(False, "it fails where the server does not say what is needed")


@dataclass(frozen=True, slots=True)
class Line:
    """A line as it is judged."""

    name: str
    measure_name: str
    limit: float
    load: str = ""
    rate: float | None = None
    traffic_class: str = ""
    from_s: float = 0.0
    until_s: float | None = None
    required: bool = False

    @property
    def measure(self) -> Measure:
        """What it is about."""
        return MEASURES[self.measure_name]

    def holds(self, figure: float) -> bool:
        """Whether a figure is within the limit."""
        return figure >= self.limit if self.measure.is_least else figure <= self.limit

    def limited(self) -> str:
        """The limit with its direction and unit."""
        return f"{'>=' if self.measure.is_least else '<='} {self.limit:g}{_behind(self.measure.unit)}"

    def shown(self, figure: float) -> str:
        """A figure with its unit."""
        return f"{figure:,.6g}{_behind(self.measure.unit)}" if abs(figure) < 1e15 else f"{figure:g}"


def _behind(unit: str) -> str:
    return f" {unit}" if unit.isalpha() else unit


@dataclass(frozen=True, slots=True)
class Spec:
    """A contract. `slo` is by class, the empty name is all others."""

    loads: Mapping[str, LoadSpec]
    slo: Mapping[str, Slo]
    lines: tuple[Line, ...]
    outputs: OutputsSpec = field(default_factory=OutputsSpec)
    faults: FaultsSpec = field(default_factory=FaultsSpec)
    capacity: CapacitySpec = field(default_factory=CapacitySpec)
    client: ClientSpec = field(default_factory=ClientSpec)
    cost: CostSpec = field(default_factory=CostSpec)

    def needed_loads(self) -> tuple[str, ...]:
        """Those that lines are about, and those that these are measured by, in the order in which they run."""
        wanted = {line.load for line in self.lines if line.load}
        wanted |= {self.loads[name].of for name in wanted if self.loads[name].of}
        return tuple(
            sorted((name for name in self.loads if name in wanted), key=lambda name: bool(self.loads[name].of))
        )

    def has_measure(self, *names: str) -> bool:
        """Whether a line has one of these measures."""
        return any(line.measure_name in names for line in self.lines)

    def with_references(self, path: str) -> Spec:
        """With another file of recorded outputs."""
        return replace(self, outputs=replace(self.outputs, references=path))
