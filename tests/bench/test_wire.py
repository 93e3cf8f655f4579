"""The wires that the fault matrix breaks."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator

import pytest

from bench.wire import Wire, Wires

QUIET_S = 0.2
SOON_S = 5.0


@pytest.fixture
def echo() -> Iterator[int]:
    """The port of a server that says what it hears."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            while True:
                try:
                    peer, _ = server.accept()
                except OSError:
                    return
                threading.Thread(target=answer, args=(peer,), daemon=True).start()

        def answer(peer: socket.socket) -> None:
            with peer:
                try:
                    while data := peer.recv(1024):
                        peer.sendall(data)
                except OSError:
                    return

        threading.Thread(target=serve, daemon=True).start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def wire(echo: int) -> Iterator[Wire]:
    with Wires() as wires:
        yield wires.wire(echo)


def _dial(wire: Wire) -> socket.socket:
    peer = socket.create_connection(("127.0.0.1", wire.port), SOON_S)
    assert _ask(peer, b"hello") == b"hello"
    return peer


def _ask(peer: socket.socket, data: bytes) -> bytes:
    peer.sendall(data)
    return peer.recv(1024)


def test_it_carries_and_is_cut_and_carries_again(wire: Wire) -> None:
    with _dial(wire) as peer:
        wire.cut()
        with contextlib.suppress(OSError):
            assert not _ask(peer, b"anybody?")
    with _dial(wire):
        pass


def test_what_is_held_back_comes_later(wire: Wire) -> None:
    with _dial(wire) as peer:
        wire.stall()
        peer.settimeout(QUIET_S)
        with pytest.raises(TimeoutError):
            _ask(peer, b"anybody?")
        wire.flow()
        peer.settimeout(SOON_S)
        assert peer.recv(1024) == b"anybody?"


def test_one_end_that_is_cut_off_is_silence_at_the_other(wire: Wire) -> None:
    with _dial(wire) as peer:
        wire.cut_below()
        peer.settimeout(QUIET_S)
        for _ in range(3):
            with pytest.raises(TimeoutError):
                _ask(peer, b"anybody?")
    with _dial(wire):
        pass


def test_nobody_behind_it_is_a_connection_that_ends(echo: int) -> None:
    with Wires() as wires, socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
        free.close()
        wire = wires.wire(port)
        with socket.create_connection(("127.0.0.1", wire.port), SOON_S) as peer, contextlib.suppress(OSError):
            assert not peer.recv(1024)
