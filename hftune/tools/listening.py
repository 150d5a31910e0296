"""A port that is held before anything else is done."""

from __future__ import annotations

import socket

from hftune.errors import ArgumentError

LOCAL = ("127.0.0.1", "localhost", "::1")
"""Names by which a browser or a client asks for this machine."""


def bound(host: str, port: int) -> socket.socket:
    """A socket that holds the port.

    Raises:
        ArgumentError: It is taken, or there is no such address here.
    """
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        found = socket.socket(family, socket.SOCK_STREAM)
        # The port of a server that has just ended is free.
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind(address)
    except OSError as error:
        fix = "give another --port (0: any that is free), or end what listens there"
        cause = f"{host}:{port} cannot be listened at: {error.strerror or error}"
        raise ArgumentError(cause, place="--host, --port", fix=fix) from error
    return found
