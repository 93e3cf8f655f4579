"""Whose blocks are whose: a leader and its forks have the prompt's blocks together, and each is to be counted once."""

from __future__ import annotations

from . import _core


class SequenceGroup:
    """The block tables of those that began from one prefill and have not ended, by sequence id.

    The last that has a block counts it, so that what the members held adds up to what all held together.
    """

    # Weakly kept by those who look for it: it is gone with its last member.
    __slots__ = ("__weakref__", "_tables")

    def __init__(self) -> None:
        self._tables: dict[int, _core.BlockTable] = {}

    def join(self, sequence_id: int, table: _core.BlockTable) -> None:
        """Takes a member."""
        self._tables[sequence_id] = table

    def leave(self, sequence_id: int) -> tuple[int, int]:
        """A member gives its blocks back: how many it had that no other member has, and how many had no other user."""
        table = self._tables.pop(sequence_id)
        if not self._tables:
            return table.num_blocks, table.release()
        alone = set(table.blocks()).difference(*(other.blocks() for other in self._tables.values()))
        return len(alone), table.release()
