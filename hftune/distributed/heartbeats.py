"""How processes hear of each other while their main threads are busy or stuck: lines of JSON over TCP to rank 0.

Each process keeps one connection to a hub in rank 0's process. The system itself closes the connection of a process
that dies, and its keep-alive finds a machine that is gone, whatever the processes are doing: no death is guessed from
silence. A random word keeps strangers out (`door.py`); whatever comes ends at most the connection it came by.
"""

from __future__ import annotations

import json
import selectors
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from hftune.distributed.listener import Listener, PendingConnection, greeting, open_socket

Message = dict[str, Any]

_KEEPALIVE = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 4, "TCP_USER_TIMEOUT": 30_000}
"""A machine that does not answer is gone after 30 seconds."""

_ANSWERS_WITHIN = 3.0
"""Seconds in which processes that are alive say where they are."""

_LOST_TOGETHER = 1.0
"""Seconds in which connections that end are taken for one event: a machine has several processes."""

_LONGEST = 1 << 20


@dataclass
class Connection:
    """A connection that carries one JSON object a line; two threads may send."""

    socket: socket.socket
    unread: bytearray = field(default_factory=bytearray)
    sending: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in _KEEPALIVE.items():
            if hasattr(socket, name):  # Linux has them all
                self.socket.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)

    def send(self, message: Message) -> bool:
        """Whether the system took it; a peer that is gone is noticed when reading."""
        line = json.dumps(message).encode() + b"\n"
        try:
            with self.sending:
                self.socket.sendall(line)
        except OSError:
            return False
        return True

    def receive(self) -> list[Message] | None:
        """Whole messages that have come; None where the other side is gone. Call it when there is something to read."""
        try:
            read = self.socket.recv(1 << 16)
        except OSError:
            return None
        if not read or len(self.unread) > _LONGEST:
            return None
        self.unread += read
        *lines, rest = bytes(self.unread).split(b"\n")
        self.unread = bytearray(rest)
        try:
            found = [json.loads(line) for line in lines]
        except (ValueError, RecursionError):  # 100,000 brackets are the latter
            return None
        return found if all(isinstance(message, dict) for message in found) else None  # else: no process of ours

    def close(self) -> None:
        """Let go of it."""
        with suppress(OSError):
            self.socket.close()


@dataclass
class Member:
    """A process, as the hub knows it.

    Attributes:
        report: What it last said of itself: host, step, phase and so on.
        heard: When it last said anything.
        answered: When it last said where it is, after being asked.
    """

    wire: Connection
    report: Message
    heard: float = 0.0
    answered: float = 0.0

    def last_words(self) -> Message:
        """Its report, with `ago`, the seconds since then."""
        return {**self.report, "ago": round(time.monotonic() - self.heard, 1)}


class Hub:
    """Rank 0's ear. Its thread ends with `close`, or when it has told everybody what is wrong."""

    def __init__(
        self,
        word: str,
        judge: Callable[[dict[int, Message], set[int]], Message],
        *,
        expected: int | None = None,
        server: socket.socket | None = None,
    ) -> None:
        """Listen on a port that the system chooses.

        Args:
            word: Must come first on every connection.
            judge: Makes the verdict on a hang from the reports by rank and the ranks that did not answer.
            expected: How many processes there are; nobody else is let in, and nobody at all once they are here.
            server: Where they come in, as `door.listen` makes it; left out: on this machine's loopback.
        """
        self.word, self._judge = word, judge
        server = server or open_socket(one_machine=True, master="")
        self.address, self.port = str(server.getsockname()[0]), int(server.getsockname()[1])
        self._members: dict[int, Member] = {}
        self._selector = selectors.DefaultSelector()
        self._door = Listener(server, word, expected, self._selector)
        self._asked: float | None = None
        self._lost: dict[int, Message] = {}
        self._lost_at = 0.0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._listen, name="hftune hub", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """All is well: the others need not wonder where this process has gone."""
        self._tell({"end": True})
        self._over.set()

    def forget(self) -> None:
        """In a forked child: a connection ends when nobody holds it any more."""
        self._door.server.close()
        for member in self._members.values():
            member.wire.close()

    def _listen(self) -> None:
        while not self._over.is_set():
            for key, _ in self._selector.select(0.25):
                if isinstance(key.data, Listener):
                    key.data.accept()
                elif isinstance(key.data, PendingConnection):
                    self._let_in(key.data)
                else:
                    self._read(key.data)
            self._door.tidy()
            if self._lost and time.monotonic() - self._lost_at > _LOST_TOGETHER:
                self._decide({"kind": "lost", "ranks": sorted(self._lost), "reports": self._lost})
            elif self._asked is not None:
                self._maybe_judge(self._asked)
        self._door.close()

    def _let_in(self, stranger: PendingConnection) -> None:
        """Whoever has said the word is a process of the run from then on."""
        if stranger.socket.fileno() < 0:
            return  # the door closed while this event waited
        rank = self._door.hear(stranger)
        if rank is not None:
            stranger.socket.settimeout(10)
            wire = Connection(stranger.socket)
            self._members[rank] = Member(wire, {})
            self._selector.register(stranger.socket, selectors.EVENT_READ, wire)

    def _read(self, wire: Connection) -> None:
        messages = wire.receive()
        rank = next((rank for rank, member in self._members.items() if member.wire is wire), None)
        for message in messages or ():
            if rank not in self._members:
                break  # it has said goodbye, and its watchdog's thread a word after that
            self._hear(rank, message)
        if messages is None:
            self._selector.unregister(wire.socket)
            wire.close()
            if rank is not None and (member := self._members.pop(rank, None)) is not None:
                self._lost_at = self._lost_at or time.monotonic()
                self._lost[rank] = member.last_words()

    def _hear(self, rank: int, message: Message) -> None:
        member = self._members[rank]
        member.heard = time.monotonic()
        report = message.get("report")
        member.report |= report if isinstance(report, dict) else {}
        if "answer" in message:
            member.answered = time.monotonic()
        if message.get("stalled") and self._asked is None:
            self._asked = time.monotonic()
            self._tell({"where": True})
        if "bye" in message:
            del self._members[rank]
            if message["bye"]:
                told = {"words": str(message["bye"]), "reports": {rank: member.report}}
                self._decide({"kind": "failed", "ranks": [rank], **told})

    def _maybe_judge(self, asked: float) -> None:
        silent = {rank for rank, member in self._members.items() if member.answered < asked}
        if not silent or time.monotonic() - asked > _ANSWERS_WITHIN:
            self._decide(self._judge({rank: member.last_words() for rank, member in self._members.items()}, silent))

    def _decide(self, verdict: Message) -> None:
        if not self._over.is_set():
            self._tell({"verdict": verdict})
            self._over.set()

    def _tell(self, message: Message) -> None:
        for member in list(self._members.values()):
            member.wire.send(message)


def connect(address: str, port: int, rank: int, word: str, report: Message) -> Connection:
    """A connection to the hub.

    Raises:
        OSError: It cannot be reached.
    """
    wire = Connection(socket.create_connection((address, port), timeout=30))
    wire.socket.settimeout(10)
    wire.socket.sendall(greeting(word, rank))
    wire.send({"report": report})
    return wire
