"""The table: prefix matches, room, forks, misuse."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

from worker import _core
from worker._core import BlockPool, BlockTable, OutOfBlocks, place_rows

S = 4


def filled(pool: BlockPool, token_ids: list[int], salt: bytes = b"") -> BlockTable:
    table = BlockTable(pool, salt)
    table.reserve(len(token_ids))
    table.commit(token_ids)
    return table


class TestHash:
    """The chain's hash is BLAKE2s as RFC 7693 has it."""

    def test_vector_of_rfc_7693(self) -> None:
        expected = "508c5e8c327c14e2e1a72ba34eeb452f37458b209ed63a294d999b4c86675982"
        assert _core.blake2s(b"abc", bytes(8), 32).hex() == expected

    @pytest.mark.parametrize("size", [0, 1, 55, 63, 64, 65, 127, 128, 129, 1000])
    @pytest.mark.parametrize("digest_size", [1, 16, 32])
    def test_equals_the_standard_library(self, size: int, digest_size: int) -> None:
        data = bytes(i * 7 % 256 for i in range(size))
        expected = hashlib.blake2s(data, digest_size=digest_size, person=b"tercet-b").digest()
        assert _core.blake2s(data, b"tercet-b", digest_size) == expected

    @pytest.mark.parametrize(("person", "digest_size"), [(b"short", 16), (b"tercet-b", 0), (b"tercet-b", 33)])
    def test_bad_parameters(self, person: bytes, digest_size: int) -> None:
        with pytest.raises(ValueError, match="must be"):
            _core.blake2s(b"", person, digest_size)


class TestPrefix:
    """Who finds whose blocks."""

    def test_whole_blocks_of_the_common_prefix(self) -> None:
        pool = BlockPool(16, S)
        owner = filled(pool, list(range(3 * S + 2)))
        for length, expected in [(0, 0), (S - 1, 0), (S, S), (2 * S + 3, 2 * S), (3 * S + 2, 3 * S)]:
            reader = BlockTable(pool)
            assert reader.match_prefix(list(range(length))) == expected
            assert reader.num_tokens == expected
            assert reader.blocks() == owner.blocks()[: expected // S]
        diverging = [*range(S), 99, *range(S + 1, 3 * S)]
        assert BlockTable(pool).match_prefix(diverging) == S

    def test_the_same_tokens_behind_another_prefix_do_not_match(self) -> None:
        pool = BlockPool(16, S)
        owner = filled(pool, [*range(S), *range(100, 100 + S)])
        assert BlockTable(pool).match_prefix(list(range(100, 100 + S))) == 0
        assert owner.num_blocks == 2

    def test_salts_isolate(self) -> None:
        pool = BlockPool(16, S)
        tenants = {salt: filled(pool, list(range(2 * S)), salt) for salt in (b"", b"a", b"b", bytes(100))}
        for salt, owner in tenants.items():
            reader = BlockTable(pool, salt)
            assert reader.match_prefix(list(range(2 * S))) == 2 * S
            assert reader.blocks() == owner.blocks()
        assert BlockTable(pool, b"c").match_prefix(list(range(2 * S))) == 0

    def test_tokens_computed_one_by_one_are_found(self) -> None:
        pool = BlockPool(16, S)
        table = BlockTable(pool)
        for token_id in range(2 * S):
            table.reserve(token_id + 1)
            table.commit([token_id])
            assert BlockTable(pool).match_prefix(list(range(2 * S))) == (token_id + 1) // S * S
        assert table.num_tokens == 2 * S

    def test_reserved_but_not_written_is_never_found(self) -> None:
        pool = BlockPool(16, S)
        table = BlockTable(pool)
        table.reserve(2 * S)
        table.commit(list(range(S)))
        assert BlockTable(pool).match_prefix(list(range(2 * S))) == S

    def test_arrays_and_lists_are_the_same(self) -> None:
        pool = BlockPool(16, S)
        table = BlockTable(pool)
        table.reserve(3 * S)
        table.commit(np.arange(S, dtype=np.int32))
        table.commit(np.arange(S, 2 * S, dtype=np.int64))
        table.commit(np.arange(4 * S, 6 * S, dtype=np.int32)[::2])
        token_ids = [*range(2 * S), *range(4 * S, 6 * S, 2)]
        assert BlockTable(pool).match_prefix(token_ids) == 3 * S
        assert BlockTable(pool).match_prefix(np.array(token_ids, np.int32)) == 3 * S

    @pytest.mark.parametrize("token_ids", [[2**31], [1.5], ["a"], None, 7])
    def test_what_is_not_a_token_id_is_refused(self, token_ids: object) -> None:
        table = BlockTable(BlockPool(4, S))
        table.reserve(1)
        with pytest.raises(TypeError):
            table.commit(token_ids)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="one dimension"):
            table.commit(np.zeros((1, 1), np.int32))
        assert table.num_tokens == 0


