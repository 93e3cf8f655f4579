"""The columns of a step's tokens and rows, in one piece of memory on the host, and what a device has of them.

Knows no model and no order of steps. Dim letters: T tokens, R rows, D draws (tokens to choose), W blocks of a table.
"""

from __future__ import annotations

import math
from collections.abc import Sequence as Seq
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from . import _core
from .ops.attention import AttentionBatch
from .ops.commit import EMPTY, LIVE, NUM_STOP_IDS, CommitRows
from .ops.sampler import PARAMS_BYTES, POSITION_OFFSET
from .sequence import Sequence, packed_params
from .steps import Row

_Column = npt.NDArray[np.int64]
_ALIGNMENT = 256  # of each column, in bytes


@dataclass(frozen=True, slots=True)
class Columns:
    """Views of one memory. In a run row r has token r and draw r; in other steps a row has any number of tokens, and
    draw d takes the logits of token logit_rows[d]."""

    token_ids: Tensor  # int64 [T]
    positions: Tensor  # int64 [T]
    slots: Tensor  # int64 [T], block * S + offset; -1: nowhere
    query_starts: Tensor  # int32 [R + 1]
    context_lens: Tensor  # int32 [R]
    logit_rows: Tensor  # int64 [D]
    params: Tensor  # uint8 [D, PARAMS_BYTES]
    status: Tensor  # int32 [D], LIVE or EMPTY
    remaining: Tensor  # int32 [D], tokens it may still get
    stop_ids: Tensor  # int32 [D, NUM_STOP_IDS], filled up with -1
    block_tables: Tensor  # int32 [R, W]; last, so that the rows in use are the end of what is copied

    def commit_rows(self, num_rows: int) -> CommitRows:
        """The first rows of a run, as `commit` advances them."""
        return CommitRows(
            self.token_ids, self.positions, self.slots, self.context_lens[:num_rows], self.block_tables[:num_rows],
            self.params[:num_rows], self.status[:num_rows], self.remaining[:num_rows], self.stop_ids[:num_rows],
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class StepShape:
    """How much of the columns a step uses. `total_context` is the sum of its context_lens, or more."""

    num_tokens: int
    num_rows: int
    num_draws: int
    total_context: int

    def takes(self, other: StepShape) -> bool:
        """Whether `other` can be filled up to this."""
        return (
            other.num_tokens <= self.num_tokens
            and other.num_rows <= self.num_rows
            and other.num_draws <= self.num_draws
            and other.total_context <= self.total_context
        )


class StepRows:
    """Columns for so many tokens and rows (and as many draws), filled on the host; `upload` gives them to the device.

    On a CPU both are the same memory. On a GPU the host's is pinned: what fills it waits for the copy before, nothing
    else does.
    """

    def __init__(self, max_tokens: int, max_rows: int, table_width: int, device: torch.device) -> None:
        self.max_tokens = max_tokens
        self.max_rows = max_rows
        self.table_width = table_width
        shapes = _shapes(max_tokens, max_rows, table_width)
        sizes = [math.prod(shape) * dtype.itemsize for dtype, shape in shapes.values()]
        offsets = np.cumsum([0, *(-(-size // _ALIGNMENT) * _ALIGNMENT for size in sizes)]).tolist()
        on_gpu = device.type == "cuda"
        self._host = torch.zeros(offsets[-1], dtype=torch.uint8, pin_memory=on_gpu)
        self._device = torch.zeros(offsets[-1], dtype=torch.uint8, device=device) if on_gpu else self._host
        self._copied = torch.cuda.Event() if on_gpu else None  # type: ignore[no-untyped-call]
        # A copy does not wait there for the step that runs.
        self._aside = torch.cuda.Stream(device) if on_gpu else None  # type: ignore[no-untyped-call]
        self._tables_offset, self._row_bytes = offsets[-2], table_width * 4

        def columns(memory: Tensor) -> Columns:
            views = zip(shapes.items(), sizes, offsets, strict=False)
            return Columns(
                **{
                    name: memory[first : first + size].view(dtype).view(shape)
                    for (name, (dtype, shape)), size, first in views
                }
            )

        self.host = columns(self._host)
        self.device = columns(self._device)
        # Numpy is quicker for what is small.
        self._arrays = {name: getattr(self.host, name).numpy() for name in shapes}

    def fill(self, rows: Seq[Row]) -> StepShape:
        """A step of any rows. They must not be empty, and every row's table must have room for its tokens."""
        self._wait()
        arrays, num_rows = self._arrays, len(rows)
        firsts = np.array([row.sequence.num_computed for row in rows], np.int64)  # [R]
        counts = np.array([row.count for row in rows], np.int64)  # [R]
        query_starts = arrays["query_starts"][: num_rows + 1]
        query_starts[0] = 0
        np.cumsum(counts, out=query_starts[1:])
        num_tokens = int(query_starts[-1])
        self._place([row.sequence for row in rows], firsts, counts, num_tokens)
        arrays["token_ids"][:num_tokens] = [
            token_id
            for row, first in zip(rows, firsts.tolist(), strict=True)
            for token_id in row.sequence.token_ids[first : first + row.count]
        ]
        arrays["context_lens"][:num_rows] = contexts = firsts + counts
        logit_rows: list[int] = []
        params: list[bytes] = []
        positions: list[int] = []
        for row, end in zip(rows, query_starts[1:].tolist(), strict=True):
            if num_draws := row.num_draws:
                sequence = row.sequence
                logit_rows += [end - 1] * num_draws
                positions += [len(sequence.token_ids)] * num_draws
                params.append(sequence.params)
                params += (packed_params(sequence.spec.sampling, fork.seed) for fork in sequence.forks)
        num_draws = len(logit_rows)
        arrays["logit_rows"][:num_draws] = logit_rows
        self._fill_params(params, positions)
        # Each draw is the last one here: nothing moves on.
        arrays["status"][:num_draws] = LIVE
        arrays["remaining"][:num_draws] = 1
        return StepShape(num_tokens, num_rows, num_draws, int(contexts.sum()))

    def fill_run(self, sequences: Seq[Sequence]) -> StepShape:
        """The first step of a run. Its rows must not be empty, and each has one token to compute."""
        self._wait()
        arrays, num_rows = self._arrays, len(sequences)
        firsts = np.array([sequence.num_computed for sequence in sequences], np.int64)  # [R]
        arrays["query_starts"][: num_rows + 1] = np.arange(num_rows + 1)
        self._place(sequences, firsts, np.ones(num_rows, np.int64), num_rows)
        arrays["token_ids"][:num_rows] = [sequence.token_ids[-1] for sequence in sequences]
        arrays["context_lens"][:num_rows] = firsts + 1
        arrays["logit_rows"][:num_rows] = np.arange(num_rows)
        self._fill_params(
            [sequence.params for sequence in sequences], [len(sequence.token_ids) for sequence in sequences]
        )
        arrays["status"][:num_rows] = LIVE
        arrays["remaining"][:num_rows] = [sequence.num_remaining for sequence in sequences]
        stop_ids = np.frombuffer(b"".join([sequence.stop_ids for sequence in sequences]), np.int32)
        arrays["stop_ids"][:num_rows] = stop_ids.reshape(num_rows, NUM_STOP_IDS)
        return StepShape(num_rows, num_rows, num_rows, int(firsts.sum()) + num_rows)

    def fill_tables(self, sequences: Seq[Sequence]) -> None:
        """The tables of a run's rows once more, for they have grown."""
        self._wait()
        tables = [sequence.table for sequence in sequences]
        nothing, empty = np.zeros(len(tables), np.int64), np.empty(0, np.int64)
        _core.place_rows(tables, nothing, nothing, empty, empty, self._arrays["block_tables"][: len(tables)])

    def pad(self, shape: StepShape, num_tokens: int, num_rows: int) -> None:
        """Fills up to `num_tokens` tokens of no sequence, and `num_rows` rows and draws that are empty.

        As many tokens as rows make a run, more another step: attention looks at these numbers, too.
        """
        arrays = self._arrays
        arrays["token_ids"][shape.num_tokens : num_tokens] = 0
        arrays["positions"][shape.num_tokens : num_tokens] = 0
        arrays["slots"][shape.num_tokens : num_tokens] = -1
        # Rows behind the last have no tokens; in a run one each, of nothing.
        behind = slice(shape.num_rows + 1, num_rows + 1)
        in_run = num_tokens == num_rows
        arrays["query_starts"][behind] = np.arange(behind.start, behind.stop) if in_run else shape.num_tokens
        arrays["context_lens"][shape.num_rows : num_rows] = 0
        draws = slice(shape.num_draws, num_rows)
        arrays["logit_rows"][draws] = np.arange(draws.start, draws.stop) if in_run else 0
        arrays["params"][draws] = 0
        arrays["status"][draws] = EMPTY

    def keep(self, live: Tensor) -> None:
        """Of a run's first rows those that `live` bool [R] names, moved to the front. On the host."""
        for name, column in self._arrays.items():
            if name != "query_starts" and name != "logit_rows":
                kept = column[: len(live)][live.numpy()]
                column[: len(kept)] = kept

    def upload(self, num_rows: int) -> None:
        """Copies the columns, and the tables of the first rows, to the device: in the order of the current stream."""
        if self._copied is not None:
            size = self._tables_offset + num_rows * self._row_bytes
            self._device[:size].copy_(self._host[:size], non_blocking=True)
            self._copied.record()

    def upload_tables(self, num_rows: int) -> None:
        """The tables alone, at once: a step that runs finds what it knows of them unchanged. What the current stream is
        given from now on waits for them."""
        if self._copied is not None:
            used = slice(self._tables_offset, self._tables_offset + num_rows * self._row_bytes)
            with torch.cuda.stream(self._aside):
                self._device[used].copy_(self._host[used], non_blocking=True)
                self._copied.record()
            self._copied.wait()

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

    def _place(self, sequences: Seq[Sequence], firsts: _Column, counts: _Column, num_tokens: int) -> None:
        arrays = self._arrays
        _core.place_rows(
            [sequence.table for sequence in sequences], firsts, counts, arrays["positions"][:num_tokens],
            arrays["slots"][:num_tokens], arrays["block_tables"][: len(sequences)],
        )  # fmt: skip

    def _fill_params(self, params: list[bytes], positions: list[int]) -> None:
        column = self._arrays["params"][: len(params)]
        column[:] = np.frombuffer(b"".join(params), np.uint8).reshape(-1, PARAMS_BYTES)
        column.view(np.int64)[:, POSITION_OFFSET // 8] = positions

    def _wait(self) -> None:
        # Who waits gives the interpreter away, and gets it back later than that.
        if self._copied is not None and not self._copied.query():  # type: ignore[no-untyped-call]
            self._copied.synchronize()


def _shapes(max_tokens: int, max_rows: int, table_width: int) -> dict[str, tuple[torch.dtype, tuple[int, ...]]]:
    return {
        "token_ids": (torch.int64, (max_tokens,)),
        "positions": (torch.int64, (max_tokens,)),
        "slots": (torch.int64, (max_tokens,)),
        "query_starts": (torch.int32, (max_rows + 1,)),
        "context_lens": (torch.int32, (max_rows,)),
        "logit_rows": (torch.int64, (max_rows,)),
        "params": (torch.uint8, (max_rows, PARAMS_BYTES)),
        "status": (torch.int32, (max_rows,)),
        "remaining": (torch.int32, (max_rows,)),
        "stop_ids": (torch.int32, (max_rows, NUM_STOP_IDS)),
        "block_tables": (torch.int32, (max_rows, table_width)),
    }
