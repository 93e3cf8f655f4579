"""A contract from its TOML file: every problem at once, each by the key that it is about."""

from __future__ import annotations

import dataclasses
import difflib
import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from tercet.config import ConfigErrors
from tercet.errors import ConfigError
from tercet.load.principals import parse_classes
from tercet.load.slo import Slo
from tercet.load.workload_error import WorkloadError
from tercet.setting_field import build, noted

from .measure import MEASURES, Basis
from .spec import CapacitySpec, ClientSpec, CostSpec, FaultsSpec, Line, LineSpec, LoadSpec, OutputsSpec, SloSpec, Spec
from .standard import standard_lines

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

Section = TypeVar("Section")

# A table each, and tables of tables by name.
_PLAIN: Mapping[str, type[Any]] = {
    "outputs": OutputsSpec, "faults": FaultsSpec, "capacity": CapacitySpec, "client": ClientSpec, "cost": CostSpec,
}  # fmt: skip
_NAMED: Mapping[str, type[Any]] = {"load": LoadSpec, "slo": SloSpec}
_LINES = "line"
_ALL = "all"


def read_spec(path: Path) -> Spec:
    """Files that it names are looked for beside it. Raises ConfigError, ConfigErrors."""
    try:
        with path.open("rb") as file:
            data = tomllib.load(file)
    except OSError as error:
        raise ConfigError(str(path), f"cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(str(path), f"is not TOML: {error}") from error
    return to_spec(data, path.parent)


def to_spec(data: Mapping[str, Any], folder: Path) -> Spec:
    """The contract of what TOML says. Pure. Raises ConfigErrors."""
    known = (*_PLAIN, *_NAMED, _LINES)
    problems = [ConfigError(name, f"unknown table{_near(name, known)}") for name in data if name not in known]
    plain = {name: _section(name, kind(), data.get(name, {}), problems) for name, kind in _PLAIN.items()}
    named = {name: _sections(name, kind, data.get(name, {}), problems) for name, kind in _NAMED.items()}
    slo = {("" if name == _ALL else name): each.slo() for name, each in named["slo"].items()}
    slo = {name: each for name, each in slo.items() if each != Slo()}
    loads = {name: _beside(load, folder) for name, load in named["load"].items()}
    for name, load in loads.items():
        _check_load(name, load, loads, slo, problems)
    lines = _lines(data.get(_LINES), loads, slo, plain["cost"], plain["outputs"], problems)
    if problems:
        raise ConfigErrors(problems)
    outputs: OutputsSpec = plain["outputs"]
    if outputs.references:
        outputs = dataclasses.replace(outputs, references=str(folder / outputs.references))
    return Spec(loads, slo, lines, outputs, plain["faults"], plain["capacity"], plain["client"], plain["cost"])


def _section(where: str, base: Section, values: Any, problems: list[ConfigError]) -> Section:
    if not isinstance(values, dict):
        problems.append(ConfigError(where, "must be a table"))
        return base
    known = [each.name for each in dataclasses.fields(base)]  # type: ignore[arg-type]
    for name, value in values.items():
        if name not in known:
            problems.append(ConfigError(f"{where}.{name}", f"unknown key{_near(name, known)}"))
        elif isinstance(value, float) and not math.isfinite(value):
            problems.append(ConfigError(f"{where}.{name}", f"must be a number, is {value}"))
    return build(where, base, values, problems)


def _sections(where: str, kind: type[Any], tables: Any, problems: list[ConfigError]) -> dict[str, Any]:
    if not isinstance(tables, dict):
        problems.append(ConfigError(where, f"must be tables by name, such as [{where}.NAME]"))
        return {}
    built = {}
    for name, values in tables.items():
        key = f"{where}.{name}"
        if not isinstance(values, dict):
            problems.append(ConfigError(key, f"must be a table; the tables of {where} have names: [{where}.NAME]"))
            continue
        built[name] = _section(key, kind(), _texts(values), problems)
    return built


def _texts(values: Mapping[str, Any]) -> Mapping[str, Any]:
    """A rate may be a number or a list of numbers."""
    rate = values.get("rate")
    given = rate if isinstance(rate, list) else [rate]
    if rate is not None and all(isinstance(each, int | float) and not isinstance(each, bool) for each in given):
        return {**values, "rate": ",".join(f"{each:.12g}" for each in given)}
    return values


def _beside(load: LoadSpec, folder: Path) -> LoadSpec:
    if load.prompts == LoadSpec().prompts:
        return load
    return dataclasses.replace(load, prompts=str(folder / load.prompts))


def _check_load(
    name: str, load: LoadSpec, loads: Mapping[str, LoadSpec], slo: Mapping[str, Slo], problems: list[ConfigError]
) -> None:
    where = f"load.{name}"
    if not name or name in (".", "..") or set(name) & set("/\\\0"):
        problems.append(ConfigError(where, "its name must be one that a folder can have"))
    try:
        load.workload(slo)
        if load.times and not load.has_rate:
            problems.append(ConfigError(f"{where}.times", f"{load.arrivals} has no rate"))
    except WorkloadError as error:
        problems.append(ConfigError(f"{where}.{_KEYS.get(error.field, error.field)}", error.problem))
    if load.times and not load.of:
        problems.append(ConfigError(f"{where}.of", "is needed beside times: of which load"))
    if load.of and (load.of not in loads or load.of == name or loads[load.of].of):
        others = [other for other, each in loads.items() if other != name and not each.of]
        problems.append(
            ConfigError(f"{where}.of", f"must be a load of its own: {', '.join(others) or 'there is none'}")
        )


# Fields of a workload that the file calls otherwise.
_KEYS = {"rates": "rate", "cancel_ratio": "cancel_percent", "slow_reader_ratio": "slow_reader_percent"}


def _lines(
    given: Any,
    loads: Mapping[str, LoadSpec],
    slo: Mapping[str, Slo],
    cost: CostSpec,
    outputs: OutputsSpec,
    problems: list[ConfigError],
) -> tuple[Line, ...]:
    if given is None:
        return standard_lines(loads, slo, outputs)
    if not isinstance(given, list) or not given:
        problems.append(ConfigError(_LINES, "must be tables [[line]]"))
        return ()
    found: list[Line] = []
    for number, values in enumerate(given, start=1):
        where = f"{_LINES} {number}"
        spec = _section(where, LineSpec(), values, problems)
        if not isinstance(values, dict):
            continue
        with noted(problems):
            found.append(_line(where, spec, "limit" in values, loads))
            _check_line(where, found[-1], loads, cost, outputs)
    names = [line.name for line in found]
    twice = sorted({name for name in names if names.count(name) > 1})
    problems += [ConfigError(_LINES, f"several lines are called {name!r}: give them names") for name in twice]
    return tuple(found)


def _line(where: str, spec: LineSpec, has_limit: bool, loads: Mapping[str, LoadSpec]) -> Line:
    """Raises ConfigError."""
    measure = MEASURES.get(spec.measure)
    if measure is None:
        raise ConfigError(f"{where}.measure", f"{spec.measure!r} is not known{_near(spec.measure, MEASURES)}")
    limit = spec.limit if has_limit else measure.limit
    if limit is None:
        raise ConfigError(f"{where}.limit", f"is needed for {spec.measure}")
    load = spec.load
    if measure.basis is Basis.LOAD:
        if not loads:
            raise ConfigError(f"{where}.load", "there is none: [load.NAME] says what requests come")
        load = load or next(iter(loads))
        if load not in loads:
            raise ConfigError(f"{where}.load", f"there is no load.{load}{_near(load, loads)}")
        known = _classes(loads[load])
        if spec.traffic_class and known and spec.traffic_class not in known:
            problem = f"no request of load.{load} is of class {spec.traffic_class}{_near(spec.traffic_class, known)}"
            raise ConfigError(f"{where}.traffic_class", problem)
    elif load or spec.rate or spec.traffic_class or spec.from_s or spec.until_s:
        raise ConfigError(where, f"{spec.measure} is of no load: it has no load, rate, traffic_class, from_s, until_s")
    if spec.until_s and spec.until_s <= spec.from_s:
        raise ConfigError(f"{where}.until_s", f"must be above from_s, which is {spec.from_s:g}")
    of = [part for part in (load, spec.traffic_class) if part]
    name = spec.name or f"{measure.says} ({', '.join(of)})" if of else spec.name or measure.says
    return Line(
        name, spec.measure, limit, load, spec.rate or None, spec.traffic_class, spec.from_s, spec.until_s or None,
        spec.required,
    )  # fmt: skip


def _check_line(
    where: str,
    line: Line,
    loads: Mapping[str, LoadSpec],
    cost: CostSpec,
    outputs: OutputsSpec,
) -> None:
    """Raises ConfigError for what cannot be measured with the rest of the file."""
    needs = f"{line.measure_name} needs"
    if line.measure_name == "goodput_percent" and not loads[line.load].of:
        raise ConfigError(where, f"{needs} load.{line.load}.of: the load that it is compared with")
    if line.measure_name == "cost_per_qualified" and not cost.worker_hour:
        raise ConfigError(where, f"{needs} cost.worker_hour")
    if line.measure_name == "wrong_references" and not outputs.references:
        raise ConfigError(where, f"{needs} outputs.references: the file of `tercet accept --record`")
    if line.rate is not None and line.rate not in [float(each) for each in _rates(loads[line.load])]:
        raise ConfigError(f"{where}.rate", f"load.{line.load} is not measured at {line.rate:g}")
    whole = line.measure_name in ("held_rate", "cost_per_qualified", "waiting_most")
    if whole and (line.traffic_class or line.from_s or line.until_s):
        raise ConfigError(where, f"{line.measure_name} is of all requests of a load")


def _classes(load: LoadSpec) -> Sequence[str]:
    """Those of all its requests; none where that depends on who asks, or the file is wrong there."""
    if load.tenants or not load.classes:
        return ()
    try:
        return tuple(parse_classes(load.classes))
    except WorkloadError:
        return ()


def _rates(load: LoadSpec) -> Iterable[str]:
    return () if load.times else load.rate.split(",")


def _near(name: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    return f"; did you mean {near[0]}?" if near else f"; known: {', '.join(known)}"
