"""KV blocks, sampling and CPU kernels in C++ (cpp/). Knows no torch: tensors come as addresses or numpy arrays."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

# --- KV blocks: cpp/include/tercet/block_pool.h, block_table.h -------------------------------------------------------

TokenIds = npt.NDArray[np.signedinteger[Any]] | Sequence[int]
"""[T] token ids below 2**31. A contiguous int32 array is read in place, anything else is converted."""

class OutOfBlocks(RuntimeError):
    """More blocks were asked for than are free or cached. Nothing was changed."""

class PoolCorrupt(RuntimeError):
    """`BlockPool.check` found a bug; the message names the first broken invariant."""

class BlockPool:
    """The KV blocks of one device. Not thread-safe: the thread that owns the device owns the pool and its tables.

    A block is free, cached (no user, but its content can still be found by its prefix) or used (by one table or more).
    Cached blocks are taken, least recently used first and the end of a prefix before its beginning, when none is free.
    num_free + num_cached + num_used = num_total.
    """

    def __init__(self, num_blocks: int, block_size: int, enable_prefix_caching: bool = True) -> None:
        """`block_size` is in tokens. Raises ValueError unless both are at least 1."""
    @property
    def block_size(self) -> int: ...
    @property
    def num_total(self) -> int: ...
    @property
    def num_free(self) -> int: ...
    @property
    def num_cached(self) -> int: ...
    @property
    def num_used(self) -> int: ...
    def hand_out_last(self, blocks: Sequence[int]) -> None:
        """Those of `blocks` that are free by now are taken after all other free ones."""
    def take_events(self) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint64]]:
        """Keys of blocks that can be found no more, and of those that can be found now, since the last call; ascending.

        A key is the first 8 bytes, little endian, of a block's name (cpp/include/tercet/prefix_hash.h). What was stored
        and removed since, or removed and stored, is in neither. Takes bounded memory even if nobody calls it.
        """
    def published_keys(self) -> npt.NDArray[np.uint64]:
        """Keys of all blocks that can be found, ascending."""
    def check(self) -> None:
        """Verifies every invariant of the pool and of all its tables; O(blocks). Raises PoolCorrupt.

        Releases the GIL: no other thread may use or drop a table of this pool meanwhile.
        """

class BlockTable:
    """The KV blocks of one sequence: `match_prefix` once, then [`reserve`, write the KV, `commit`]..., then `release`.

    Position p is in block p // S of the table, slot p % S. Tokens are committed when their KV is written; committed
    tokens never change. A table that is dropped releases its blocks.
    """

    def __init__(self, pool: BlockPool, salt: bytes = b"") -> None:
        """An empty table. Tables find each other's prefixes only if their salts are equal."""
    def match_prefix(self, token_ids: TokenIds) -> int:
        """Takes the longest run of cached full blocks that `token_ids` starts with; their tokens count as committed.

        Returns how many tokens that is: a multiple of S, 0 without prefix caching. Pass all but the last token of a
        prompt, since at least one has to be computed. Raises RuntimeError unless the table is empty.
        """
    def reserve(self, num_tokens: int) -> list[tuple[int, int]]:
        """Makes room for `num_tokens` tokens in all and makes the place behind the committed ones writable.

        Returns the (source, destination) block copies to do, in order, before the next write to the cache: a last
        block that a fork shares is replaced by its own copy. Does nothing if `num_tokens` are committed already. Raises
        OutOfBlocks and changes nothing if the pool has too few blocks, ValueError if `num_tokens` is negative.
        """
    def commit(self, token_ids: TokenIds) -> None:
        """Records tokens whose KV has been written behind the committed ones, and lets others find full blocks.

        Raises RuntimeError and changes nothing if room was not reserved, or if a fork shares the written block because
        `reserve` was not called since.
        """
    def trim(self, num_tokens: int) -> int:
        """Gives back the blocks behind those of the first `num_tokens` tokens; how many.

        Raises RuntimeError and changes nothing if more tokens are committed.
        """
    def fork(self) -> BlockTable:
        """A table with the same committed tokens, sharing their blocks. Reserved room beyond them is not shared."""
    def release(self) -> int:
        """Gives all blocks back; returns how many have no other user. The table is empty afterwards; again gives 0."""
    @property
    def block_size(self) -> int: ...
    @property
    def num_blocks(self) -> int: ...
    @property
    def num_tokens(self) -> int:
        """Committed tokens."""
    def blocks(self) -> list[int]:
        """A copy of the block ids, in order of position."""
    def slots(self, first: int, count: int) -> npt.NDArray[np.int64]:
        """[count] block * S + offset of positions first, first + 1, ... Raises IndexError beyond the reserved room."""

def place_rows(
    tables: Sequence[BlockTable],
    firsts: npt.NDArray[np.int64],
    counts: npt.NDArray[np.int64],
    positions: npt.NDArray[np.int64],
    slots: npt.NDArray[np.int64],
    block_tables: npt.NDArray[np.int32],
) -> None:
    """Where the tokens of a step stand: counts[b] tokens of table b from position firsts[b] on.

    Writes their positions and slots, one row behind the other, to `positions` and `slots` [T], and the tables' blocks
    to the beginning of each row of `block_tables` [B, >= num_blocks]; the rest of a row stays. `firsts` and `counts`
    are [B]. Raises ValueError if sizes do not fit each other or an array is not writable, TypeError for another type or
    one that is not contiguous, IndexError beyond a table's reserved room; what is in the arrays is then worthless.
    """

