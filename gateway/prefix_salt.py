"""Where a request's chain of prefix hashes starts, which decides whose cached blocks it can find."""

from __future__ import annotations

import hmac
from hashlib import blake2b, sha256

_SIZE = 32
_DOMAIN = b"tercet.v1.salt"


def prefix_salt(cache_salt: str, salt_key: bytes | None = None) -> bytes:
    """The salt that the mesh is told: 32 bytes that do not show `cache_salt`.

    With the `salt_key` of its tenant no other tenant has it, even one that knows `cache_salt`. Without tenants only
    `cache_salt` is secret, and no salt, b"", is that of the cache common to all.
    """
    if salt_key is not None:
        return hmac.digest(salt_key, cache_salt.encode(), sha256)
    return blake2b(cache_salt.encode(), digest_size=_SIZE, person=_DOMAIN).digest() if cache_salt else b""
