"""Which blocks of a prompt a worker's prefix cache has: the names of blocks, as the workers make them.

A key is the first 8 bytes, little endian, of a block's name: BLAKE2s-128 of the name of the block before it and its own
token ids, 4 bytes each; the chain starts with the hash of the salt.
"""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Container, Iterable, Sequence
from hashlib import blake2s

_NAME_BYTES = 16
_first_word = struct.Struct("<Q").unpack_from
# The C type that has 4 bytes.
_WORD = next(code for code in "IL" if array(code).itemsize == 4)


def chain_keys(salt: bytes, token_ids: Sequence[int], block_size: int) -> tuple[int, ...]:
    """Keys of the full blocks of all but the last token: that one is computed whatever the cache holds."""
    name = blake2s(salt, digest_size=_NAME_BYTES, person=b"tercet-s").digest()
    words = array(_WORD, token_ids)
    if sys.byteorder == "big":
        words.byteswap()
    data, width = words.tobytes(), 4 * block_size
    keys = []
    for start in range(0, (len(token_ids) - 1) // block_size * width, width):
        name = blake2s(name + data[start : start + width], digest_size=_NAME_BYTES, person=b"tercet-b").digest()
        keys.append(_first_word(name)[0])
    return tuple(keys)


def cached_run(keys: Iterable[int], *caches: Container[int]) -> int:
    """How many of the first keys are each in one of the caches."""
    run = 0
    for key in keys:
        if not any(key in cache for cache in caches):
            break
        run += 1
    return run


class PromisedPrefixes:
    """Keys that a worker's cache will have once the sequences sent to it are prefilled.

    Without these a burst that shares a prefix would spread over all workers before the first of it is reported. They
    are kept per sequence, so that one that ends takes its promise back; what it did leave in the cache is reported.
    """

    __slots__ = ("_by_sequence", "_counts")

    def __init__(self) -> None:
        self._by_sequence: dict[int, tuple[int, ...]] = {}
        self._counts: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._by_sequence)

    def __contains__(self, key: object) -> bool:
        return key in self._counts

    def add(self, sequence_id: int, keys: tuple[int, ...]) -> None:
        """The sequence is on its way there. A promise of before is replaced."""
        self.settle(sequence_id)
        if keys:
            self._by_sequence[sequence_id] = keys
            counts = self._counts
            for key in keys:
                counts[key] = counts.get(key, 0) + 1

    def settle(self, sequence_id: int) -> None:
        """It is prefilled, or gone. Does nothing if it promised nothing."""
        for key in self._by_sequence.pop(sequence_id, ()):
            left = self._counts[key] - 1
            if left:
                self._counts[key] = left
            else:
                del self._counts[key]
