"""Traffic classes that a workload names: one that is misspelt would be a limit for nobody, and nothing would tell."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from .workload import Workload
from .workload_error import WorkloadError


def check_known(workload: Workload, known: Collection[str]) -> None:
    """Raises WorkloadError for a class that the server does not have."""
    for field, name in (*_asked(workload), *(("slo", name) for name in workload.slo if name)):
        if name not in known:
            raise WorkloadError(field, f"the server has no class {name!r}; it has {', '.join(sorted(known))}")


def check_used(workload: Workload) -> None:
    """Raises WorkloadError for limits of a class that no request names. Those of one that nobody names are the
    server's to choose, and not told."""
    used = {name for _, name in _asked(workload)}
    for name in workload.slo:
        if name and name not in used:
            raise WorkloadError("slo", f"no request is of class {name!r}: --classes, a tenant or a trace names those")


def _asked(workload: Workload) -> Iterator[tuple[str, str]]:
    """Field and name of each class that requests have."""
    principals = workload.principals
    named = [
        *(("classes", name) for name in principals.classes),
        *(("tenants", each.traffic_class) for each in principals.tenants),
        *(("trace", each.traffic_class) for each in workload.recorded()),
    ]
    return ((field, name) for field, name in dict.fromkeys(named) if name)