class TestRoom:
    """reserve, commit, slots, place_rows."""

    def test_slots(self) -> None:
        pool = BlockPool(8, S)
        other = filled(pool, list(range(S)))
        table = BlockTable(pool)
        table.reserve(S + 1)
        del other
        table.reserve(3 * S)
        expected = [block * S + offset for block in table.blocks() for offset in range(S)]
        assert table.slots(0, 3 * S).tolist() == expected
        assert table.slots(5, 3).tolist() == expected[5:8]
        assert table.slots(3 * S, 0).tolist() == []
        assert table.slots(0, 1).dtype == np.int64

    def test_room_that_was_reserved_in_vain_goes_back(self) -> None:
        pool = BlockPool(8, S)
        table = BlockTable(pool)
        table.reserve(3 * S + 1)
        first, second, third, _ = table.blocks()
        table.commit(list(range(S + 1)))
        assert table.trim(2 * S + 1) == 1
        assert table.blocks() == [first, second, third]
        assert table.trim(2 * S + 1) == 0
        assert table.trim(S + 1) == 1
        assert (table.num_blocks, table.num_tokens, pool.num_used) == (2, S + 1, 2)
        with pytest.raises(RuntimeError, match="trim to 4 tokens of 5 that are committed"):
            table.trim(S)
        pool.check()

    @pytest.mark.parametrize(("first", "count"), [(-1, 1), (0, -1), (0, S + 1), (S, 1), (2**31 - 1, 2**31 - 1)])
    def test_slots_beyond_the_room_are_refused(self, first: int, count: int) -> None:
        table = BlockTable(BlockPool(8, S))
        table.reserve(1)
        with pytest.raises(IndexError, match="not reserved"):
            table.slots(first, count)

    def test_rows_are_placed_one_behind_the_other(self) -> None:
        pool = BlockPool(8, S)
        long, short = BlockTable(pool), BlockTable(pool)
        short.reserve(1)
        long.reserve(3 * S)
        positions, slots = np.full(6, -1), np.full(6, -1)
        rows = np.full((2, 4), -1, np.int32)
        place_rows([long, short], np.array([S, 0]), np.array([5, 1]), positions, slots, rows)
        assert positions.tolist() == [*range(S, S + 5), 0]
        assert slots.tolist() == [*long.slots(S, 5), *short.slots(0, 1)]
        assert rows.tolist() == [[*long.blocks(), -1], [*short.blocks(), -1, -1, -1]]

    def test_rows_that_do_not_fit_are_refused(self) -> None:
        table = BlockTable(BlockPool(8, S))
        table.reserve(2 * S)

        def place(**fields: object) -> None:
            arguments: dict[str, object] = {
                "tables": [table],
                "firsts": np.array([3]),
                "counts": np.array([2]),
                "positions": np.zeros(2, np.int64),
                "slots": np.zeros(2, np.int64),
                "block_tables": np.zeros((1, 2), np.int32),
            }
            place_rows(**(arguments | fields))  # type: ignore[arg-type]

        place()
        read_only = np.zeros(2, np.int64)
        read_only.flags.writeable = False
        misfits: list[dict[str, object]] = [
            {"tables": []}, {"tables": [None]}, {"firsts": np.zeros(2, np.int64)}, {"counts": np.zeros(2, np.int64)},
            {"counts": np.array([3])}, {"counts": np.array([1])}, {"slots": np.zeros(3, np.int64)},
            {"positions": read_only}, {"slots": read_only}, {"block_tables": np.zeros((1, 1), np.int32)},
            {"block_tables": np.zeros((2, 2), np.int32)}, {"block_tables": np.zeros(2, np.int32)},
        ]  # fmt: skip
        for fields in misfits:
            with pytest.raises(ValueError, match=r"place_rows|fit|add up|writeable"):
                place(**fields)
        for fields in ({"firsts": np.array([2 * S - 1])}, {"firsts": np.array([-1])}, {"firsts": np.array([2**62])}):
            with pytest.raises(IndexError, match="not reserved"):
                place(**fields)
        for other in (np.zeros(2, np.int32), np.zeros(4, np.int64)[::2], [0, 0]):
            with pytest.raises(TypeError):
                place(slots=other)

    def test_commit_needs_room(self) -> None:
        table = BlockTable(BlockPool(8, S))
        table.reserve(2)
        with pytest.raises(RuntimeError, match="commit of 5 tokens needs room that was reserved; there is 4"):
            table.commit([1] * 5)
        table.commit([1] * 4)
        assert table.num_tokens == 4

    def test_match_needs_an_empty_table(self) -> None:
        table = BlockTable(BlockPool(8, S))
        table.reserve(1)
        with pytest.raises(RuntimeError, match="needs an empty block table"):
            table.match_prefix([1, 2])

    def test_reserve_refuses_nonsense(self) -> None:
        table = BlockTable(BlockPool(8, S))
        with pytest.raises(ValueError, match="must not be negative"):
            table.reserve(-1)
        with pytest.raises(OutOfBlocks):
            table.reserve(2**31 - 1)
        assert table.reserve(0) == []

    def test_a_released_table_starts_anew(self) -> None:
        pool = BlockPool(8, S)
        table = filled(pool, list(range(2 * S + 1)), b"salt")
        assert table.release() == 3
        assert table.release() == 0
        assert (table.num_blocks, table.num_tokens, table.blocks()) == (0, 0, [])
        assert table.match_prefix(list(range(2 * S + 1))) == 2 * S


