"""One JSON object a line between processes: whole lines only, and nothing of strangers."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from hftune.distributed.connection import _LONGEST, Connection


@pytest.fixture
def ends() -> Iterator[tuple[Connection, socket.socket]]:
    server = socket.create_server(("127.0.0.1", 0))
    far = socket.create_connection(server.getsockname())
    near, _ = server.accept()
    yield Connection(near), far
    for one in (near, far, server):
        one.close()


def test_messages_arrive_whole_and_in_order(ends: tuple[Connection, socket.socket]) -> None:
    near, far = ends
    far.sendall(b'{"a": 1}\n{"b"')
    assert near.receive() == [{"a": 1}]
    far.sendall(b": 2}\n")
    assert near.receive() == [{"b": 2}], "the rest of a line waits for the next packet"
    near.send({"c": [3]})
    assert far.recv(100) == b'{"c": [3]}\n'


@pytest.mark.parametrize("line", [b"no json\n", b"[1]\n", b"[" * 60_000 + b"\n", b'{"a": 1}\n3\n'])
def test_what_no_process_of_ours_sends_ends_the_connection(ends: tuple[Connection, socket.socket], line: bytes) -> None:
    near, far = ends
    far.sendall(line)
    assert near.receive() is None


def test_a_line_without_an_end(ends: tuple[Connection, socket.socket]) -> None:
    near, far = ends
    near.unread = bytearray(b"x" * (_LONGEST + 1))
    far.sendall(b"x")
    assert near.receive() is None


def test_a_peer_that_is_gone(ends: tuple[Connection, socket.socket]) -> None:
    near, far = ends
    far.close()
    near.send({"into": "nothing"})
    assert near.receive() is None
    near.close()
    near.send({"after": "closing"})
    assert near.receive() is None


def test_the_system_notices_a_machine_that_is_gone(ends: tuple[Connection, socket.socket]) -> None:
    near, _ = ends
    assert near.socket.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
    if hasattr(socket, "TCP_KEEPIDLE"):
        assert near.socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 10
