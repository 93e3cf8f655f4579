"""API keys: ``tct_<id>_<secret>``. The store knows the id and a digest of the secret; the secret is shown once.

The digest is one SHA-256. Digests of passwords are made slow to compute because people choose passwords that can be
guessed; 256 random bits cannot be, and a slow digest would only be work that anyone can cause with a wrong key.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from dataclasses import dataclass

_ID_BYTES = 8
_SECRET_BYTES = 32
# Nothing but letters, digits and _, so that a double click takes all of it; `tct_` lets scanners for leaks find it.
_FORM = re.compile(rf"tct_([0-9a-f]{{{2 * _ID_BYTES}}})_([0-9a-f]{{{2 * _SECRET_BYTES}}})")
# Stands for the digest of an id that does not exist: no secret has it.
NO_DIGEST = bytes(hashlib.sha256().digest_size)


@dataclass(frozen=True, slots=True)
class ApiKey:
    """A key in full. Its secret is in no repr, so that it is in no log and no traceback."""

    id: str
    secret: str

    def __repr__(self) -> str:
        return f"ApiKey({self.id})"

    def __str__(self) -> str:
        return repr(self)

    @property
    def text(self) -> str:
        """What its owner sends."""
        return f"tct_{self.id}_{self.secret}"

    @property
    def digest(self) -> bytes:
        """What the store keeps of the secret, 32 bytes."""
        return hashlib.sha256(self.secret.encode()).digest()

    def matches(self, digest: bytes) -> bool:
        """Whether `digest` is that of this secret, in a time that does not say how much of it is right."""
        return hmac.compare_digest(self.digest, digest)


def new_key() -> ApiKey:
    """A key that never was before."""
    return ApiKey(secrets.token_hex(_ID_BYTES), secrets.token_hex(_SECRET_BYTES))


def read_key(text: str) -> ApiKey | None:
    """The key that `text` is; None if it has not the form of one."""
    match = _FORM.fullmatch(text)
    return ApiKey(match[1], match[2]) if match else None
