"""Where a request's chain of prefix hashes starts, which decides whose cached blocks it can find."""

from __future__ import annotations

from hashlib import blake2b

_SIZE = 32
_DOMAIN = b"tercet.v1.salt"


def prefix_salt(cache_salt: str) -> bytes:
    """The salt that the mesh is told: 32 bytes that do not show `cache_salt`, none for the cache common to all."""
    return blake2b(cache_salt.encode(), digest_size=_SIZE, person=_DOMAIN).digest() if cache_salt else b""
