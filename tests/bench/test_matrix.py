"""The matrix has each value of each axis, and a part of it that has them, too."""

from __future__ import annotations

from bench.matrix import ARRIVALS, MANY, OPERATOR, RATES, Cell, cells

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
    assert len({cell.name for cell in everything}) == len(everything) == len(RATES) * len(ARRIVALS) * 2
    assert set(part) < set(everything)
    assert axes(part) == axes(everything)


def test_each_is_a_workload_of_its_tenants() -> None:
    for cell in cells(short=False):
        workload = cell.workload(KEYS, 30.0, 1)
        tenants = workload.principals.tenants
        assert [each.name for each in tenants] == (list(MANY) if cell.many else ["alice"])
        assert all(each.api_key == KEYS[each.name] for each in tenants)
        assert (workload.rates, workload.warm_up_s) == ((RATES[cell.input, cell.output],), 6.0)
