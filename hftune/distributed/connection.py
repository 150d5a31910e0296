"""A TCP connection between processes of a run, which carries one JSON object a line."""

from __future__ import annotations

import json
import socket
import threading
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

Message = dict[str, Any]

# Linux notices with these that a machine is gone after 30 seconds without an answer, however busy the processes are.
_KEEPALIVE = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 4, "TCP_USER_TIMEOUT": 30_000}

# Reports have some kilobytes, most of them a stack; a peer that sends more without a line end is none of ours.
_LONGEST = 1 << 20


@dataclass
class Connection:
    """One end of a connection; two threads may send."""

    socket: socket.socket
    unread: bytearray = field(default_factory=bytearray)
    sending: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in _KEEPALIVE.items():
            if hasattr(socket, name):
                self.socket.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)

    def send(self, message: Message) -> None:
        """Send a message; a peer that is gone is noticed when reading."""
        line = json.dumps(message).encode() + b"\n"
        # The lock keeps lines whole: the main thread says goodbye while the watchdog's thread reports.
        with suppress(OSError), self.sending:
            self.socket.sendall(line)

    def receive(self) -> list[Message] | None:
        """The whole messages that have arrived; None where the peer is gone. Call it when the socket is readable."""
        try:
            read = self.socket.recv(1 << 16)
        except OSError:
            return None
        if not read or len(self.unread) > _LONGEST:
            return None
        self.unread += read
        # A packet may end in the middle of a line: the rest waits for the next one.
        *lines, rest = bytes(self.unread).split(b"\n")
        self.unread = bytearray(rest)
        try:
            found = [json.loads(line) for line in lines]
        except (ValueError, RecursionError):  # 100,000 brackets are the latter
            return None
        return found if all(isinstance(message, dict) for message in found) else None  # else: no process of ours

    def close(self) -> None:
        """Close the socket."""
        with suppress(OSError):
            self.socket.close()
