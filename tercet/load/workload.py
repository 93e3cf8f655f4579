"""What a server is to be asked, as people write it down. The same workload is the same requests, wherever it runs."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .arrivals import Arrivals, Kind, parse_arrivals
from .lengths import INPUTS, OUTPUTS, Lengths, parse_lengths
from .principals import Principals
from .slo import Slo
from .trace import Recorded, read_trace
from .workload_error import WorkloadError, number

SYNTHETIC = "synthetic"
# A second.
LEAST_RATE, MOST_RATE = 1e-6, 1e6


@dataclass(frozen=True, slots=True)
class SharedPrefix:
    """The part of all requests that begin with one of `groups` common texts of so many tokens."""

    part: float
    tokens: int
    groups: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Raises WorkloadError for what cannot be.

    Each of `rates` is a point of the sweep, one after the other: requests a second; of a trace, how many times faster
    than recorded; all at once and closed loops have none. A point ends when requests have been due for `duration_s`
    seconds or `requests` were, whichever comes first; 0 is no limit, and one of them has to be.
    """

    # As tercet.load.lengths and tercet.load.arrivals read them; a trace's lengths go before `input` and `output`.
    input: str = "medium"
    output: str = "chat"
    arrivals: str = "poisson"
    trace: str = ""
    rates: tuple[float, ...] = (1.0,)
    duration_s: float = 0.0
    requests: int = 0
    # Of the duration: what is due by then is in no figure.
    warm_up_s: float = 0.0
    seed: int = 0
    # SYNTHETIC, or a file: a text, or questions if its name ends with .json or .jsonl.
    prompts: str = SYNTHETIC
    principals: Principals = field(default_factory=Principals)
    shared_prefix: SharedPrefix | None = None
    # Parts of all requests: whose clients lose interest, and whose clients read so slowly.
    cancel_ratio: float = 0.0
    slow_reader_ratio: float = 0.0
    slow_reader_tokens_per_s: float = 2.0
    ignore_eos: bool = False
    temperature: float = 0.0
    # Deadline of each request; None: the server's.
    timeout_s: float | None = None
    # Requests at a time; 0: as many as are due. Others wait in the client, and their latencies count it.
    max_concurrency: int = 0
    # By class, the empty one is all others. Without any the server's own, where it tells them.
    slo: Mapping[str, Slo] = field(default_factory=dict)
    # How long requests may take when no more are due; then they are broken off, and have failed.
    patience_s: float = 60.0

    def __post_init__(self) -> None:
        for name in ("cancel_ratio", "slow_reader_ratio"):
            number(name, str(getattr(self, name)), most=1.0)
        number("slow_reader_tokens_per_s", str(self.slow_reader_tokens_per_s), least=1e-3)
        for name in ("duration_s", "warm_up_s", "patience_s", "temperature", "requests", "max_concurrency"):
            number(name, str(getattr(self, name)))
        if not self.rates:
            raise WorkloadError("rates", "there is none")
        for rate in self.rates:
            number("rates", str(rate), least=LEAST_RATE, most=MOST_RATE)
        arrivals, _, _ = self.how(), self.input_lengths(), self.output_lengths()
        if len(self.rates) > 1 and not arrivals.has_rate and not self.trace:
            raise WorkloadError("rates", f"{self.arrivals} has no rate to be swept")
        if arrivals.kind is Kind.AT_ONCE and not self.requests:
            raise WorkloadError("requests", "is needed for requests that come all at once")
        if not self.duration_s and not self.requests and not self.trace:
            raise WorkloadError("duration_s", "is needed, or a number of requests: nothing else ends the load")
        if self.duration_s and self.warm_up_s >= self.duration_s:
            raise WorkloadError("warm_up_s", f"{self.warm_up_s:g} s leave nothing of the {self.duration_s:g} s")
        if self.shared_prefix is not None and self.reads_questions:
            raise WorkloadError("shared_prefix", "questions of a file have beginnings of their own")

    @property
    def reads_questions(self) -> bool:
        """Whether prompts are questions of a file."""
        return self.prompts != SYNTHETIC and Path(self.prompts).suffix in (".json", ".jsonl")

    def how(self) -> Arrivals:
        """How requests come."""
        return Arrivals(Kind.TRACE) if self.trace else parse_arrivals("arrivals", self.arrivals)

    def input_lengths(self) -> Lengths:
        """Of prompts."""
        return parse_lengths("input", self.input, INPUTS)

    def output_lengths(self) -> Lengths:
        """Of outputs."""
        return parse_lengths("output", self.output, OUTPUTS)

    def recorded(self) -> tuple[Recorded, ...]:
        """The trace's requests. Raises WorkloadError."""
        return read_trace(Path(self.trace)) if self.trace else ()

    def to_data(self) -> dict[str, Any]:
        """As JSON has it, without keys."""
        data = {item.name: getattr(self, item.name) for item in dataclasses.fields(self)}
        principals = self.principals
        data["principals"] = {
            "tenants": [
                {"name": each.name, "weight": each.weight, "class": each.traffic_class, "priority": each.priority}
                for each in principals.tenants
            ],
            "classes": dict(principals.classes),
            "priorities": {str(priority): weight for priority, weight in principals.priorities.items()},
        }
        data["slo"] = {name: dataclasses.asdict(slo) for name, slo in self.slo.items()}
        data["shared_prefix"] = self.shared_prefix and dataclasses.asdict(self.shared_prefix)
        data["rates"] = list(self.rates)
        return data
