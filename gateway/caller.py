"""Who makes a call."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Caller:
    """The tenant that a call's key stands for. `salt_key`, 32 bytes, makes its salts; None: nobody keeps tenants.
    `max_concurrent`: how many requests its plan allows at a time; 0: any number."""

    tenant: str
    key_id: str
    operator: bool
    salt_key: bytes | None = field(default=None, repr=False)
    max_concurrent: int = 0


# Whoever calls where nobody keeps tenants: may do everything.
ANYONE = Caller("", "", operator=True)
