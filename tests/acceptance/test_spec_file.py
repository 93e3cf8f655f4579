"""Contracts from TOML: small ones work, and every problem is told at once by its key."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tercet.acceptance.measure import MEASURES
from tercet.acceptance.spec import (
    CapacitySpec,
    ClientSpec,
    CostSpec,
    FaultsSpec,
    LineSpec,
    LoadSpec,
    OutputsSpec,
    SloSpec,
    Spec,
)  # fmt: skip
from tercet.acceptance.spec_file import read_spec, to_spec
from tercet.config import ConfigErrors
from tercet.errors import ConfigError
from tercet.load.slo import Slo

ROOT = Path(__file__).resolve().parents[2]
HERE = Path()
EXAMPLES = ROOT / "docs" / "examples"
LOAD = {"load": {"steady": {"rate": 2}}}


def problems(data: dict[str, Any]) -> list[str]:
    with pytest.raises(ConfigErrors) as caught:
        to_spec(data, HERE)
    return [str(problem) for problem in caught.value.problems]


def line(**fields: Any) -> dict[str, Any]:
    return {**LOAD, "line": [fields]}


def names(spec: Spec) -> list[str]:
    return [each.measure_name for each in spec.lines]


def test_a_small_contract_has_the_lines_that_its_promises_imply() -> None:
    spec = to_spec({**LOAD, "slo": {"all": {"ttft_ms": 500, "gap_ms": 80}, "batch": {"e2e_ms": 9000}}}, HERE)
    assert spec.slo == {"": Slo(ttft_s=0.5, gap_s=0.08), "batch": Slo(e2e_s=9.0)}
    assert names(spec)[:5] == ["ttft_p95_ms", "gap_p95_ms", "e2e_p95_ms", "failed_percent", "qualified_percent"]
    assert [(each.limit, each.traffic_class) for each in spec.lines[:3]] == [(500, ""), (80, ""), (9000, "batch")]
    assert {"wrong_finish_reasons", "blocks_left", "freed_p99_ms"} <= {*names(spec)}
    assert "wrong_references" not in names(spec)
    assert spec.needed_loads() == ("steady",)


def test_a_contract_without_loads_has_outputs_and_faults() -> None:
    assert {each.measure.basis.value for each in to_spec({}, HERE).lines} == {"outputs", "faults"}


def test_a_load_of_another_is_an_overload_and_runs_behind_it() -> None:
    data = {
        "load": {"twice": {"times": 2, "of": "steady"}, "steady": {"rate": [1, 2.5]}},
        "slo": {"all": {"ttft_ms": 500}},
    }
    spec = to_spec(data, HERE)
    assert spec.needed_loads() == ("steady", "twice")
    overload = [each.measure_name for each in spec.lines if each.load == "twice"]
    assert overload == ["untyped_refusals", "refused_p99_ms", "goodput_percent", "accepted_kept_percent"]
    assert spec.loads["steady"].workload(spec.slo).rates == (1.0, 2.5)
    assert spec.loads["twice"].workload(spec.slo, 5.5).rates == (5.5,)


def test_lines_that_are_given_are_all_there_are() -> None:
    spec = to_spec({**LOAD, "line": [{"measure": "ttft_p99_ms", "limit": 900, "from_s": 5, "until_s": 10}]}, HERE)
    (found,) = spec.lines
    assert (found.name, found.limit, found.load, found.from_s, found.until_s) == (
        "first token, P99 (steady)", 900, "steady", 5, 10,
    )  # fmt: skip
    assert not found.holds(901)
    assert found.holds(900)


def test_a_limit_of_0_is_one() -> None:
    (found,) = to_spec(line(measure="failed_percent", limit=0.0), HERE).lines
    assert found.limit == 0


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        ({"laod": {}}, "laod: unknown table; did you mean load?"),
        ({"load": {"rate": 2}}, "load.rate: must be a table; the tables of load have names: [load.NAME]"),
        ({"load": 3}, "load: must be tables by name"),
        ({"load": {"a/b": {}}}, "load.a/b: its name must be one that a folder can have"),
        ({"load": {"a": {"duraton_s": 3}}}, "load.a.duraton_s: unknown key; did you mean duration_s?"),
        ({"load": {"a": {"arrivals": "often"}}}, "load.a.arrivals: 'often' is none of"),
        ({"load": {"a": {"rate": 0}}}, "load.a.rate: 0 is not between"),
        ({"load": {"a": {"input": "huge"}}}, "load.a.input: 'huge' is none of"),
        ({"load": {"a": {"times": 2}}}, "load.a.of: is needed beside times"),
        ({"load": {"a": {"of": "a"}}}, "load.a.of: must be a load of its own: there is none"),
        (
            {"load": {"b": {}, "a": {"times": 2, "of": "b", "arrivals": "closed:2"}}},
            "load.a.times: closed:2 has no rate",
        ),
        ({"load": {"a": {"cancel_percent": 101}}}, "load.a.cancel_percent: must be from 0 to 100"),
        ({"load": {"a": {"warm_up_s": float("nan")}}}, "load.a.warm_up_s: must be"),
        ({"slo": {"all": {"ttft": 3}}}, "slo.all.ttft: unknown key; did you mean ttft_ms?"),
        ({"slo": {"all": {"ttft_ms": -1}}}, "slo.all.ttft_ms: must be from 0"),
        ({"outputs": {"max_tokens": 1}}, "outputs.max_tokens: must be from 4"),
        ({"faults": {"requests": True}}, "faults.requests: must be a whole number"),
        ({"line": []}, "line: must be tables [[line]]"),
        ({"line": {"measure": "x"}}, "line: must be tables [[line]]"),
        ({"line": [3]}, "line 1: must be a table"),
        ({"line": [{"measure": "failed_percent"}]}, "line 1.load: there is none"),
        (line(measure="ttft_p95"), "line 1.measure: 'ttft_p95' is not known; did you mean ttft_p95_ms?"),
        (line(measure="ttft_p95_ms"), "line 1.limit: is needed for ttft_p95_ms"),
        (line(measure="failed_percent", load="stedy"), "line 1.load: there is no load.stedy; did you mean steady?"),
        (
            {
                "load": {"a": {"classes": "batch=2,chat"}},
                "line": [{"measure": "ttft_p95_ms", "limit": 1, "traffic_class": "bach"}],
            },
            "line 1.traffic_class: no request of load.a is of class bach; did you mean batch?",
        ),
        (line(measure="blocks_left", load="steady"), "line 1: blocks_left is of no load"),
        (line(measure="ttft_p95_ms", limit=1, rate=3), "line 1.rate: load.steady is not measured at 3"),
        (line(measure="ttft_p95_ms", limit=1, from_s=3, until_s=2), "line 1.until_s: must be above from_s"),
        (line(measure="goodput_percent", limit=80), "line 1: goodput_percent needs load.steady.of"),
        (line(measure="cost_per_qualified", limit=1), "line 1: cost_per_qualified needs cost.worker_hour"),
        (line(measure="wrong_references"), "line 1: wrong_references needs outputs.references"),
        (line(measure="held_rate", limit=1, traffic_class="a"), "line 1: held_rate is of all requests of a load"),
        ({"line": [{"measure": "blocks_left"}] * 2}, "line: several lines are called"),
    ],
)
def test_what_is_wrong_is_told_by_its_key(data: dict[str, Any], expected: str) -> None:
    assert [told for told in problems(data) if told.startswith(expected)], problems(data)


def test_every_problem_is_told_at_once() -> None:
    told = problems({"x": {}, "load": {"a": {"rate": "fast"}}, "faults": {"requests": 0}, "line": [{"measure": "y"}]})
    assert [each.partition(":")[0] for each in told] == ["x", "faults.requests", "load.a.rate", "line 1.measure"]


def test_files_are_looked_for_beside_the_contract(tmp_path: Path) -> None:
    path = tmp_path / "slo.toml"
    path.write_text('[load.a]\nprompts = "text.txt"\n[outputs]\nreferences = "answers.json"\n')
    spec = read_spec(path)
    assert spec.outputs.references == str(tmp_path / "answers.json")
    assert spec.loads["a"].prompts == str(tmp_path / "text.txt")


@pytest.mark.parametrize("content", [b"load = [", b"\xff\xfe"])
def test_what_is_no_toml_is_told(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "slo.toml"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match="is not TOML"):
        read_spec(path)
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        read_spec(tmp_path / "none.toml")


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("slo*.toml")), ids=lambda path: path.name)
def test_examples_are_contracts(path: Path) -> None:
    assert read_spec(path).lines


def test_the_documented_contracts_are_the_examples() -> None:
    text = (ROOT / "docs" / "accept.md").read_text(encoding="utf-8")
    for name in ("slo.toml", "slo-small.toml"):
        assert (EXAMPLES / name).read_text(encoding="utf-8") in text


def test_the_documented_keys_are_those_that_there_are() -> None:
    text = (ROOT / "docs" / "accept.md").read_text(encoding="utf-8")
    tables = {LoadSpec: "", LineSpec: "", SloSpec: "", OutputsSpec: "outputs.", FaultsSpec: "faults."}
    tables |= {CapacitySpec: "capacity.", ClientSpec: "client.", CostSpec: "cost."}
    keys = [f"{prefix}{each.name}" for kind, prefix in tables.items() for each in dataclasses.fields(kind)]
    assert [key for key in keys if f"`{key}`" not in text] == []


def test_the_documented_measures_are_those_that_there_are() -> None:
    text = (ROOT / "docs" / "accept.md").read_text(encoding="utf-8")
    ranges = {f"{kind}_p{percent}_ms" for kind in ("ttft", "e2e", "gap", "largest_gap") for percent in (50, 95, 99)}
    assert [name for name in MEASURES if name not in ranges and f"`{name}`" not in text] == []
    assert [kind for kind in ("ttft", "e2e", "gap", "largest_gap") if f"`{kind}_pN_ms`" not in text] == []


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)
KEYS = st.sampled_from(
    ["rate", "arrivals", "times", "of", "classes", "tenants", "prompts", "measure", "limit", "load", "ttft_ms", "seed"]
)
TABLES = st.dictionaries(KEYS, VALUES | st.sampled_from(sorted(MEASURES)), max_size=4)


@settings(max_examples=150, deadline=None)
@given(
    st.fixed_dictionaries(
        {},
        optional={
            "load": st.dictionaries(st.sampled_from("ab"), TABLES | VALUES) | VALUES,
            "slo": st.dictionaries(st.sampled_from(["all", "x"]), TABLES | VALUES) | VALUES,
            "line": st.lists(TABLES | VALUES, max_size=3) | VALUES,
            "outputs": VALUES,
            "faults": VALUES,
        },
    )
)
def test_whatever_a_file_says_is_a_contract_or_problems(data: dict[str, Any]) -> None:
    try:
        spec = to_spec(data, HERE)
    except ConfigErrors:
        return
    assert {each.load for each in spec.lines if each.load} <= {*spec.loads}
