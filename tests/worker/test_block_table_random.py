"""Random operations on a pool and its tables against a model in Python."""

from __future__ import annotations

import itertools
import struct

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, rule

from worker._core import BlockPool, BlockTable, OutOfBlocks, blake2s

S = 4


def keys_of(salt: bytes, tokens: list[int]) -> list[int]:
    """The salt's key, then one for each full block of `tokens`."""
    name = blake2s(salt, b"tercet-s", 16)
    names = [name]
    for first in range(0, len(tokens) - S + 1, S):
        name = blake2s(name + struct.pack(f"<{S}i", *tokens[first : first + S]), b"tercet-b", 16)
        names.append(name)
    return [int.from_bytes(name[:8], "little") for name in names]


class ModelTable:
    """What a table must look like: its committed tokens and its blocks."""

    def __init__(self, real: BlockTable, salt: bytes) -> None:
        self.real = real
        self.salt = salt
        self.tokens: list[int] = []
        self.blocks: list[int] = []


class RandomOperations(RuleBasedStateMachine):
    """Pool and tables against a model that holds the KV itself: what each slot of each block contains.

    A slot's content is the salt and all tokens up to its own, which is exactly what its KV depends on. So a wrong hit,
    a wrong eviction or a missing copy shows as wrong content.
    """

    tables = Bundle("tables")

    @initialize(num_blocks=st.integers(1, 12), caching=st.booleans())
    def start(self, num_blocks: int, caching: bool) -> None:
        self.caching = caching
        self.pool = BlockPool(num_blocks, S, caching)
        self.content: list[list[object]] = [[None] * S for _ in range(num_blocks)]
        self.live: list[ModelTable] = []
        self.known: set[int] = set()
        self.parents: dict[int, int] = {}  # key of a block -> key of the block before it

    @rule(target=tables, salt=st.sampled_from([b"", b"a"]))
    def create(self, salt: bytes) -> ModelTable:
        table = ModelTable(BlockTable(self.pool, salt), salt)
        self.live.append(table)
        return table

    @rule(table=tables, tokens=st.lists(st.integers(0, 1), max_size=4 * S))
    def match(self, table: ModelTable, tokens: list[int]) -> None:
        if table.blocks:
            return
        found = table.real.match_prefix(tokens)
        assert found % S == 0
        assert found <= len(tokens)
        assert self.caching or found == 0
        table.tokens = tokens[:found]
        table.blocks = table.real.blocks()
        # The longest match: no used block holds the next one, if it was published by whoever wrote it.
        if self.caching and len(tokens) >= found + S:
            wanted = [(table.salt, *tokens[: found + i + 1]) for i in range(S)]
            for other in self.live:
                full = other.blocks[: len(other.tokens) // S]
                assert all(self.content[block] != wanted for block in full)

    @rule(table=tables, extra=st.integers(-2, 3 * S))
    def reserve(self, table: ModelTable, extra: int) -> None:
        wanted = max(0, len(table.tokens) + extra)
        needed = max(0, -(-wanted // S) - len(table.blocks))
        partial = len(table.tokens) // S if len(table.tokens) % S else None
        shared = partial is not None and sum(table.blocks[partial] in other.blocks for other in self.live) > 1
        copied = shared and wanted > len(table.tokens)
        room = self.pool.num_free + self.pool.num_cached
        try:
            copies = table.real.reserve(wanted)
        except OutOfBlocks:
            assert needed + copied > room
            assert table.real.blocks() == table.blocks
            return
        assert needed + copied <= room
        assert len(copies) == int(copied)
        for source, destination in copies:
            assert partial is not None
            assert source == table.blocks[partial]
            self.content[destination] = list(self.content[source])
        before = table.blocks
        table.blocks = table.real.blocks()
        assert len(table.blocks) == len(before) + needed
        assert all(a == b or i == partial for i, (a, b) in enumerate(zip(before, table.blocks, strict=False)))

    @rule(table=tables, extra=st.integers(-2, 2 * S))
    def trim(self, table: ModelTable, extra: int) -> None:
        wanted = len(table.tokens) + extra
        if extra < 0:
            with pytest.raises(RuntimeError):
                table.real.trim(wanted)
            return
        kept = -(-wanted // S)
        # What is beyond the tokens has one user and no name.
        assert table.real.trim(wanted) == len(table.blocks[kept:])
        table.blocks = table.blocks[:kept]
        assert table.real.blocks() == table.blocks

    @rule(table=tables, tokens=st.lists(st.integers(0, 1), max_size=2 * S))
    def commit(self, table: ModelTable, tokens: list[int]) -> None:
        first = len(table.tokens)
        sharers = sum(table.blocks[first // S] in other.blocks for other in self.live) if first % S else 1
        fits = first + len(tokens) <= len(table.blocks) * S and sharers == 1
        if tokens and not fits:
            with pytest.raises(RuntimeError):
                table.real.commit(tokens)
            return
        for position, slot in enumerate(table.real.slots(first, len(tokens)).tolist(), first):
            kv = (table.salt, *table.tokens, tokens[position - first])
            table.tokens.append(tokens[position - first])
            self.content[slot // S][slot % S] = kv
        table.real.commit(tokens)
        keys = keys_of(table.salt, table.tokens)
        self.parents |= {child: parent for parent, child in itertools.pairwise(keys)}

    @rule(target=tables, table=tables)
    def fork(self, table: ModelTable) -> ModelTable:
        child = ModelTable(table.real.fork(), table.salt)
        child.tokens = list(table.tokens)
        child.blocks = table.blocks[: -(-len(table.tokens) // S)]
        self.live.append(child)
        return child

    @rule(table=tables)
    def release(self, table: ModelTable) -> None:
        others = {block for other in self.live if other is not table for block in other.blocks}
        assert table.real.release() == len(set(table.blocks) - others)
        table.tokens, table.blocks = [], []

    @rule(table=consumes(tables))
    def drop(self, table: ModelTable) -> None:
        self.live.remove(table)
        del table.real

    @invariant()
    def pool_is_whole(self) -> None:
        if not hasattr(self, "pool"):
            return
        self.pool.check()
        assert self.pool.num_free + self.pool.num_cached + self.pool.num_used == self.pool.num_total
        assert self.pool.num_used == len(set(itertools.chain(*(table.blocks for table in self.live))))
        assert self.caching or self.pool.num_cached == 0

    @invariant()
    def events_tell_what_is_published(self) -> None:
        if not hasattr(self, "pool"):
            return
        removed, stored = (set(keys.tolist()) for keys in self.pool.take_events())
        assert removed <= self.known
        assert not stored & self.known
        self.known = (self.known - removed) | stored
        assert sorted(self.known) == self.pool.published_keys().tolist()
        # A cached prefix loses its end first: whose parent was evicted is either gone too, or in use.
        in_use = {key for table in self.live for key in keys_of(table.salt, table.tokens)}
        for key in self.known - in_use:
            assert self.parents.get(key) not in removed

    @invariant()
    def tables_see_their_own_tokens(self) -> None:
        for table in getattr(self, "live", []):
            assert table.real.blocks() == table.blocks
            assert table.real.num_tokens == len(table.tokens)
            for position in range(len(table.tokens)):
                block, offset = table.blocks[position // S], position % S
                assert self.content[block][offset] == (table.salt, *table.tokens[: position + 1])


RandomOperations.TestCase.settings = settings(max_examples=150, stateful_step_count=60, deadline=None)
TestRandomOperations = RandomOperations.TestCase
