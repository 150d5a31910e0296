"""How processes hear of each other while their main threads are busy or stuck: a hub in rank 0's process.

Each process keeps one connection to a hub in rank 0's process. The system itself closes the connection of a process
that dies, and its keep-alive finds a machine that is gone, whatever the processes are doing: no death is guessed from
silence. A random token keeps others out (`listener.py`); whatever comes ends at most the connection it came by.
Imported where several processes run.
"""

from __future__ import annotations

import ipaddress
import os
import secrets
import selectors
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from hftune.distributed import ranks, verdicts
from hftune.distributed.connection import Connection, Message
from hftune.distributed.listener import Listener, PendingConnection, greeting, open_socket
from hftune.logging import get_logger

_ANSWERS_WITHIN = 3.0
"""Seconds in which processes that are alive say where they are."""

_LOST_TOGETHER = 1.0
"""Seconds in which connections that end are taken for one event: a machine has several processes."""

_SEND_WITHIN = 10.0
"""Seconds after which a peer that takes no bytes, its buffers full, no longer holds up the sender."""


@dataclass
class Member:
    """A process, as the hub knows it.

    Attributes:
        report: What it last said of itself: host, step, phase and so on.
        heard: When it last said anything.
        answered: When it last said where it is, after being asked.
    """

    connection: Connection
    report: Message
    heard: float = 0.0
    answered: float = 0.0

    def last_report(self) -> Message:
        """The member's last report, with `ago`, the seconds since then."""
        return {**self.report, "ago": round(time.monotonic() - self.heard, 1)}


