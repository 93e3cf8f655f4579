"""Who listens and who is connected, as this process's own files say."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator

import pytest

from tercet.listeners import num_connected, stop_listening


@pytest.fixture
def listening() -> Iterator[socket.socket]:
    with socket.socket() as made:
        made.bind(("127.0.0.1", 0))
        made.listen()
        yield made


def test_nobody_is_let_in_any_more_and_who_is_there_stays(listening: socket.socket) -> None:
    address = listening.getsockname()
    with socket.create_connection(address) as client:
        server, _ = listening.accept()
        with server:
            assert num_connected({address[1]}) == 1
            stop_listening({address[1]})
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection(address)
            client.sendall(b"on")
            assert server.recv(2) == b"on"
            assert num_connected({address[1]}) == 1
        assert num_connected({address[1]}) == 0


def test_other_ports_are_left_alone(listening: socket.socket) -> None:
    stop_listening({listening.getsockname()[1] - 1})
    socket.create_connection(listening.getsockname()).close()


def test_no_file_is_left_open(listening: socket.socket) -> None:
    port, before = listening.getsockname()[1], len(os.listdir("/dev/fd"))
    with socket.create_connection(listening.getsockname()):
        num_connected({port})
        stop_listening({port})
    assert len(os.listdir("/dev/fd")) == before


def test_of_two_that_share_a_port_the_other_is_let_in() -> None:
    with socket.socket() as leaving:
        leaving.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        leaving.bind(("127.0.0.1", 0))
        leaving.listen()
        stop_listening({leaving.getsockname()[1]})
        with socket.socket() as other:
            other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            other.bind(leaving.getsockname())
            other.listen()
            for _ in range(20):
                socket.create_connection(leaving.getsockname()).close()
