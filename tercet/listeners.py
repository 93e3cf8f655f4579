"""The sockets of this process at a port: what listens there, and what is connected.

gRPC's core cannot stop to listen and go on to serve: a server that is told to stop cancels the calls that reach it
before its clients know. So the sockets that it listens on are closed under it; the rest it takes for what it is.
"""

from __future__ import annotations

import contextlib
import os
import socket
import stat
from collections.abc import Collection, Iterator

# On Linux and macOS: a name for each open file.
_OPEN_FILES = "/dev/fd"


def stop_listening(ports: Collection[int]) -> None:
    """Nobody is let in at these ports any more; whoever is connected stays."""
    with _sockets(ports) as found:
        for each in found:
            if each.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                each.shutdown(socket.SHUT_RDWR)


def num_connected(ports: Collection[int]) -> int:
    """Connections that came in at these ports and have not ended."""
    with _sockets(ports) as found:
        return sum(map(_is_connected, found))


def _is_connected(each: socket.socket) -> bool:
    try:
        each.getpeername()
    except OSError:
        return False
    return True


@contextlib.contextmanager
def _sockets(ports: Collection[int]) -> Iterator[list[socket.socket]]:
    """All of this process whose own port is one of these, each once."""
    found: dict[int, socket.socket] = {}
    with contextlib.ExitStack() as opened:
        for name in os.listdir(_OPEN_FILES):
            # Others open and close files meanwhile: a copy stays what it is.
            with contextlib.suppress(OSError):
                copy = os.dup(int(name))
                opened.callback(os.close, copy)
                status = os.fstat(copy)
                if stat.S_ISSOCK(status.st_mode) and status.st_ino not in found:
                    each = opened.enter_context(contextlib.closing(socket.socket(fileno=os.dup(copy))))
                    if each.family in (socket.AF_INET, socket.AF_INET6) and each.getsockname()[1] in ports:
                        found[status.st_ino] = each
        yield list(found.values())
