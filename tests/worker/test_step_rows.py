"""The columns of a step: what rows put into them, padding, and what is kept of a run."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.worker.recall_model import CONFIG
from worker.columns import StepShape
from worker.kv_cache import KVCache
from worker.messages import Fork, NewSequence, Sampling
from worker.ops.commit import EMPTY, LIVE
from worker.ops.sampler import SamplingRows
from worker.sequence import Sequence
from worker.sequence_group import SequenceGroup
from worker.step_rows import StepRows
from worker.steps import next_row

S = 4
CPU = torch.device("cpu")


class Bench:
    """Sequences on one pool, and columns full of what others left."""

    def __init__(self) -> None:
        self.kv_cache = KVCache(CONFIG, 64, S, torch.float32, CPU)
        self.rows = StepRows(32, 8, 16, CPU)
        for name in self.rows.host.__dataclass_fields__:
            column: torch.Tensor = getattr(self.rows.host, name)
            column.view(torch.uint8).fill_(77)
        self.rows.host.query_starts[0] = 0

    def sequence(self, token_ids: list[int], num_computed: int, room: int, **fields: object) -> Sequence:
        spec = NewSequence(1, tuple(token_ids), 40, **fields)  # type: ignore[arg-type]
        sequence = Sequence(spec, self.kv_cache.new_table(b""), SequenceGroup())
        self.kv_cache.reserve(sequence.table, room)
        sequence.num_computed = num_computed
        return sequence


def numbers(tensor: torch.Tensor) -> list[int]:
    return [int(number) for number in tensor.tolist()]


def test_rows_of_a_step() -> None:
    bench = Bench()
    chunk = bench.sequence(list(range(10, 30)), 3, 10)  # not to its end: no token is drawn
    leader = bench.sequence([7, 8], 0, 2, sampling=Sampling(0.5, seed=3), forks=(Fork(2, 5), Fork(3, 6)))
    decoding = bench.sequence([1, 2, 3], 2, 3, sampling=Sampling(seed=9))
    shape = bench.rows.fill([next_row(chunk, 4), next_row(leader, 2), next_row(decoding, 1)])
    assert shape == StepShape(7, 3, 4, 7 + 2 + 3)
    host = bench.rows.host
    assert numbers(host.token_ids[:7]) == [13, 14, 15, 16, 7, 8, 3]
    assert numbers(host.positions[:7]) == [3, 4, 5, 6, 0, 1, 2]
    slots = [*chunk.table.slots(3, 4), *leader.table.slots(0, 2), *decoding.table.slots(2, 1)]
    assert numbers(host.slots[:7]) == slots
    assert numbers(host.query_starts[:4]) == [0, 4, 6, 7]
    assert numbers(host.context_lens[:3]) == [7, 2, 3]
    assert numbers(host.logit_rows[:4]) == [5, 5, 5, 6]
    drawn = SamplingRows.unpacked(host.params[:4].numpy())
    assert drawn.seed.tolist() == [3, 5, 6, 9]
    assert drawn.temperature.tolist() == [0.5, 0.5, 0.5, 0.0]
    assert drawn.position.tolist() == [2, 2, 2, 3]
    assert numbers(host.status[:4]) == [LIVE] * 4
    assert numbers(host.remaining[:4]) == [1] * 4
    for row, sequence in enumerate((chunk, leader, decoding)):
        blocks = sequence.table.blocks()
        assert numbers(host.block_tables[row, : len(blocks)]) == blocks


def test_padding_of_a_step_is_of_no_sequence() -> None:
    bench = Bench()
    shape = bench.rows.fill([next_row(bench.sequence([5, 6, 7], 0, 3), 3)])
    bench.rows.pad(shape, 8, 4)
    host = bench.rows.host
    assert numbers(host.slots[3:8]) == [-1] * 5
    assert numbers(host.token_ids[3:8]) == numbers(host.positions[3:8]) == [0] * 5
    assert numbers(host.query_starts[:5]) == [0, 3, 3, 3, 3]
    assert numbers(host.context_lens[:4]) == [3, 0, 0, 0]
    assert numbers(host.logit_rows[:4]) == [2, 0, 0, 0]
    assert numbers(host.status[:4]) == [LIVE, EMPTY, EMPTY, EMPTY]
    assert not host.params[1:4].any()


def test_a_run_and_its_padding() -> None:
    bench = Bench()
    stops = frozenset({9, 4, 2**31 + 5})
    sequences = [
        bench.sequence([1, 2, 3], 2, 9, stop_token_ids=stops, sampling=Sampling(0.7, seed=1)),
        bench.sequence([6] * 9, 8, 9),
    ]
    shape = bench.rows.fill_run([next_row(each) for each in sequences])
    assert shape == StepShape(2, 2, 2, 3 + 9)
    bench.rows.pad(shape, 4, 4)
    host = bench.rows.host
    assert numbers(host.token_ids[:4]) == [3, 6, 0, 0]
    assert numbers(host.query_starts[:5]) == [0, 1, 2, 3, 4]
    assert numbers(host.logit_rows[:4]) == [0, 1, 2, 3]
    assert numbers(host.context_lens[:4]) == [3, 9, 0, 0]
    assert numbers(host.status[:4]) == [LIVE, LIVE, EMPTY, EMPTY]
    assert numbers(host.remaining[:2]) == [37, 31]
    assert numbers(host.stop_ids[0]) == [4, 9] + [-1] * 6
    assert numbers(host.stop_ids[1]) == [-1] * 8
    assert SamplingRows.unpacked(host.params[:2].numpy()).position.tolist() == [3, 9]
    # A row that ended makes way; what is left moves to the front.
    bench.rows.keep(torch.tensor([False, True]))
    assert numbers(host.token_ids[:1]) == [6]
    assert numbers(host.block_tables[0, :3]) == sequences[1].table.blocks()
    assert numbers(host.query_starts[:2]) == [0, 1]


def test_tables_that_have_grown() -> None:
    bench = Bench()
    sequences = [bench.sequence([1, 2, 3], 2, 3), bench.sequence([6] * 9, 8, 9)]
    bench.rows.fill_run([next_row(each) for each in sequences])
    for sequence in sequences:
        bench.kv_cache.reserve(sequence.table, 14)
    gone = sequences[0].table.blocks()
    sequences[0].table.release()
    bench.rows.fill_tables([next_row(each) for each in sequences])
    assert numbers(bench.rows.host.block_tables[1, :4]) == sequences[1].table.blocks()
    assert numbers(bench.rows.host.block_tables[0, :1]) == gone[:1]
    assert numbers(bench.rows.host.positions[:2]) == [2, 8]


def test_columns_are_aligned() -> None:
    rows = StepRows(33, 7, 5, CPU)
    for name in rows.host.__dataclass_fields__:
        assert getattr(rows.host, name).data_ptr() % 16 == 0
    assert rows.device is not None
    with pytest.raises(ValueError, match=r"place_rows|broadcast|shape"):
        rows.fill_run([next_row(Bench().sequence([1], 0, 1))] * 8)
    assert np.shares_memory(rows.host.slots.numpy(), rows.device.slots.numpy())
