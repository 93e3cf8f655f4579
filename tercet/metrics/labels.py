"""Values of labels, bounded whatever callers make up: each one costs memory here and in Prometheus for ever."""

from __future__ import annotations

from collections.abc import Collection

# All that are not told apart.
OTHER = "other"


class TenantLabels:
    """Tells tenants of `named` apart, and of the others the first `most` that come."""

    __slots__ = ("_known", "_left")

    def __init__(self, named: Collection[str], most: int) -> None:
        self._known = set(named)
        self._left = most

    def label(self, tenant: str) -> str:
        """The tenant's name, or OTHER."""
        if tenant not in self._known:
            if not self._left:
                return OTHER
            self._left -= 1
            self._known.add(tenant)
        return tenant


def known(value: str, values: Collection[str]) -> str:
    """The value if it is one of `values`, or none, else OTHER."""
    return value if not value or value in values else OTHER
