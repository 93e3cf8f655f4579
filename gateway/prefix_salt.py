"""Where a request's chain of prefix hashes starts, which decides whose cached blocks it can find."""

from __future__ import annotations

import hmac
from hashlib import blake2b, sha256

from tercet.grammar.grammar import OWNER_BYTES

_SIZE = 32
_DOMAIN, _OWNER_DOMAIN = b"tercet.v1.salt", b"tercet.v1.owner"


def prefix_salt(cache_salt: str, salt_key: bytes | None = None) -> bytes:
    """The salt that the mesh is told: 32 bytes that do not show `cache_salt`.

    With the `salt_key` of its tenant no other tenant has it, even one that knows `cache_salt`; all of a tenant begin
    with the same bytes, by which its grammars take turns with those of others. Without tenants only
    `cache_salt` is secret, and no salt, b"", is that of the cache common to all.
    """
    if salt_key is not None:
        owner = blake2b(key=salt_key, digest_size=OWNER_BYTES, person=_OWNER_DOMAIN).digest()
        return owner + hmac.digest(salt_key, cache_salt.encode(), sha256)[: _SIZE - OWNER_BYTES]
    return blake2b(cache_salt.encode(), digest_size=_SIZE, person=_DOMAIN).digest() if cache_salt else b""
