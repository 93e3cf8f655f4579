"""What a gateway that keeps tenants says of itself in the metadata of its calls to a scheduler: it has asked for an
operator's key."""

from __future__ import annotations

from collections.abc import Iterable

KEPT = ("tercet-tenants", "kept")


def says_kept(metadata: Iterable[tuple[str, str | bytes]] | None) -> bool:
    """Whether a call's metadata says so."""
    return KEPT in (tuple(each) for each in metadata or ())
