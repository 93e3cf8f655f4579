"""The lines of a contract that names none: what its loads and its promises imply. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tercet.load.slo import Slo

from .measure import MEASURES
from .spec import Line, LoadSpec, OutputsSpec

# Of outputs and faults, which need nothing else.
_ALWAYS = (
    "wrong_finish_reasons", "wrong_usage", "changed_by_company", "changed_by_repeat", "going_on_after_cancel",
    "wrong_ends", "blocks_left", "requests_left", "freed_p99_ms",
)  # fmt: skip
# Where nothing is said: of requests that come at a rate that the server can serve, and of those that are too many.
_QUALIFIED_PERCENT = 95.0
_GOODPUT_PERCENT = 80.0
_REFUSED_MS = 1_000.0


def standard_lines(loads: Mapping[str, LoadSpec], slo: Mapping[str, Slo], outputs: OutputsSpec) -> tuple[Line, ...]:
    """Of each load that stands for itself the promises, at P95; of one that is `of` another that it is withstood."""
    lines: list[Line] = []
    for name, load in loads.items():
        lines += _overload(name, slo) if load.of else _load(name, slo)
    if outputs.references:
        lines.append(_line("wrong_references"))
    lines += [_line(name) for name in _ALWAYS]
    return tuple(lines)


def _load(name: str, slo: Mapping[str, Slo]) -> Iterator[Line]:
    for traffic_class, promise in slo.items():
        for kind in ("ttft", "gap", "largest_gap", "e2e"):
            limit_s = getattr(promise, f"{kind}_s")
            if limit_s is not None:
                yield _line(f"{kind}_p95_ms", limit_s * 1e3, name, traffic_class)
    yield _line("failed_percent", None, name)
    if slo:
        yield _line("qualified_percent", _QUALIFIED_PERCENT, name)


def _overload(name: str, slo: Mapping[str, Slo]) -> Iterator[Line]:
    yield _line("untyped_refusals", None, name)
    yield _line("refused_p99_ms", _REFUSED_MS, name)
    if slo:
        yield _line("goodput_percent", _GOODPUT_PERCENT, name)
        yield _line("accepted_kept_percent", _QUALIFIED_PERCENT, name)


def _line(measure_name: str, limit: float | None = None, load: str = "", traffic_class: str = "") -> Line:
    measure = MEASURES[measure_name]
    limit = measure.limit if limit is None else limit
    assert limit is not None
    of = ", ".join(each for each in (load, traffic_class) if each)
    return Line(f"{measure.says} ({of})" if of else measure.says, measure_name, limit, load, None, traffic_class)
