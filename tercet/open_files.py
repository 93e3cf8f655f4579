"""How many files this process may have open, and so how many connections it may accept."""

from __future__ import annotations

import contextlib
import resource

# About 20 KB each before anything is asked on it, three times that with TLS.
MAX_CONNECTIONS = 8_192
# For files, databases, and the connections that this process opens itself.
_KEPT = 256
_ENOUGH = 65_536


def allow_many() -> None:
    """Raises the limit of this process as far as it may, up to what can be of use."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _ENOUGH if hard == resource.RLIM_INFINITY else min(hard, _ENOUGH)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        # Where the system has another, lower limit, it stays as it is.
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def max_connections() -> int:
    """How many connections a server of this process may accept now."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MAX_CONNECTIONS if soft == resource.RLIM_INFINITY else connections_within(soft)


def connections_within(open_files: int) -> int:
    """The same for a limit of so many files."""
    return max(1, min(MAX_CONNECTIONS, open_files - min(_KEPT, open_files // 2)))
