"""Who may talk to rank 0's hub: a socket on as few interfaces as will do, and a token before anything is parsed.

Anybody on the network may connect, send what they like, or send nothing. Each gets a few bytes and a few seconds;
what comes is compared with the secret token in constant time and never parsed. The socket closes when all have come.
"""

from __future__ import annotations

import errno
import hmac
import ipaddress
import selectors
import socket
import time
from contextlib import suppress
from dataclasses import dataclass, field

_LOOPBACK = "127.0.0.1"
_DIGITS = 10

MAX_PENDING = 256
"""Connections at once that have not sent the token; others wait in the system's queue."""

SECONDS_TO_AUTHENTICATE = 5.0
"""Seconds to send it; processes of the run do so with their first packet."""


def open_socket(*, one_machine: bool, master: str) -> socket.socket:
    """A listening socket that the other processes reach, on a port that the system chooses.

    Args:
        one_machine: Nobody comes over the network: loopback alone.
        master: Rank 0's machine as the others call it: its address alone, unless it is no address of this machine as
            seen from here (address translation, a name that means loopback here); then all interfaces.
    """
    # A backlog of thousands: all processes of a large run come at the same moment.
    if one_machine:
        return socket.create_server((_LOOPBACK, 0), backlog=4096)
    for family, address in _reachable_addresses(master):
        with suppress(OSError):
            return socket.create_server((address, 0), family=family, backlog=4096)
    both = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if both else socket.AF_INET
    return socket.create_server(("", 0), family=family, dualstack_ipv6=both, backlog=4096)


def _reachable_addresses(name: str) -> list[tuple[socket.AddressFamily, str]]:
    """The addresses behind a name that other machines may reach."""
    try:
        found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return []
    named = [(family, str(address[0])) for family, _, _, _, address in found]
    return [(family, address) for family, address in named if not _is_local_only(address)]


def _is_local_only(address: str) -> bool:
    # An IPv6 address may name its interface behind a `%`, which ipaddress does not need.
    known = ipaddress.ip_address(address.partition("%")[0])
    return known.is_loopback or known.is_unspecified


def greeting(token: str, rank: int) -> bytes:
    """The first bytes that a process sends: the token and its rank, of fixed length, so that nothing more is read."""
    return f"{token}{rank:0{_DIGITS}d}".encode()


@dataclass
class PendingConnection:
    """A connection that has not sent the token yet."""

    socket: socket.socket
    received: bytearray = field(default_factory=bytearray)
    since: float = field(default_factory=time.monotonic)


class Listener:
    """The listening socket and the connections that are not authenticated yet. Not thread-safe.

    Args:
        server: As `open_socket` gives it.
        token: The secret token of the run.
        expected: How many processes will come; then the socket closes. None: it stays open.
        selector: Of the hub; pending connections are registered there with themselves as data, the socket with this
            listener.
    """

    def __init__(
        self, server: socket.socket, token: str, expected: int | None, selector: selectors.BaseSelector
    ) -> None:
        self.server, self._token, self._expected, self._selector = server, token.encode(), expected, selector
        self._length = len(greeting(token, 0))
        self._pending: list[PendingConnection] = []
        self._admitted: set[int] = set()
        self._open = True
        server.setblocking(False)
        selector.register(server, selectors.EVENT_READ, self)
        self._accepting = True

    def accept(self) -> None:
        """Take the next connection from the system's queue."""
        try:
            connection, _ = self.server.accept()
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                time.sleep(0.05)  # it stays in the queue, and would be offered again at once
            return
        # One that sends nothing must not hold up the hub.
        connection.setblocking(False)
        pending = PendingConnection(connection)
        self._pending.append(pending)
        self._selector.register(connection, selectors.EVENT_READ, pending)
        self._accept_while(len(self._pending) < MAX_PENDING)

    def authenticate(self, pending: PendingConnection) -> int | None:
        """The rank of a connection that has sent the token; None while it has not. Its socket then is the caller's."""
        try:
            # No more than the greeting: what follows belongs to the connection.
            read = pending.socket.recv(self._length - len(pending.received))
        except BlockingIOError:
            return None
        except OSError:
            read = b""
        pending.received += read
        if read and len(pending.received) < self._length:
            return None
        rank = self._rank_of(bytes(pending.received)) if read else None
        if rank is None:
            self._drop(pending)
            return None
        self._forget(pending)
        # A rank comes once: a second connection with its number is refused, even with the token.
        self._admitted.add(rank)
        if self._expected is not None and len(self._admitted) >= self._expected:
            self.close()
        return rank

    def _rank_of(self, received: bytes) -> int | None:
        """The rank behind the right token; None where either is not one that is waited for."""
        token, digits = received[: len(self._token)], received[len(self._token) :]
        # In constant time: the time of a comparison that stops early would tell how much of a guess is right.
        if not hmac.compare_digest(token, self._token) or not digits.isdigit():
            return None
        rank = int(digits)
        odd = rank in self._admitted or (self._expected is not None and rank >= self._expected)
        return None if odd else rank

    def drop_late(self) -> None:
        """Close connections that have not sent the token in time."""
        late = time.monotonic() - SECONDS_TO_AUTHENTICATE
        for pending in [pending for pending in self._pending if pending.since < late]:
            self._drop(pending)

    def _drop(self, pending: PendingConnection) -> None:
        self._forget(pending)
        with suppress(OSError):
            pending.socket.close()

    def _forget(self, pending: PendingConnection) -> None:
        self._selector.unregister(pending.socket)
        self._pending.remove(pending)
        self._accept_while(len(self._pending) < MAX_PENDING)

    def _accept_while(self, room: bool) -> None:
        """Register the listening socket while there is room; else new connections wait in the system's queue."""
        if not self._open or room == self._accepting:
            return
        self._accepting = room
        if room:
            self._selector.register(self.server, selectors.EVENT_READ, self)
        else:
            self._selector.unregister(self.server)

    def close(self) -> None:
        """Stop listening, and close connections that are not authenticated."""
        if not self._open:
            return
        self._open = False
        if self._accepting:
            self._selector.unregister(self.server)
        self.server.close()
        for pending in list(self._pending):
            self._drop(pending)
