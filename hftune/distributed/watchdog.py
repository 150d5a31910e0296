"""A hang, or the end of another process, becomes a message and an exit code on every process.

`start` gives each process a thread that looks at its phase (`phases.py`) every few seconds and tells the hub in rank
0's process (`heartbeats.py`). Where a phase lasts longer than the time-out, the hub asks everybody where they are and
gives the verdict (`verdicts.py`); every process prints it with the stack of its main thread and ends. A process that
dies is noticed at once, and named likewise.
"""

from __future__ import annotations

import faulthandler
import ipaddress
import os
import secrets
import select
import socket
import sys
import threading
import time
from dataclasses import dataclass, field

from hftune import terminal
from hftune.constants import STALLED_EXIT_CODE
from hftune.distributed import connection_errors, phases, ranks, stacks, verdicts
from hftune.distributed.heartbeats import Connection, Hub, Message, connect
from hftune.distributed.listener import open_socket
from hftune.logging import get_logger, notice
from hftune.visible import visible

_BEAT, _QUICKEST = 5.0, 0.2
_SAME_HOST_GRACE = 3.0
"""Seconds in which a launcher ends the other processes of its machine, whose words would only repeat the first."""

_HUB_ANSWERS_WITHIN = 10.0
_PAUSE = 10.0
"""Seconds without a look after which this process, not its work, has stood still: Ctrl-Z, a debugger."""

_FROZEN = 60.0
"""Seconds beyond the time-out after which the thread itself is taken to be stuck; then the system dumps the stacks."""


@dataclass
class Watchdog:
    """The thread of one process.

    Args:
        timeout: Seconds that a timed phase may last.
        hub: In rank 0's process, where there are several.
        wire: To the hub, likewise.
        hub_host: The machine of rank 0.
    """

    timeout: float
    hub: Hub | None = None
    wire: Connection | None = None
    hub_host: str = ""
    done: threading.Event = field(default_factory=threading.Event)
    leaving: bool = False

    def __post_init__(self) -> None:
        self.rank, self.host = ranks.rank(), socket.gethostname()
        self._complained: float | None = None
        self._looked, self._forgiven = time.monotonic(), (0, 0.0)
        self._thread = threading.Thread(target=self._watch, name="hftune watchdog", daemon=True)
        self._thread.start()

    @property
    def beat(self) -> float:
        """Seconds between two looks."""
        return max(_QUICKEST, min(_BEAT, self.timeout / 5))

    def stop(self, words: str = "") -> None:
        """Say goodbye; `words` where the others cannot go on without this process."""
        self.leaving = True
        self.done.set()
        if self.wire is not None:
            self.wire.send({"bye": words, "report": self._report(phases.now())})
        if self.hub is not None:
            self.hub.close() if not words else time.sleep(0.5)
        if _can_dump():
            faulthandler.cancel_dump_traceback_later()

    def _watch(self) -> None:
        while not self.done.is_set():
            if _can_dump():  # runs in a thread of the system's: also where this one cannot
                faulthandler.dump_traceback_later(self.timeout + _FROZEN, exit=True, file=terminal.error_descriptor())
            self._look()
            self._hear()
        if _can_dump():  # `stop` may have come between the question above and the arming
            faulthandler.cancel_dump_traceback_later()

    def _look(self) -> None:
        phase = phases.now()
        if self.wire is not None:
            self.wire.send({"report": self._report(phase)})
        paused = self._paused(phase)
        if not phase.timed or phase.seconds - paused < self.timeout:
            return
        report = self._report(phase) | self._details()
        if self.wire is None:
            self._end(verdicts.judge_hang({self.rank: report}, set()))
        elif self._complained is None:
            self._complained = time.monotonic()
            self.wire.send({"report": report, "stalled": True})
        elif time.monotonic() - self._complained > _HUB_ANSWERS_WITHIN:  # rank 0 is frozen itself
            self._end(verdicts.judge_hang({0: report | self._first(), self.rank: report}, {0}))

    def _paused(self, phase: phases.Phase) -> float:
        """Seconds of a phase in which all of this process stood still, its watchdog as well."""
        looked, self._looked = self._looked, time.monotonic()
        gap = self._looked - looked - self.beat
        count, seconds = self._forgiven
        seconds = seconds if count == phase.count else 0.0
        self._forgiven = (phase.count, seconds + (gap if gap > _PAUSE else 0.0))
        return self._forgiven[1]

    def _hear(self) -> None:
        if self.wire is None:
            self.done.wait(self.beat)
            return
        if not select.select([self.wire.socket], [], [], self.beat)[0]:
            return
        messages = self.wire.receive()
        for message in messages or ():
            if message.get("end"):
                self.done.set()
            elif message.get("where"):
                self.wire.send({"report": self._report(phases.now()) | self._details(), "answer": True})
            elif "verdict" in message:
                self._end(message["verdict"])
        if messages is None and not self.done.is_set():
            self._end({"kind": "lost", "ranks": [0], "reports": {0: self._report(phases.now()) | self._first()}})

    def _first(self) -> Message:
        """What is known of rank 0 without its answer."""
        return {"host": self.hub_host, "waits": None, "place": None, "stack": None}

    def _report(self, phase: phases.Phase) -> Message:
        return {
            "host": self.host,
            "step": phase.step,
            "phase": phase.name,
            "count": phase.count,
            "seconds": round(phase.seconds, 1),
        }

    def _details(self) -> Message:
        return {"waits": stacks.waiting_for(), "place": stacks.innermost_frame(), "stack": stacks.main_thread_stack()}

    def _end(self, verdict: Message) -> None:
        """Print the verdict in one piece and end the process, whatever its main thread does."""
        reports = verdict["reports"].values()
        if self.rank and verdict["kind"] != "hang" and any(report.get("host") == self.host for report in reports):
            time.sleep(_SAME_HOST_GRACE)
        if self.leaving:
            return
        self.leaving = True
        text = verdicts.render(verdict, self.rank, self.timeout, stacks.main_thread_stack())
        terminal.write_unbuffered(visible(text))
        if self.hub is not None:
            time.sleep(1.0)  # the others hear the verdict from this process
        terminal.release()
        os._exit(STALLED_EXIT_CODE)


