"""Copies of blocks on a GPU, and between it and pinned memory, against their twin."""

from __future__ import annotations

import random

import pytest
import torch
from torch import Tensor

from tests.worker.cuda import needs_cuda
from worker.ops.block_copy import BlockTensors, copy_blocks, copy_blocks_reference

pytestmark = needs_cuda


def tensors(
    num_blocks: int, count: int = 3, pinned: bool = False, shape: tuple[int, ...] = (2, 16, 64)
) -> list[Tensor]:
    made = [torch.randn(num_blocks, *shape).to(torch.bfloat16) for _ in range(count)]
    return [tensor.pin_memory() if pinned else tensor.cuda() for tensor in made]


@pytest.mark.parametrize("source_pinned", [False, True])
@pytest.mark.parametrize("target_pinned", [False, True])
@pytest.mark.parametrize("shape", [(2, 16, 64), (1, 1, 3), (3, 5, 6)])
@pytest.mark.parametrize("num_copies", [0, 1, 7, 300])
def test_equals_the_twin(
    source_pinned: bool, target_pinned: bool, shape: tuple[int, int, int], num_copies: int
) -> None:
    if source_pinned and target_pinned:
        pytest.skip("the CPU's")
    source, target = tensors(40, 70, source_pinned, shape), tensors(301, 70, target_pinned, shape)
    expected = [tensor.clone() for tensor in target]
    pick = random.Random(num_copies)
    sources, targets = [pick.randrange(40) for _ in range(num_copies)], pick.sample(range(301), num_copies)
    copy_blocks(BlockTensors(source), BlockTensors(target), sources, targets)
    torch.cuda.synchronize()
    copy_blocks_reference(BlockTensors(source), BlockTensors(expected), sources, targets)
    torch.cuda.synchronize()
    for a, b in zip(target, expected, strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("seed", range(20))
def test_within_a_cache_in_order(seed: int) -> None:
    pick = random.Random(seed)
    cache = tensors(12)
    expected = [tensor.clone() for tensor in cache]
    pairs = [pick.sample(range(12), 2) for _ in range(pick.randrange(1, 40))]
    sources, targets = [a for a, _ in pairs], [b for _, b in pairs]
    blocks = BlockTensors(cache)
    copy_blocks(blocks, blocks, sources, targets)
    copy_blocks_reference(BlockTensors(expected), BlockTensors(expected), sources, targets)
    for a, b in zip(cache, expected, strict=True):
        assert torch.equal(a, b)


def test_a_block_that_is_not_there_is_refused_before_any_copy() -> None:
    source, target = tensors(4), tensors(3)
    kept = [tensor.clone() for tensor in target]
    for sources, targets in (([0, 4], [0, 1]), ([0, -1], [0, 1]), ([0, 1], [0, 3])):
        with pytest.raises(IndexError, match="is not one of"):
            copy_blocks(BlockTensors(source), BlockTensors(target), sources, targets)
    with pytest.raises(ValueError, match="a source and a target"):
        copy_blocks(BlockTensors(source), BlockTensors(target), [0, 1], [0])
    for a, b in zip(target, kept, strict=True):
        assert torch.equal(a, b)