class Hub:
    """Collects the reports of all processes, in a thread that ends with `close` or after it has sent a verdict."""

    def __init__(
        self,
        token: str,
        judge: Callable[[dict[int, Message], set[int]], Message],
        *,
        expected: int | None = None,
        server: socket.socket | None = None,
    ) -> None:
        """Listen on a port that the system chooses.

        Args:
            token: The secret of the run, which must come first on every connection.
            judge: Makes the verdict on a hang from the reports by rank and the ranks that did not answer.
            expected: How many processes there are; nobody else is admitted, and nobody at all once they are here.
            server: The listening socket, as `open_socket` makes it; left out: on this machine's loopback.
        """
        self.token, self._judge = token, judge
        server = server or open_socket(one_machine=True, master="")
        self.address, self.port = str(server.getsockname()[0]), int(server.getsockname()[1])
        self._members: dict[int, Member] = {}
        self._selector = selectors.DefaultSelector()
        self._listener = Listener(server, token, expected, self._selector)
        self._asked: float | None = None
        self._lost: dict[int, Message] = {}
        self._lost_at = 0.0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._listen, name="hftune hub", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Tell all members that the run ends without a fault, and stop."""
        self._broadcast({"end": True})
        self._over.set()

    def close_in_child(self) -> None:
        """Close this copy of the sockets in a forked child: a connection ends when no process holds it any more."""
        self._listener.server.close()
        for member in self._members.values():
            member.connection.close()

    def _listen(self) -> None:
        while not self._over.is_set():
            # The pause bounds how late time-outs and `close` are noticed.
            for key, _ in self._selector.select(0.25):
                if isinstance(key.data, Listener):
                    key.data.accept()
                elif isinstance(key.data, PendingConnection):
                    self._admit(key.data)
                else:
                    self._read(key.data)
            self._listener.drop_late()
            if self._lost and time.monotonic() - self._lost_at > _LOST_TOGETHER:
                self._announce({"kind": "lost", "ranks": sorted(self._lost), "reports": self._lost})
            elif self._asked is not None:
                self._maybe_judge(self._asked)
        self._listener.close()

    def _admit(self, pending: PendingConnection) -> None:
        """Make a member of a connection that has sent the token and its rank."""
        if pending.socket.fileno() < 0:
            return  # the listener closed it while this event waited
        rank = self._listener.authenticate(pending)
        if rank is not None:
            # With a time-out, a peer that reads nothing cannot hold up the hub's only thread for good.
            pending.socket.settimeout(_SEND_WITHIN)
            connection = Connection(pending.socket)
            self._members[rank] = Member(connection, {})
            self._selector.register(pending.socket, selectors.EVENT_READ, connection)

    def _read(self, connection: Connection) -> None:
        messages = connection.receive()
        rank = next((rank for rank, member in self._members.items() if member.connection is connection), None)
        for message in messages or ():
            if rank not in self._members:
                break  # it has said goodbye, and its watchdog's thread a word after that
            self._handle(rank, message)
        if messages is None:
            self._selector.unregister(connection.socket)
            connection.close()
            if rank is not None and (member := self._members.pop(rank, None)) is not None:
                # From the first loss on: later ones within the second belong to the same event.
                self._lost_at = self._lost_at or time.monotonic()
                self._lost[rank] = member.last_report()

    def _handle(self, rank: int, message: Message) -> None:
        member = self._members[rank]
        member.heard = time.monotonic()
        report = message.get("report")
        member.report |= report if isinstance(report, dict) else {}
        if "answer" in message:
            member.answered = time.monotonic()
        if message.get("stalled") and self._asked is None:
            self._asked = time.monotonic()
            self._broadcast({"where": True})
        if "bye" in message:
            # Removed before its connection closes: an end that was announced is no loss.
            del self._members[rank]
            if message["bye"]:
                told = {"words": str(message["bye"]), "reports": {rank: member.report}}
                self._announce({"kind": "failed", "ranks": [rank], **told})

    def _maybe_judge(self, asked: float) -> None:
        silent = {rank for rank, member in self._members.items() if member.answered < asked}
        # Once all have answered, or some do not in time: those are part of the verdict.
        if not silent or time.monotonic() - asked > _ANSWERS_WITHIN:
            reports = {rank: member.last_report() for rank, member in self._members.items()}
            self._announce(self._judge(reports, silent))

    def _announce(self, verdict: Message) -> None:
        if not self._over.is_set():
            self._broadcast({"verdict": verdict})
            self._over.set()

    def _broadcast(self, message: Message) -> None:
        # A copy: the main thread calls `close` while the hub's own thread admits and removes members.
        for member in list(self._members.values()):
            member.connection.send(message)


def connect(address: str, port: int, rank: int, token: str, report: Message) -> Connection:
    """A connection to the hub.

    Raises:
        OSError: It cannot be reached.
    """
    connection = Connection(socket.create_connection((address, port), timeout=30))
    connection.socket.settimeout(_SEND_WITHIN)
    connection.socket.sendall(greeting(token, rank))
    connection.send({"report": report})
    return connection


def join_hub() -> tuple[Hub | None, Connection | None, str]:
    """Open the hub in rank 0's process and connect to it; every process must call.

    Token and port are agreed on by a collective, so that the process group must be alive.

    Returns:
        The hub, in rank 0's process; a connection to it, None where it cannot be reached; rank 0's machine.
    """
    hosts = set(ranks.gathered_objects(socket.gethostname()))
    hub = open_hub(hosts) if ranks.is_main() else None
    found = (hub.token, hub.address, hub.port, socket.gethostname()) if hub is not None else ("", "", 0, "")
    token, address, port, host = ranks.gathered_objects(found)[0]
    return hub, _connected(token, address, port), host


def open_hub(hosts: set[str]) -> Hub:
    """A hub that the other machines reach where there are any; `hosts` are the names of all machines."""
    # Launchers may not say how many processes a machine has, and machines may share a name.
    one_machine = len(hosts) == 1 and ranks.local_world_size() == ranks.world_size()
    # On the address by which the other machines know rank 0, and no other interface.
    server = open_socket(one_machine=one_machine, master=os.environ.get("MASTER_ADDR", "127.0.0.1"))
    return Hub(secrets.token_hex(32), verdicts.judge_hang, expected=ranks.world_size(), server=server)


def _connected(token: str, address: str, port: int) -> Connection | None:
    """A connection to the hub; `address` is where it listens, which may be all interfaces."""
    if ipaddress.ip_address(address.partition("%")[0]).is_unspecified:
        address = "127.0.0.1" if ranks.is_main() else os.environ.get("MASTER_ADDR", "127.0.0.1")
    try:
        return connect(address, port, ranks.rank(), token, {"host": socket.gethostname()})
    except OSError as error:
        get_logger().warning(
            "rank %d cannot reach the watchdog at %s port %d (%s): a hang will be noticed here alone",
            *(ranks.rank(), address, port, error),
        )
        return None