_watchdog: Watchdog | None = None


def start(timeout: float) -> None:
    """Watch this process and, through rank 0, all of them; every process must call it. 0 seconds: do not.

    The word that lets processes in and the port are agreed on by a collective, so the process group must be alive.
    """
    global _watchdog
    stop()
    if timeout <= 0:
        return
    phases.enter(phases.PREPARATION, 0)
    if not ranks.is_distributed() or ranks.world_size() == 1:
        if ranks.world_size() > 1:
            notice("there is no process group yet: each process watches itself alone")
        _watchdog = Watchdog(timeout)
    else:
        hosts = set(ranks.gathered_objects(socket.gethostname()))
        hub = _open_hub(hosts) if ranks.is_main() else None
        found = (hub.word, hub.address, hub.port, socket.gethostname()) if hub is not None else ("", "", 0, "")
        word, address, port, host = ranks.gathered_objects(found)[0]
        _watchdog = Watchdog(timeout, hub, _connected(word, address, port), host)


def _open_hub(hosts: set[str]) -> Hub:
    """Rank 0's, reachable from the other machines where there are any; `hosts` are the names of all machines."""
    # Launchers may not say how many processes a machine has, and machines may share a name.
    one_machine = len(hosts) == 1 and ranks.local_world_size() == ranks.world_size()
    server = open_socket(one_machine=one_machine, master=os.environ.get("MASTER_ADDR", "127.0.0.1"))
    return Hub(secrets.token_hex(32), verdicts.judge_hang, expected=ranks.world_size(), server=server)


def _close_in_child() -> None:
    """In a forked child, such as a worker of a data loader: it is not the process that others listen for."""
    global _watchdog
    if _watchdog is not None:
        for end in (_watchdog.wire, _watchdog.hub):
            if isinstance(end, Connection):
                end.close()
            elif isinstance(end, Hub):
                end.forget()
    _watchdog = None


os.register_at_fork(after_in_child=_close_in_child)


def stop() -> None:
    """The work is done; nothing is watched any more."""
    global _watchdog
    if _watchdog is not None:
        _watchdog.stop()
        _watchdog = None


def _connected(word: str, address: str, port: int) -> Connection | None:
    """A connection to the hub; `address` is where it listens, which may be "everywhere"."""
    if ipaddress.ip_address(address.partition("%")[0]).is_unspecified:
        address = "127.0.0.1" if ranks.is_main() else os.environ.get("MASTER_ADDR", "127.0.0.1")
    try:
        return connect(address, port, ranks.rank(), word, {"host": socket.gethostname()})
    except OSError as error:
        get_logger().warning(
            "rank %d cannot reach the watchdog at %s port %d (%s): a hang will be noticed here alone",
            *(ranks.rank(), address, port, error),
        )
        return None


def on_exit(error: BaseException | None) -> None:
    """The script ends: well, with an error of its own, or because others are gone; does not return in the last case.

    Put into `errors.exit_hooks` by `launch.prepare_environment`.
    """
    if error is None or not (ranks.world_size() > 1 and connection_errors.lost_contact(error)):
        if _watchdog is not None:
            _watchdog.stop(_parting_words(error))
        return
    if _watchdog is not None and _watchdog.wire is not None:
        _watchdog.done.wait(_HUB_ANSWERS_WITHIN)  # its thread hears who is gone, says so and ends the process
    who = f"[rank {ranks.rank()}] " if ranks.rank() else ""
    terminal.write_unbuffered(visible(f"\n{who}error: {connection_errors.describe_lost_contact(error)}\n\n"))
    terminal.release()
    os._exit(STALLED_EXIT_CODE)


def _parting_words(error: BaseException | None) -> str:
    if error is None or (isinstance(error, SystemExit) and not error.code) or getattr(error, "on_all_ranks", False):
        return ""
    name = "" if hasattr(error, "render") else f"{type(error).__name__}: "
    return f"{name}{str(error).strip()}"[:2000]


def _can_dump() -> bool:
    """Whether the standard error is a real file, which it is not under some test runners."""
    try:
        return sys.__stderr__ is not None and sys.__stderr__.fileno() >= 0
    except (OSError, ValueError):
        return False
