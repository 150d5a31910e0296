"""Turn a hang, or the death of another process, into a message and an exit code on every process.

`start` gives each process a thread that looks at its phase (`phases.py`) every few seconds and tells the hub in rank
0's process (`hub.py`). Where a phase lasts longer than the time-out, the hub asks all processes where they are and
gives the verdict (`verdicts.py`); every process prints it with the stack of its main thread and ends. A process that
dies is noticed at once, and named likewise.
"""

from __future__ import annotations

import faulthandler
import os
import select
import socket
import sys
import threading
import time
from dataclasses import dataclass, field
from typing import Protocol

from hftune import terminal
from hftune.constants import STALLED_EXIT_CODE
from hftune.distributed import connection_errors, phases, ranks, stacks, verdicts
from hftune.distributed.connection import Connection, Message
from hftune.logging import notice
from hftune.on_demand import on_demand
from hftune.visible import visible

# Seconds between two looks at the phase: at most, and at least where the time-out itself is short.
_BEAT, _QUICKEST = 5.0, 0.2

_SAME_HOST_GRACE = 3.0
"""Seconds in which a launcher ends the other processes of its machine, whose words would only repeat the first."""

_HUB_ANSWERS_WITHIN = 10.0
"""Seconds after which rank 0's process is taken to be frozen itself."""

_PAUSE = 10.0
"""Seconds without a look after which this process, not its work, has stood still: Ctrl-Z, a debugger."""

_FROZEN = 60.0
"""Seconds beyond the time-out after which the thread itself is taken to be stuck; then the system dumps the stacks."""


class Hub(Protocol):
    """The part of `hub.Hub` that is used here; the class is imported only where several processes run."""

    def close(self) -> None:
        """As of `hub.Hub`."""

    def close_in_child(self) -> None:
        """As of `hub.Hub`."""


@dataclass
class Watchdog:
    """The watchdog's thread of one process.

    Args:
        timeout: Seconds that a timed phase may last.
        hub: In rank 0's process, where there are several.
        connection: To the hub, likewise.
        hub_host: The machine of rank 0.
    """

    timeout: float
    hub: Hub | None = None
    connection: Connection | None = None
    hub_host: str = ""
    done: threading.Event = field(default_factory=threading.Event)
    leaving: bool = False

    def __post_init__(self) -> None:
        self.rank, self.host = ranks.rank(), socket.gethostname()
        self._complained: float | None = None
        self._looked, self._forgiven = time.monotonic(), (0, 0.0)
        # A daemon: a thread that waits must not keep a finished process alive.
        self._thread = threading.Thread(target=self._watch, name="hftune watchdog", daemon=True)
        self._thread.start()

    @property
    def beat(self) -> float:
        """Seconds between two looks at the phase."""
        return max(_QUICKEST, min(_BEAT, self.timeout / 5))

    def stop(self, words: str = "") -> None:
        """End without a fault of the others; `words` say why they cannot continue without this process."""
        self.leaving = True
        self.done.set()
        if self.connection is not None:
            # Before the process ends: a connection that closes without goodbye is a loss to the others.
            self.connection.send({"bye": words, "report": self._report(phases.now())})
        if self.hub is not None:
            self.hub.close() if not words else time.sleep(0.5)  # the hub's thread tells the others these words
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
        if self.connection is not None:
            self.connection.send({"report": self._report(phase)})
        # Every time, also where no phase is timed: the time of the last look is kept there.
        paused = self._paused(phase)
        if not phase.timed or phase.seconds - paused < self.timeout:
            return
        report = self._report(phase) | self._details()
        if self.connection is None:
            self._end(verdicts.judge_hang({self.rank: report}, set()))
        elif self._complained is None:
            self._complained = time.monotonic()
            self.connection.send({"report": report, "stalled": True})
        elif time.monotonic() - self._complained > _HUB_ANSWERS_WITHIN:  # rank 0 is frozen itself
            self._end(verdicts.judge_hang({0: report | self._first(), self.rank: report}, {0}))

    def _paused(self, phase: phases.Phase) -> float:
        """Seconds of a phase in which this whole process stood still, its watchdog as well."""
        looked, self._looked = self._looked, time.monotonic()
        gap = self._looked - looked - self.beat
        count, seconds = self._forgiven
        # A pause is forgiven to the phase in which it was, and not to the next one.
        seconds = seconds if count == phase.count else 0.0
        self._forgiven = (phase.count, seconds + (gap if gap > _PAUSE else 0.0))
        return self._forgiven[1]

    def _hear(self) -> None:
        if self.connection is None:
            self.done.wait(self.beat)
            return
        if not select.select([self.connection.socket], [], [], self.beat)[0]:
            return
        messages = self.connection.receive()
        for message in messages or ():
            if message.get("end"):
                self.done.set()
            elif message.get("where"):
                self.connection.send({"report": self._report(phases.now()) | self._details(), "answer": True})
            elif "verdict" in message:
                self._end(message["verdict"])
        if messages is None and not self.done.is_set():
            self._end({"kind": "lost", "ranks": [0], "reports": {0: self._report(phases.now()) | self._first()}})

    def _first(self) -> Message:
        """What is known of rank 0 without an answer from it."""
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
            time.sleep(_SAME_HOST_GRACE)  # the launcher's SIGTERM may end this process first
        if self.leaving:
            return
        self.leaving = True
        text = verdicts.render(verdict, self.rank, self.timeout, stacks.main_thread_stack())
        terminal.write_unbuffered(visible(text))
        if self.hub is not None:
            time.sleep(1.0)  # the others hear the verdict from this process
        terminal.release()
        # Not sys.exit: this is not the main thread, which is stuck and would be waited for.
        os._exit(STALLED_EXIT_CODE)


