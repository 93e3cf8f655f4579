"""The columns of steps as sequences fill them on the host, and what a device has of them.

Knows no model and no order of steps. Dim letters: T tokens, R rows, D draws (tokens to choose), W blocks of a table.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Sequence as Seq
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from . import _core
from .columns import ColumnLayout, Columns, StepShape
from .ops.attention import AttentionBatch
from .ops.commit import EMPTY, LIVE, NUM_STOP_IDS
from .ops.follow import NONE
from .ops.sampler import PARAMS_BYTES, POSITION_OFFSET
from .sequence import packed_params
from .steps import Row

_Column = npt.NDArray[np.int64]
# Of a device with memory of its own: what steps on their way are still to be filled with, and what is filled next.
_NUM_STAGES = 4


class _Stage:
    """Columns on the host."""

    def __init__(self, memory: Tensor, columns: Columns, copied: torch.cuda.Event | None) -> None:
        self.memory = memory
        self.columns = columns
        self.copied = copied  # to the device; None: it has the same memory
        # Numpy is quicker for what is small.
        self.arrays = {field.name: getattr(columns, field.name).numpy() for field in dataclasses.fields(Columns)}


class StepRows:
    """Columns for so many tokens and rows (and as many draws), filled on the host; `upload` gives them to the device.

    On a CPU both are the same memory. On a GPU the host's is pinned, and there are several, so that the columns of a
    step are filled while those of others wait to be copied: what fills them waits for the copy of the oldest.
    """

    def __init__(self, max_tokens: int, max_rows: int, table_width: int, device: torch.device) -> None:
        self.max_tokens = max_tokens
        self.max_rows = max_rows
        self.table_width = table_width
        self._layout = ColumnLayout(max_tokens, max_rows, table_width)
        num_bytes = self._layout.num_bytes
        on_gpu = device.type == "cuda"
        self._device = torch.zeros(num_bytes, dtype=torch.uint8, device=device)
        self.device = self._layout.columns(self._device)
        # A copy does not wait there for the step that runs.
        self._aside = torch.cuda.Stream(device) if on_gpu else None  # type: ignore[no-untyped-call]
        self._stages: deque[_Stage] = deque()
        for _ in range(_NUM_STAGES if on_gpu else 1):
            memory = torch.zeros(num_bytes, dtype=torch.uint8, pin_memory=True) if on_gpu else self._device
            copied = torch.cuda.Event() if on_gpu else None  # type: ignore[no-untyped-call]
            self._stages.append(_Stage(memory, self._layout.columns(memory), copied))

    @property
    def host(self) -> Columns:
        """The columns that were filled last."""
        return self._stages[0].columns

    def fill(self, rows: Seq[Row]) -> StepShape:
        """A step of any rows, those that follow before others. They must not be empty, and every row's table must have
        room for its tokens."""
        arrays, num_rows = self._next_stage(), len(rows)
        firsts, counts = self._fill_rows(rows)
        query_starts = arrays["query_starts"][: num_rows + 1]
        query_starts[0] = 0
        np.cumsum(counts, out=query_starts[1:])
        num_tokens = int(query_starts[-1])
        self._place(rows, firsts, counts, num_tokens)
        token_ids: list[int] = []
        for row in rows:
            token_ids += _first_tokens(row)
        arrays["token_ids"][:num_tokens] = token_ids
        logit_rows: list[int] = []
        params: list[bytes] = []
        positions: list[int] = []
        for row, end in zip(rows, query_starts[1:].tolist(), strict=True):
            if num_draws := row.num_draws:
                sequence = row.sequence
                logit_rows += [end - 1] * num_draws
                positions += [row.num_known] * num_draws
                params.append(sequence.params)
                params += (packed_params(sequence.spec.sampling, fork.seed) for fork in sequence.forks)
        num_draws = len(logit_rows)
        arrays["logit_rows"][:num_draws] = logit_rows
        self._fill_params(params, positions)
        # Each draw is the last one here: nothing moves on.
        arrays["status"][:num_draws] = LIVE
        arrays["remaining"][:num_draws] = 1
        self._fill_stop_ids([row for row in rows if row.follows != NONE])
        return StepShape(num_tokens, num_rows, num_draws, int((firsts + counts).sum()))

    def fill_run(self, rows: Seq[Row]) -> StepShape:
        """The first step of a run. Its rows must not be empty, and each has one token to compute."""
        arrays, num_rows = self._next_stage(), len(rows)
        firsts, counts = self._fill_rows(rows)
        arrays["query_starts"][: num_rows + 1] = np.arange(num_rows + 1)
        self._place(rows, firsts, counts, num_rows)
        arrays["token_ids"][:num_rows] = [0 if row.follows != NONE else row.sequence.token_ids[-1] for row in rows]
        arrays["logit_rows"][:num_rows] = np.arange(num_rows)
        self._fill_params([row.sequence.params for row in rows], firsts + 1)
        arrays["status"][:num_rows] = LIVE
        arrays["remaining"][:num_rows] = [row.sequence.spec.max_length - row.first - 1 for row in rows]
        self._fill_stop_ids(rows)
        return StepShape(num_rows, num_rows, num_rows, int(firsts.sum()) + num_rows)

    def fill_tables(self, rows: Seq[Row]) -> None:
        """The tables of the run that was filled last once more, for they have grown."""
        self._wait(self._stages[0])
        tables = [row.sequence.table for row in rows]
        nothing, empty = np.zeros(len(tables), np.int64), np.empty(0, np.int64)
        _core.place_rows(tables, nothing, nothing, empty, empty, self._stages[0].arrays["block_tables"][: len(tables)])

    def pad(self, shape: StepShape, num_tokens: int, num_rows: int) -> None:
        """Fills up to `num_tokens` tokens of no sequence, and `num_rows` rows and draws that are empty.

        As many tokens as rows make a run, more another step: attention looks at these numbers, too.
        """
        arrays = self._stages[0].arrays
        arrays["token_ids"][shape.num_tokens : num_tokens] = 0
        arrays["positions"][shape.num_tokens : num_tokens] = 0
        arrays["slots"][shape.num_tokens : num_tokens] = -1
        # Rows behind the last have no tokens; in a run one each, of nothing.
        behind = slice(shape.num_rows + 1, num_rows + 1)
        in_run = num_tokens == num_rows
        arrays["query_starts"][behind] = np.arange(behind.start, behind.stop) if in_run else shape.num_tokens
        arrays["context_lens"][shape.num_rows : num_rows] = 0
        arrays["follows"][shape.num_rows : num_rows] = NONE
        draws = slice(shape.num_draws, num_rows)
        arrays["logit_rows"][draws] = np.arange(draws.start, draws.stop) if in_run else 0
        arrays["params"][draws] = 0
        arrays["status"][draws] = EMPTY

    def keep(self, live: Tensor) -> None:
        """Of a run's first rows those that `live` bool [R] names, moved to the front. On the host."""
        for name, column in self._stages[0].arrays.items():
            if name != "query_starts" and name != "logit_rows":
                kept = column[: len(live)][live.numpy()]
                column[: len(kept)] = kept

    def upload(self, num_rows: int) -> None:
        """Copies the columns, and the tables of the first rows, to the device: in the order of the current stream."""
        stage = self._stages[0]
        if stage.copied is not None:
            used = self._layout.used(num_rows)
            self._device[used].copy_(stage.memory[used], non_blocking=True)
            stage.copied.record()

    def upload_tables(self, num_rows: int) -> None:
        """The tables alone, at once: a step that runs finds what it knows of them unchanged. What the current stream is
        given from now on waits for them."""
        stage = self._stages[0]
        if stage.copied is not None:
            used = self._layout.tables(num_rows)
            with torch.cuda.stream(self._aside):
                self._device[used].copy_(stage.memory[used], non_blocking=True)
                stage.copied.record()
            stage.copied.wait()

    def attention(self, shape: StepShape, workspace: Tensor | None = None) -> AttentionBatch:
        """Where the tokens stand, on the device; see AttentionBatch."""
        device = self.device
        return AttentionBatch(
            query_starts=device.query_starts[: shape.num_rows + 1],
            context_lens=device.context_lens[: shape.num_rows],
            block_tables=device.block_tables[: shape.num_rows],
            slots=device.slots[: shape.num_tokens],
            total_context=shape.total_context,
            # Rows of one token each: only decode is launched, and may start early.
            num_chunked=0 if shape.num_tokens == shape.num_rows else None,
            workspace=workspace,
        )

    def _next_stage(self) -> dict[str, npt.NDArray[Any]]:
        self._stages.rotate(1)
        self._wait(self._stages[0])
        return self._stages[0].arrays

    def _fill_rows(self, rows: Seq[Row]) -> tuple[_Column, _Column]:
        """First positions and counts [R], and what rows of any step have."""
        arrays, num_rows = self._stages[0].arrays, len(rows)
        firsts = np.array([row.first for row in rows], np.int64)  # [R]
        counts = np.array([row.count for row in rows], np.int64)  # [R]
        arrays["context_lens"][:num_rows] = firsts + counts
        arrays["follows"][:num_rows] = [row.follows for row in rows]
        return firsts, counts

    def _place(self, rows: Seq[Row], firsts: _Column, counts: _Column, num_tokens: int) -> None:
        arrays = self._stages[0].arrays
        _core.place_rows(
            [row.sequence.table for row in rows], firsts, counts, arrays["positions"][:num_tokens],
            arrays["slots"][:num_tokens], arrays["block_tables"][: len(rows)],
        )  # fmt: skip

    def _fill_params(self, params: list[bytes], positions: list[int] | _Column) -> None:
        column = self._stages[0].arrays["params"][: len(params)]
        column[:] = np.frombuffer(b"".join(params), np.uint8).reshape(-1, PARAMS_BYTES)
        column.view(np.int64)[:, POSITION_OFFSET // 8] = positions

    def _fill_stop_ids(self, rows: Seq[Row]) -> None:
        if rows:
            stop_ids = np.frombuffer(b"".join([row.sequence.stop_ids for row in rows]), np.int32)
            self._stages[0].arrays["stop_ids"][: len(rows)] = stop_ids.reshape(-1, NUM_STOP_IDS)

    def _wait(self, stage: _Stage) -> None:
        # Who waits gives the interpreter away, and gets it back later than that.
        if stage.copied is not None and not stage.copied.query():  # type: ignore[no-untyped-call]
            stage.copied.synchronize()


def _first_tokens(row: Row) -> list[int]:
    """The tokens of a row, 0 in place of one that is not known yet."""
    return [0] if row.follows != NONE else row.sequence.token_ids[row.first : row.first + row.count]