class TestFork:
    """Sharing, and copy on write."""

    def test_full_blocks_are_shared_for_good(self) -> None:
        pool = BlockPool(8, S)
        parent = filled(pool, list(range(2 * S)))
        child = parent.fork()
        assert child.blocks() == parent.blocks()
        assert child.reserve(2 * S + 1) == []
        assert parent.reserve(2 * S + 1) == []
        assert child.blocks()[:2] == parent.blocks()[:2]
        assert child.blocks()[2] != parent.blocks()[2]
        pool.check()

    def test_a_partial_block_is_copied_by_all_but_the_last_writer(self) -> None:
        pool = BlockPool(8, S)
        parent = filled(pool, list(range(S + 2)))
        children = [parent.fork(), parent.fork()]
        shared = parent.blocks()[1]
        assert parent.reserve(S + 2) == [], "nothing is to be written"
        [(source, destination)] = parent.reserve(S + 3)
        assert (source, destination) == (shared, parent.blocks()[1])
        [(source, destination)] = children[0].reserve(S + 3)
        assert (source, destination) == (shared, children[0].blocks()[1])
        assert children[1].reserve(S + 3) == []
        assert children[1].blocks()[1] == shared
        pool.check()

    def test_forks_write_different_tokens(self) -> None:
        pool = BlockPool(8, S)
        parent = filled(pool, [0, 1])
        child = parent.fork()
        for table, token_ids in ((child, [2, 3]), (parent, [7, 8])):
            table.reserve(S)
            table.commit(token_ids)
        for table, token_ids in ((child, [0, 1, 2, 3]), (parent, [0, 1, 7, 8])):
            reader = BlockTable(pool)
            assert reader.match_prefix(token_ids) == S
            assert reader.blocks() == table.blocks()

    def test_a_fork_keeps_the_salt(self) -> None:
        pool = BlockPool(8, S)
        child = filled(pool, [0], b"tenant").fork()
        child.reserve(S)
        child.commit([1, 2, 3])
        assert BlockTable(pool, b"tenant").match_prefix([0, 1, 2, 3]) == S
        assert BlockTable(pool).match_prefix([0, 1, 2, 3]) == 0

    def test_reserved_room_is_not_shared(self) -> None:
        pool = BlockPool(8, S)
        parent = BlockTable(pool)
        parent.reserve(3 * S)
        parent.commit(list(range(S + 1)))
        assert parent.fork().blocks() == parent.blocks()[:2]

    def test_commit_into_a_shared_block_is_refused(self) -> None:
        pool = BlockPool(8, S)
        parent = BlockTable(pool)
        parent.reserve(S)
        parent.commit([0])
        child = parent.fork()
        with pytest.raises(RuntimeError, match="reserve comes first"):
            parent.commit([1])
        parent.reserve(S)
        parent.commit([1])
        assert (parent.num_tokens, child.num_tokens) == (2, 1)

    def test_copy_on_write_without_a_block_changes_nothing(self) -> None:
        pool = BlockPool(1, S)
        parent = filled(pool, [0])
        child = parent.fork()
        with pytest.raises(OutOfBlocks):
            child.reserve(2)
        assert child.blocks() == parent.blocks()
        assert parent.release() == 0, "the child still uses it"
        assert child.reserve(2) == []

    def test_release_counts_blocks_without_another_user(self) -> None:
        pool = BlockPool(8, S)
        parent = filled(pool, list(range(2 * S)))
        child = parent.fork()
        child.reserve(2 * S + 1)
        assert child.release() == 1
        assert parent.release() == 2
