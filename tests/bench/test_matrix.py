"""The matrix has each value of each axis, and a part of it has those that are crossed."""

from __future__ import annotations

from bench.matrix import ALONE, ARRIVALS, LENGTHS, MANY, OPERATOR, RATES, Cell, cells
from tercet.load.arrivals import Kind, parse_arrivals
from tercet.load.lengths import INPUTS, OUTPUTS

KEYS = {name: f"key-of-{name}" for name in (*MANY, OPERATOR)}


def axes(chosen: list[Cell]) -> list[set[object]]:
    return [
        {cell.input for cell in chosen},
        {cell.output for cell in chosen},
        {cell.arrivals for cell in chosen},
        {cell.many for cell in chosen},
    ]


def test_all_cells_and_a_part_of_them() -> None:
    everything, part = list(cells(short=False)), list(cells(short=True))
    assert len({cell.name for cell in everything}) == len(everything) == len(LENGTHS) * len(ARRIVALS) * 2 + len(ALONE)
    assert set(part) < set(everything) - set(ALONE)
    assert axes(part) == axes([cell for cell in everything if cell not in ALONE])
    given, wanted, arrivals, _ = axes(everything)
    assert (given, wanted) == (set(INPUTS), set(OUTPUTS))
    assert {parse_arrivals("arrivals", str(each)).kind for each in arrivals} == set(Kind) - {Kind.TRACE}


def test_each_is_a_workload_of_its_tenants() -> None:
    for cell in cells(short=False):
        workload = cell.workload(KEYS, 30.0, 1)
        tenants = workload.principals.tenants
        assert [each.name for each in tenants] == (list(MANY) if cell.many else ["alice"])
        assert all(each.api_key == KEYS[each.name] for each in tenants)
        assert workload.rates == (RATES[cell.input, cell.output],)
        # What comes at once has no time to warm up in.
        assert workload.warm_up_s == (0.0 if workload.requests else 6.0)
