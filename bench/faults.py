"""The fault matrix: breaks a real mesh in every way it knows, and prints what came of it as a table.

    python -m bench.faults --out faults.md
    python -m bench.faults --long

The ledger is an SQLite file; then, where PostgreSQL is installed, a server of another mesh is broken as well. `--long`
adds what takes keepalive to find out: processes that hang and connections that are silent for longer than that
waits, and connections of which only one end is told.
"""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections.abc import Sequence
from pathlib import Path

import click

from bench.fault_cells import Cell, Matrix, Result, cells, database_cells
from bench.fault_database import FileDatabase, ServerDatabase
from bench.fault_deeds import FAULTS, LONG_FAULTS
from bench.fault_mesh import FaultMesh

HEADER = (
    "| fault | load | ends of the clients | last end after | served again after | as before after | problems |\n"
    "|---|---|---|---|---|---|---|"
)


@click.command()
@click.option("--long", "with_long", is_flag=True, help="with faults that last a minute, too")
@click.option("--database", "only_database", is_flag=True, help="those of the ledger's database alone")
@click.option("--out", type=click.Path(path_type=Path), default=None, help="where to write the table")
def main(with_long: bool, only_database: bool, out: Path | None) -> None:
    """Exits with 1 if something does not hold."""
    print(HEADER, flush=True)
    outcomes = []
    with tempfile.TemporaryDirectory() as folder, FaultMesh(Path(folder)) as mesh:
        faults = [] if only_database else cells((*FAULTS, *LONG_FAULTS) if with_long else FAULTS)
        outcomes += asyncio.run(_run(mesh, [*faults, *database_cells(FileDatabase.kind)]))
    if missing := ServerDatabase.missing():
        print(f"without PostgreSQL: {missing}")
    else:
        with tempfile.TemporaryDirectory() as folder, FaultMesh(Path(folder), make_database=ServerDatabase) as mesh:
            outcomes += asyncio.run(_run(mesh, database_cells(ServerDatabase.kind)))
    if out is not None:
        out.write_text("\n".join([HEADER, *map(row, outcomes)]) + "\n")
    raise SystemExit(any(outcome.problems for outcome in outcomes))


async def _run(mesh: FaultMesh, chosen: Sequence[Cell]) -> list[Result]:
    outcomes = []
    with contextlib.closing(Matrix(mesh)) as matrix:
        for cell in chosen:
            outcomes.append(await matrix.run(cell))
            print(row(outcomes[-1]), flush=True)
            for problem in outcomes[-1].problems:
                print(f"  {problem}", flush=True)
    return outcomes


def row(outcome: Result) -> str:
    """A line of the table."""
    cell = outcome.cell
    ends = ", ".join(f"{count} {end}" for end, count in sorted(outcome.ends.items())) or "-"
    ended = "-" if outcome.ended_s is None else f"{outcome.ended_s:.1f} s"
    load = f"{sum(outcome.ends.values())} streams" if cell.streaming else "idle"
    return (
        f"| {cell.subject}: {cell.what} | {load} | {ends} | {ended} | {outcome.served_s:.1f} s | "
        f"{outcome.whole_s:.1f} s | {len(outcome.problems) or 'none'} |"
    )


if __name__ == "__main__":
    main()
