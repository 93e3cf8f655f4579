"""TCP ports of this host: which are free."""

from __future__ import annotations

import contextlib
import random
import socket

from tercet.errors import ConfigError

MAX_PORT = 65535
# None that systems give to connections, or to whoever asks for any: one of these might be taken before it is used.
_CHOICE = range(20_000, 30_000)
_TRIES = 50
# A seed that somebody has set would choose the same for two processes.
_random = random.SystemRandom()


def free_ports(count: int) -> list[int]:
    """Ports nobody listens on now, all different."""
    with contextlib.ExitStack() as stack:
        return [_take_port(stack.enter_context(socket.socket())) for _ in range(count)]


def _take_port(listener: socket.socket) -> int:
    for port in _random.sample(_CHOICE, _TRIES):
        with contextlib.suppress(OSError):
            listener.bind(("127.0.0.1", port))
            return port
    listener.bind(("127.0.0.1", 0))
    return int(listener.getsockname()[1])


def check_port_free(key: str, host: str, port: int, *, flag: str = "--port") -> None:
    """Raises ConfigError naming `key`, and `flag` as what chooses another port, if ``host:port`` is not to be had."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            listener.listen(1)
    except OSError as error:
        reason = error.strerror or str(error)
        raise ConfigError(
            key, f"cannot listen on {host}:{port} ({reason}); stop what uses it or choose another port with {flag}"
        ) from error
