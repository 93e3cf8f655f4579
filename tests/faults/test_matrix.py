"""Real processes, broken one after the other: kill -9, hung, told to stop, cut off; idle and under 64 streams.

See bench/fault_cells.py for what must hold behind each. `-m soak` has the rest: what keepalive has to find out, which
takes it 40 seconds. `python -m bench.faults` prints the table of docs/faults.md.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from bench.fault_cells import NUM_STREAMS, Cell, Matrix, cells, database_cells
from bench.fault_database import FileDatabase, ServerDatabase
from bench.fault_deeds import FAULTS, LONG_FAULTS
from bench.fault_mesh import STARTED_S, FaultMesh

pytestmark = pytest.mark.e2e

# Of what is idle the cut alone: the others take as long, and find less.
_CELLS = [cell for cell in cells(FAULTS) if cell.streaming or cell.fault == "cut"]
_REST = [cell for cell in cells((*FAULTS, *LONG_FAULTS)) if cell not in _CELLS]
_CELLS += database_cells(FileDatabase.kind)
# Behind these there is nothing that the clients could have seen.
_UNSEEN = {("gateway", "hang"), ("scheduler", "hang"), ("gateway", "stop"), ("scheduler", "stop")}


@pytest.fixture(scope="module")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FaultMesh]:
    """One for all: each cell leaves it as it was."""
    with FaultMesh(tmp_path_factory.mktemp("faults")) as mesh:
        yield mesh


@pytest.fixture(scope="module")
def matrix(mesh: FaultMesh) -> Iterator[Matrix]:
    with contextlib.closing(Matrix(mesh)) as matrix:
        yield matrix


async def _try(matrix: Matrix, cell: Cell) -> None:
    outcome = await matrix.run(cell)
    assert not outcome.problems
    if cell.streaming:
        assert sum(outcome.ends.values()) == NUM_STREAMS
        if cell.subject in ("worker", "sqlite", "postgresql") or (cell.subject, cell.fault) in _UNSEEN:
            assert outcome.ends == {"finished": NUM_STREAMS}


@pytest.mark.parametrize("cell", _CELLS, ids=str)
async def test_it_is_whole_again(matrix: Matrix, cell: Cell) -> None:
    await _try(matrix, cell)


@pytest.mark.soak
@pytest.mark.parametrize("cell", _REST, ids=str)
async def test_it_is_whole_again_after_minutes(matrix: Matrix, cell: Cell) -> None:
    await _try(matrix, cell)


@pytest.fixture(scope="module")
def server_matrix(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Matrix]:
    """That of a mesh whose ledger is in PostgreSQL."""
    if missing := ServerDatabase.missing():
        pytest.skip(f"needs PostgreSQL and its driver: there is no {missing}")
    with (
        FaultMesh(tmp_path_factory.mktemp("faults"), make_database=ServerDatabase) as mesh,
        contextlib.closing(Matrix(mesh)) as matrix,
    ):
        yield matrix


@pytest.mark.parametrize("cell", database_cells(ServerDatabase.kind), ids=str)
async def test_a_server_that_breaks_costs_no_row(server_matrix: Matrix, cell: Cell) -> None:
    await _try(server_matrix, cell)


def test_behind_all_that_no_worker_has_a_sequence(mesh: FaultMesh) -> None:
    """Whatever the scheduler believes."""
    for name in mesh.workers:
        assert mesh.stop_worker(name) == (0, 0)
        mesh.start(name)
    mesh.wait_for(mesh.whole, "the workers are back", STARTED_S)
