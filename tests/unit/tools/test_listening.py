"""A port is held before anything is loaded."""

from __future__ import annotations

import socket

import pytest

from hftune.errors import ArgumentError
from hftune.tools.listening import bound


def test_a_port_that_is_taken() -> None:
    with bound("127.0.0.1", 0) as first:
        first.listen()
        port = first.getsockname()[1]
        with pytest.raises(ArgumentError, match=f"127.0.0.1:{port} cannot be listened at: Address already in use"):
            bound("127.0.0.1", port)
    # It is free again at once.
    with bound("127.0.0.1", port) as again, socket.socket():
        assert again.getsockname()[1] == port
    with pytest.raises(ArgumentError, match="cannot be listened at"):
        bound("203.0.113.1", 0)
