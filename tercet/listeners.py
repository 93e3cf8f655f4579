"""The sockets of this process at a port: what listens there, and what is connected.

gRPC's core cannot stop to listen and go on to serve: a server that is told to stop cancels the calls that reach it
before its clients know. So the sockets that it listens on are closed under it; the rest it takes for what it is.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Collection, Iterator

# On Linux and macOS: a name for each open file.
_OPEN_FILES = "/dev/fd"


def stop_listening(ports: Collection[int]) -> None:
    """Nobody is let in at these ports any more; whoever is connected stays."""
    for each in _sockets(ports):
        if each.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            each.shutdown(socket.SHUT_RDWR)


def num_connected(ports: Collection[int]) -> int:
    """Connections that came in at these ports and have not ended."""
    return sum(map(_is_connected, _sockets(ports)))


def _is_connected(each: socket.socket) -> bool:
    try:
        each.getpeername()
    except OSError:
        return False
    return True


def _sockets(ports: Collection[int]) -> Iterator[socket.socket]:
    """All of this process whose own port is one of these, each until the next one: they stay whose they are."""
    for name in os.listdir(_OPEN_FILES):
        # No copies: there may be as many files open as may be. Others close theirs meanwhile.
        with contextlib.suppress(OSError):
            each = socket.socket(fileno=int(name))
            try:
                if each.family in (socket.AF_INET, socket.AF_INET6) and each.getsockname()[1] in ports:
                    yield each
            finally:
                each.detach()
