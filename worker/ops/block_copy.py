"""Copies of whole KV blocks, within a cache or between a device and its host. Knows no pool, no block tables."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from .. import _core
from .dtypes import KERNELS_BUILT, stream_of

if KERNELS_BUILT:
    from .. import _kernels


class BlockTensors:
    """Tensors [N, G, S, D] that hold the same blocks: K and V of every layer. Checked once: nobody may replace them.

    Raises ValueError unless they are contiguous, alike, and at least one.
    """

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        if not tensors:
            raise ValueError("at least one tensor of blocks is needed")
        first = tensors[0]
        for tensor in tensors:
            alike = tensor.shape == first.shape and tensor.dtype == first.dtype and tensor.device == first.device
            if not alike or not tensor.is_contiguous():
                raise ValueError("tensors of blocks must be contiguous and alike")
        self.tensors = tuple(tensors)
        self.device = first.device
        self.num_blocks = first.shape[0]
        self.block_shape = first.shape[1:]
        self.block_bytes = first.element_size() * self.block_shape.numel()  # in one tensor
        self.addresses = [tensor.data_ptr() for tensor in tensors]
        # What a GPU can reach: its own memory, and that of the host where it is pinned.
        self.on_gpu = self.device.type == "cuda"
        self.pinned = not self.on_gpu and all(tensor.is_pinned() for tensor in tensors)


def copy_blocks(
    source: BlockTensors, target: BlockTensors, source_blocks: Sequence[int], target_blocks: Sequence[int]
) -> None:
    """Copies block source_blocks[i] of each tensor of `source` to block target_blocks[i] of its partner, in order.

    No block may be copied to itself. On a GPU this returns before the copies are done: what the same stream does next
    finds them done, the host does not. Raises ValueError if source and target do not fit each other, IndexError on a
    block that is not there, both before any copy.
    """
    _check(source, target)
    if source.device.type == target.device.type == "cpu":
        _core.copy_blocks(
            source.addresses, target.addresses, source.block_bytes, source.num_blocks, target.num_blocks,
            source_blocks, target_blocks,
        )  # fmt: skip
    elif KERNELS_BUILT and (device := _gpu_of(source, target)) is not None:
        _kernels.copy_blocks(
            source.addresses, target.addresses, source.block_bytes, source.num_blocks, target.num_blocks,
            source_blocks, target_blocks, not (source.on_gpu and target.on_gpu), stream_of(device.tensors[0]),
        )  # fmt: skip
    else:
        copy_blocks_reference(source, target, source_blocks, target_blocks)


def _gpu_of(source: BlockTensors, target: BlockTensors) -> BlockTensors | None:
    """The side that is on a GPU, if that GPU can reach both."""
    if source.on_gpu and (target.pinned or target.device == source.device):
        return source
    return target if target.on_gpu and source.pinned else None


def copy_blocks_reference(
    source: BlockTensors, target: BlockTensors, source_blocks: Sequence[int], target_blocks: Sequence[int]
) -> None:
    """The twin of `copy_blocks`, block by block, on any devices."""
    _check(source, target)
    if len(source_blocks) != len(target_blocks):
        raise ValueError("a copy needs a source and a target")
    for side, blocks in ((source, source_blocks), (target, target_blocks)):
        if blocks and not 0 <= min(blocks) <= max(blocks) < side.num_blocks:
            raise IndexError(f"a block is not one of {side.num_blocks}")
    for source_tensor, target_tensor in zip(source.tensors, target.tensors, strict=True):
        for source_block, target_block in zip(source_blocks, target_blocks, strict=True):
            target_tensor[target_block].copy_(source_tensor[source_block], non_blocking=True)


def _check(source: BlockTensors, target: BlockTensors) -> None:
    fits = (
        len(source.tensors) == len(target.tensors)
        and source.block_shape == target.block_shape
        and source.tensors[0].dtype == target.tensors[0].dtype
    )
    if not fits:
        raise ValueError(
            f"{len(source.tensors)} tensors of blocks {list(source.block_shape)} do not fit into "
            f"{len(target.tensors)} of {list(target.block_shape)}"
        )
