"""All tenants and keys as they were at one moment. Knows no database."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass, field

from .api_key import NO_DIGEST, ApiKey
from .plan import TenantPlan


@dataclass(frozen=True, slots=True)
class Tenant:
    """One tenant. `uid` is its alone: one that takes the name of a tenant that was removed has another."""

    name: str
    uid: str
    plan: TenantPlan


@dataclass(frozen=True, slots=True)
class Key:
    """A key that was not revoked. `expires_at` is seconds since the epoch; None: never."""

    id: str
    tenant: str
    digest: bytes = field(repr=False)
    operator: bool
    expires_at: float | None


@dataclass(frozen=True, slots=True)
class Directory:
    """What the store held at `revision`. Tenants by name, keys that were not revoked by id; `server_key` is the secret
    that salts are made with."""

    revision: int
    server_key: bytes = field(repr=False)
    tenants: Mapping[str, Tenant]
    keys: Mapping[str, Key]

    @property
    def changed_at(self) -> float:
        """When the store was changed last, in seconds since the epoch; later where its clock had been set back."""
        return self.revision / 1e6

    def find(self, given: ApiKey, now: float) -> Key | None:
        """The key if it is right and has not expired; `now` is seconds since the epoch."""
        key = self.keys.get(given.id)
        # Computed in any case: how long a refusal takes does not say whether the id exists.
        right = given.matches(NO_DIGEST if key is None else key.digest)
        if key is None or not right or (key.expires_at is not None and now >= key.expires_at):
            return None
        return key

    def salt_key(self, tenant: str) -> bytes:
        """What the salts of a tenant's prefixes are made with, 32 bytes. Raises KeyError for no tenant."""
        return hmac.digest(self.server_key, b"tercet.v1.tenant:" + self.tenants[tenant].uid.encode(), hashlib.sha256)