_watchdog: Watchdog | None = None


def start(timeout: float) -> None:
    """Watch this process and, through rank 0, all of them; every process must call it. 0 seconds: do not."""
    global _watchdog
    stop()  # the one of a run before in this process
    if timeout <= 0:
        return
    phases.enter(phases.PREPARATION, 0)
    if not ranks.is_distributed() or ranks.world_size() == 1:
        if ranks.world_size() > 1:
            notice("there is no process group yet: each process watches itself alone")
        _watchdog = Watchdog(timeout)
    else:
        _watchdog = Watchdog(timeout, *on_demand("hftune.distributed.hub:join_hub")())


def _close_in_child() -> None:
    """Close this copy of the sockets in a forked child, such as a worker of a data loader.

    A connection that the child held open would hide the end of its parent from the others.
    """
    global _watchdog
    if _watchdog is not None and _watchdog.connection is not None:
        _watchdog.connection.close()
    if _watchdog is not None and _watchdog.hub is not None:
        _watchdog.hub.close_in_child()
    _watchdog = None


os.register_at_fork(after_in_child=_close_in_child)


def stop() -> None:
    """Watch nothing any more; the work is done."""
    global _watchdog
    if _watchdog is not None:
        _watchdog.stop()
        _watchdog = None


def on_exit(error: BaseException | None) -> None:
    """Tell the others that the script ends, and why; ends the process itself where it ends because others are gone.

    Put into `errors.exit_hooks` by `launch.prepare_environment`.
    """
    if error is None or not (ranks.world_size() > 1 and connection_errors.lost_contact(error)):
        if _watchdog is not None:
            _watchdog.stop(_last_message(error))
        return
    if _watchdog is not None and _watchdog.connection is not None:
        _watchdog.done.wait(_HUB_ANSWERS_WITHIN)  # its thread hears who is gone, says so and ends the process
    who = f"[rank {ranks.rank()}] " if ranks.rank() else ""
    terminal.write_unbuffered(visible(f"\n{who}error: {connection_errors.describe_lost_contact(error)}\n\n"))
    terminal.release()
    os._exit(STALLED_EXIT_CODE)


def _last_message(error: BaseException | None) -> str:
    if error is None or (isinstance(error, SystemExit) and not error.code) or getattr(error, "on_all_ranks", False):
        return ""
    name = "" if hasattr(error, "render") else f"{type(error).__name__}: "
    # A message may quote a record; the hub takes a megabyte from a connection at most.
    return f"{name}{str(error).strip()}"[:2000]


def _can_dump() -> bool:
    """Whether the standard error is a real file, as faulthandler needs; under some test runners it is not."""
    try:
        return sys.__stderr__ is not None and sys.__stderr__.fileno() >= 0
    except (OSError, ValueError):
        return False
