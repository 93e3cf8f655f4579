"""Copies of blocks: the C++ against its twin."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from worker.ops.block_copy import BlockTensors, copy_blocks, copy_blocks_reference

G, S, D = 2, 4, 8


def tensors(num_blocks: int, dtype: torch.dtype = torch.bfloat16, count: int = 3) -> list[Tensor]:
    return [torch.randn(num_blocks, G, S, D).to(dtype) for _ in range(count)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("pairs", [[], [(0, 4)], [(5, 0), (1, 3), (1, 2)], [(i, 4 - i) for i in range(5)]])
def test_between_two_caches(dtype: torch.dtype, pairs: list[tuple[int, int]]) -> None:
    source, target = tensors(6, dtype), tensors(5, dtype)
    expected = [tensor.clone() for tensor in target]
    sources, targets = [a for a, _ in pairs], [b for _, b in pairs]
    copy_blocks_reference(BlockTensors(source), BlockTensors(expected), sources, targets)
    copy_blocks(BlockTensors(source), BlockTensors(target), sources, targets)
    for a, b in zip(target, expected, strict=True):
        assert torch.equal(a, b)


def test_within_a_cache_in_order() -> None:
    cache = tensors(5)
    expected = [tensor.clone() for tensor in cache]
    blocks = BlockTensors(cache)
    copy_blocks(blocks, blocks, [0, 1, 2], [1, 2, 4])
    for before, after in zip(expected, cache, strict=True):
        assert torch.equal(after, before[[0, 0, 0, 3, 0]])


@pytest.mark.parametrize("copy", [copy_blocks, copy_blocks_reference])
def test_what_does_not_fit_is_refused_before_any_copy(copy: object) -> None:
    assert callable(copy)
    source, target = tensors(6), tensors(5)
    before = [tensor.clone() for tensor in target]
    for sources, targets in (([0, 6], [0, 1]), ([0, 1], [0, 5]), ([0, -1], [0, 1]), ([0, 1], [0, -1])):
        with pytest.raises(IndexError):
            copy(BlockTensors(source), BlockTensors(target), sources, targets)
    with pytest.raises(ValueError, match="a source and a target"):
        copy(BlockTensors(source), BlockTensors(target), [0, 1], [0])
    for other in (
        tensors(5, torch.float32),
        tensors(5, count=2),
        [tensor[:, :1].contiguous() for tensor in tensors(5)],
    ):
        with pytest.raises(ValueError, match="do not fit"):
            copy(BlockTensors(source), BlockTensors(other), [0], [0])
    for a, b in zip(before, target, strict=True):
        assert torch.equal(a, b)


def test_tensors_that_are_not_alike_are_refused() -> None:
    with pytest.raises(ValueError, match="at least one"):
        BlockTensors([])
    for odd in (tensors(7)[0], tensors(6, torch.float32)[0], tensors(6)[0].transpose(1, 2)):
        with pytest.raises(ValueError, match="contiguous and alike"):
            BlockTensors([*tensors(6), odd])