def blake2s(data: bytes, person: bytes, digest_size: int) -> bytes:
    """BLAKE2s (RFC 7693), the hash of prefixes. `person` is 8 bytes, `digest_size` 1 to 32; else ValueError."""

# --- Sampling: cpp/include/tercet/{sampler,philox,penalties,logprobs}.h ----------------------------------------------

def sample(logits: int, num_rows: int, vocab_size: int, params: int, token_ids: int) -> None:
    """Chooses a token per row; `worker.ops.sampler.sample_packed` is the checked face. Releases the GIL.

    Addresses of float32 logits [B, V], of SamplingParams [B], of int64 token ids [B].
    """

def penalize(logits: int, num_rows: int, vocab_size: int, rows: int, tokens: int, masks: int) -> None:
    """Changes logits in place; `worker.ops.penalties.penalize` is the checked face. Releases the GIL.

    Addresses of float32 logits [B, V], of PenaltyRow [B], of PenaltyTokens and of masks.
    """

def count_drawn(token_ids: int, num_rows: int, rows: int, tokens: int) -> None:
    """Takes note of what was drawn; `worker.ops.penalties.count_drawn` is the checked face. Releases the GIL.

    Addresses of int64 token ids [B], of PenaltyRow [B], of PenaltyTokens.
    """

def logprobs(
    logits: int, num_rows: int, vocab_size: int, chosen_ids: int, num_top: int, width: int, chosen: int, top_ids: int,
    top_logprobs: int,
) -> None:  # fmt: skip
    """Logprobs of each row; `worker.ops.logprobs.logprobs` is the checked face. Releases the GIL.

    Addresses of float32 logits [B, V], int64 chosen ids [B], int32 num_top [B]; results float32 [B], int64 [B, width],
    float32 [B, width].
    """

def philox4x32(counter: Sequence[int], key: Sequence[int]) -> list[int]:
    """The four words of Philox4x32-10 for four counter words and two key words of 32 bits."""

# --- Kernels: cpp/include/tercet/{thread_pool,linear,attention,block_copy,kv_write,norm,rope,activation}.h -----------
# Integers named like tensors are addresses; strides count elements. The checked faces are in `worker.ops`. All release
# the GIL.

def isa() -> str:
    """The instruction set in use: portable, avx2, avx512 or avx512bf16."""

def set_isa(name: str) -> None:
    """Chooses a lesser instruction set. Raises ValueError if this build or CPU lacks it. Not while kernels run."""

def num_threads() -> int:
    """Size of the kernels' thread pool, the caller included. At first the number of CPUs the process may use."""

def set_num_threads(count: int) -> None:
    """Replaces the pool's threads. Raises ValueError below 1 or above 1024."""

class PackedWeight:
    """A weight [num_outputs, depth] in tiles, for any number of rows. Copies what it is given."""

    def __init__(self, weight: int, is_bf16: bool, num_outputs: int, depth: int, row_stride: int, bias: int) -> None:
        """Raises ValueError on an empty weight, or bfloat16 of odd depth. `bias` is 0 for none."""
    def linear(self, x: int, x_stride: int, num_rows: int, out: int, out_is_bf16: bool) -> None: ...

def paged_attention(
    is_bf16: bool,
    q: int,
    q_token_stride: int,
    q_head_stride: int,
    k_cache: int,
    v_cache: int,
    out: int,
    num_tokens: int,
    num_heads: int,
    num_kv_heads: int,
    head_dim: int,
    num_blocks: int,
    block_size: int,
    num_sequences: int,
    query_starts: int,
    context_lens: int,
    block_tables: int,
    table_width: int,
    scale: float,
    window: int,
    softcap: float,
    /,
) -> None:
    """A `window` or `softcap` of 0 is none. Raises ValueError, before any work, on lengths that contradict each other
    or a block that is not there."""

def write_kv(
    is_bf16: bool,
    k: int,
    k_token_stride: int,
    k_head_stride: int,
    v: int,
    v_token_stride: int,
    v_head_stride: int,
    k_cache: int,
    v_cache: int,
    num_tokens: int,
    num_kv_heads: int,
    head_dim: int,
    num_blocks: int,
    block_size: int,
    slots: int,
    /,
) -> None:
    """Raises IndexError, before any write, on a slot outside the cache."""

def copy_blocks(
    sources: Sequence[int],
    targets: Sequence[int],
    block_bytes: int,
    num_source_blocks: int,
    num_target_blocks: int,
    source_blocks: Sequence[int],
    target_blocks: Sequence[int],
    /,
) -> None:
    """Raises ValueError on lists of different lengths, IndexError on a block that is not there, before any copy."""

def rms_norm(
    is_bf16: bool,
    x: int,
    x_outer_stride: int,
    x_inner_stride: int,
    residual: int,
    residual_outer_stride: int,
    residual_inner_stride: int,
    weight: int,
    out: int,
    num_outer: int,
    num_inner: int,
    dim: int,
    eps: float,
    /,
) -> None:
    """`residual` is 0 for none."""

def apply_rope(
    is_bf16: bool,
    q: int,
    q_token_stride: int,
    q_head_stride: int,
    num_heads: int,
    k: int,
    k_token_stride: int,
    k_head_stride: int,
    num_kv_heads: int,
    num_tokens: int,
    head_dim: int,
    positions: int,
    cos_sin: int,
    num_positions: int,
    /,
) -> None:
    """Raises IndexError, before any write, on a position outside the table."""

def gate_mul(
    is_bf16: bool, activation: int, gate_up: int, row_stride: int, out: int, num_rows: int, dim: int, /
) -> None:  # fmt: skip
    """`activation`: cpp/include/tercet/activation.h."""
