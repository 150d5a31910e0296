"""Turn a hang, or the death of another process, into a message and an exit code on every process.

`start` gives each process a thread. Every second it writes a report (`phases.py`) under its rank into torch's own
TCPStore, looks for an alarm, and at its own phase; rank 0 also looks for machines that have fallen silent. Where a
phase lasts longer than the time-out somebody rings: each process writes where it is, reads what the others have
written, comes to the verdict by itself (`verdicts.py`), prints it with the stack of its main thread, and ends. The
store's server is no Python code: it answers also while a main thread keeps the interpreter to itself. Where no call
into the store returns, or this thread cannot run, faulthandler dumps the stacks and ends the process.
"""

from __future__ import annotations

import faulthandler
import json
import os
import re
import socket
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any
from uuid import uuid4

import torch.distributed as dist

from hftune import terminal
from hftune.constants import STALLED_EXIT_CODE
from hftune.distributed import phases, ranks, stacks, verdicts
from hftune.distributed.verdicts import Report, Verdict
from hftune.logging import get_logger, notice
from hftune.visible import visible

# Seconds between two looks and reports: at most, and at least where the time-out itself is short.
BEAT, _QUICKEST = 1.0, 0.2

ANSWERS_WITHIN = 3.0
"""Seconds in which processes that are alive say where they are."""

MACHINE_GONE = 45.0
"""Seconds without a word of any process of a machine; less could be code that keeps the interpreter to itself."""

LINGER = ANSWERS_WITHIN + 2.0
"""Seconds in which the others read the last word; the store may be in this very process."""

_SAME_HOST_GRACE = 3.0
"""Seconds in which a launcher ends the other processes of its machine, whose words would only repeat the first."""

_GOODBYE = 10.0
"""Seconds in which a process that ends waits for its thread to say so."""

_FROZEN = 60.0
"""Seconds beyond the time-out after which the thread itself is taken to be stuck; then the system dumps the stacks."""

_ALARM = "alarm"


class Watchdog:
    """The thread that watches one process, and alone talks to the store, which may stop answering.

    Turns are counted, not seconds: the whole process may stand still for an hour (Ctrl-Z, a debugger).

    Args:
        timeout: Seconds that a timed phase may last.
        store: torch's, by a connection of its own; None: there are no others, or no way to tell them.
    """

    def __init__(self, timeout: float, store: Any = None) -> None:  # a Store has no type in torch
        self.timeout, self.store, self.rank, self.world = timeout, store, ranks.rank(), ranks.world_size()
        self.host, self.pid, self.done = socket.gethostname(), os.getpid(), threading.Event()
        self.beat = max(_QUICKEST, min(BEAT, timeout / 5))
        self._heard: dict[int, tuple[bytes, int]] = {}  # the last report of a rank as written, and turns since then
        self._alarm: dict[str, Any] | None = None
        self._words, self._count = "", 0
        self._phase, self._spent = phases.now(), 0
        # A daemon: a thread that waits must not keep a finished process alive.
        self._thread = threading.Thread(target=self._watch, name="hftune watchdog", daemon=True)

    def start(self) -> None:
        """Begin to watch; all have written their first reports by now."""
        self._thread.start()

    def ring(self, words: str = "") -> None:
        """Have all processes say where they are, and judge; `words` of a lost contact, else it is a hang."""
        self._alarm = self._alarm or {"words": words, "rank": self.rank}

    def stop(self, words: str = "") -> None:
        """End without a fault of the others; `words` say why they cannot continue without this process."""
        self._words = words
        self.done.set()
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join(_GOODBYE)
        _disarm()

    def _watch(self) -> None:
        while not self.done.wait(self.beat):
            if _can_dump():  # runs in a thread of the system's: also where this one cannot
                faulthandler.dump_traceback_later(self.timeout + _FROZEN, exit=True, file=terminal.error_descriptor())
            try:
                verdict = self._turn()
            except (dist.DistError, OSError):
                # The server is gone, and with it rank 0; where the run is over, this process is about to know.
                if self.done.wait(ANSWERS_WITHIN):
                    break
                verdict = Verdict("lost", [0], {0: self._told().get(0, {})})
            if verdict is not None:
                return self._end(verdict)
        _disarm()
        if self.store is not None:
            with suppress(dist.DistError, OSError):
                self._leave()

    def _turn(self) -> Verdict | None:
        phase = phases.now()
        self._phase, self._spent = phase, self._spent + 1 if phase is self._phase else 0
        late = phase.timed and self._spent * self.beat >= self.timeout
        if self.store is None:
            return verdicts.judge({}, {self.rank: self._report(True)}) if late else None
        if late:
            self.ring()
        self.write()
        self._read(range(self.world) if self.rank == 0 else [0])
        if self.rank == 0 and (gone := self._gone()):
            self._alarm = {"ranks": gone}
        if self._alarm is not None:
            self._sound(self._alarm)
        if self.store.check([_ALARM]):
            return self._judge(json.loads(self.store.get(_ALARM)))
        if self.rank and self._told()[0].get("left"):  # its work is done, and this process is about to end, too
            self.done.set()
        return None

    def _report(self, details: bool) -> Report:
        phase = phases.now()
        report = {
            "host": self.host,
            "step": phase.step,
            "phase": phase.name,
            "count": phase.count,
            "seconds": round(phase.seconds, 1),
            # Reading and tokenising before training may keep the interpreter for long; what writes weights does not.
            "talks": phase.timed,
        }
        if details:
            report["waits"], report["place"] = stacks.waiting_for(), stacks.innermost_frame()
            report["stack"] = stacks.main_thread_stack()
        return report

    def write(self, *, details: bool = False, **more: Any) -> None:
        """Write the report of this process."""
        self._count += 1
        report = {**self._report(details), "beat": self._count, **more}
        self.store.set(str(self.rank), json.dumps(report))

    def _read(self, of: Sequence[int]) -> None:
        for rank, written in zip(of, self.store.multi_get([str(rank) for rank in of]), strict=True):
            before, turns = self._heard.get(rank, (b"", 0))
            self._heard[rank] = (written, turns + 1 if written == before else 0)

    def _told(self) -> dict[int, Report]:
        """The last report of each rank, with `ago`, the seconds since it came."""
        return {rank: {**json.loads(text), "ago": turns * self.beat} for rank, (text, turns) in self._heard.items()}

    def _gone(self) -> list[int]:
        """Ranks of machines of which nobody has said a word for long, though none may be silent, as before training."""
        told = self._told()
        speaking = {one["host"] for one in told.values() if one["ago"] < MACHINE_GONE or not one.get("talks")}
        return sorted(rank for rank, report in told.items() if report["host"] not in speaking)

    def _judge(self, alarm: dict[str, Any]) -> Verdict:
        """Say where this process is, wait for the others to do so, and judge."""
        if not alarm.get("left"):  # who has left has said all that there is
            self.write(details=True)
            time.sleep(ANSWERS_WITHIN)  # those that say nothing by then are part of the verdict
        self._read(range(self.world))
        return verdicts.judge(alarm, self._told())

    def _sound(self, alarm: dict[str, Any]) -> None:
        self.store.compare_set(_ALARM, "", json.dumps(alarm))  # the first one counts

    def _leave(self) -> None:
        self.write(left=True, words=self._words)
        if self._words:
            self._sound({"words": self._words, "rank": self.rank, "left": True})
            time.sleep(LINGER if self.rank == 0 else 0)

    def _end(self, verdict: Verdict) -> None:
        """Print the verdict in one piece and end the process, whatever its main thread does."""
        theirs = [verdict.reports[rank].get("host") for rank in verdict.ranks]
        if self.rank and verdict.kind != "hang" and self.host in theirs:
            time.sleep(_SAME_HOST_GRACE)  # the launcher's SIGTERM may end this process first
        if self.done.is_set():  # the main thread has come to its own end meanwhile
            return
        text = verdicts.render(verdict, self.rank, self.timeout, stacks.main_thread_stack())
        terminal.write_unbuffered(visible(text))
        if self.store is not None:  # the others read the reports, maybe from this very process, and speak as well
            time.sleep(LINGER if self.rank == 0 else 2 * self.beat)
        terminal.release()
        # Not sys.exit: this is not the main thread, which is stuck and would be waited for.
        os._exit(STALLED_EXIT_CODE)


_watchdog: Watchdog | None = None


def start(timeout: float) -> None:
    """Watch this process and, through torch's store, all of them; every process must call it. 0 seconds: do not."""
    global _watchdog
    stop()  # the one of a run before in this process
    if timeout <= 0:
        return
    phases.enter(phases.PREPARATION, 0)
    alone = not ranks.is_distributed() or ranks.world_size() == 1
    if alone and ranks.world_size() > 1:
        notice("there is no process group yet: each process watches itself alone")
    store = None if alone else _store()
    _watchdog = Watchdog(timeout, store)
    if store is not None:
        _watchdog.write()
    if not alone and not ranks.all_agree(store is not None):  # also until all have written
        _watchdog = Watchdog(timeout)
    _watchdog.start()


def _store() -> Any:
    """A store's part for this run; None, with a warning, where it cannot be reached.

    It is torchrun's own or that in rank 0's process: what listens is torch's alone.
    """
    # Runs that follow one another in the same processes, or with the same torchrun, share a store.
    word = ranks.gathered_objects(uuid4().hex)[0]
    address, port = os.environ.get("MASTER_ADDR", "127.0.0.1"), os.environ.get("MASTER_PORT", "0")
    patience = timedelta(seconds=MACHINE_GONE)
    try:
        # A connection of its own: what the main thread waits for on its one must not hold up a report.
        server = dist.TCPStore(address, int(port), is_master=False, timeout=patience)  # type: ignore[attr-defined]
        return dist.PrefixStore(f"hftune/{word}", server)  # type: ignore[attr-defined]
    except (dist.DistError, ValueError) as error:
        get_logger().warning(
            "rank %d cannot reach torch's store at %s:%s (%s): each process watches itself alone",
            *(ranks.rank(), address, port, error),
        )
        return None


def stop() -> None:
    """Watch nothing any more; the work is done."""
    global _watchdog
    if (found := _of_this_process()) is not None:
        found.stop()
    _watchdog = None


def on_exit(error: BaseException | None) -> None:
    """Tell the others that the script ends, and why; ends the process itself where it ends because others are gone.

    Put into `errors.exit_hooks` by `launch.prepare_environment`.
    """
    found = _of_this_process()
    if error is None or not (ranks.world_size() > 1 and lost_contact(error)):
        if found is not None:
            found.stop(_last_message(error))
        return
    words = describe_lost_contact(error)
    if found is not None and found.store is not None:
        found.ring(words)
        # Its thread hears who is gone, says so and ends the process.
        found.done.wait(ANSWERS_WITHIN + _GOODBYE + _SAME_HOST_GRACE)
    who = f"[rank {ranks.rank()}] " if ranks.rank() else ""
    terminal.write_unbuffered(visible(f"\n{who}error: {words}\n\n"))
    terminal.release()
    os._exit(STALLED_EXIT_CODE)


def _of_this_process() -> Watchdog | None:
    """The watchdog; None in a forked child such as a worker of a data loader, which has the object and no threads."""
    return _watchdog if _watchdog is not None and _watchdog.pid == os.getpid() else None


def _last_message(error: BaseException | None) -> str:
    if error is None or (isinstance(error, SystemExit) and not error.code) or getattr(error, "on_all_ranks", False):
        return ""
    name = "" if hasattr(error, "render") else f"{type(error).__name__}: "
    # A message may quote a record.
    return f"{name}{str(error).strip()}"[:2000]


def _disarm() -> None:
    if _can_dump():
        faulthandler.cancel_dump_traceback_later()


def _can_dump() -> bool:
    """Whether the standard error is a real file, as faulthandler needs; under some test runners it is not."""
    try:
        return sys.__stderr__ is not None and sys.__stderr__.fileno() >= 0
    except (OSError, ValueError):
        return False


# By their words: gloo and NCCL raise RuntimeError for this as for anything else (torch 2.11 to 2.13).
_LOST = re.compile(
    r"gloo[/.]|Connection (closed|reset) by peer|Connection refused|Broken pipe|connectFullMesh"
    r"|Timed out waiting .*(recv|send|barrier)|[Ww]ait timeout|NCCL error|ncclRemoteError|ncclSystemError"
    r"|NCCL communicator (was|is) aborted|collective operation timeout|monitoredBarrier"
)


def lost_contact(error: BaseException | None) -> bool:
    """Whether an error, of any backend, means that other processes are gone."""
    if isinstance(error, dist.DistNetworkError | dist.DistStoreError):
        return True
    return isinstance(error, RuntimeError) and _LOST.search(str(error)) is not None


def describe_lost_contact(error: BaseException) -> str:
    """The message for such an error where it is not known which process is gone."""
    where = f"{os.environ.get('MASTER_ADDR', '?')}:{os.environ.get('MASTER_PORT', '?')}"
    first = str(error).strip().splitlines()[0][:300]  # the rest is the backend's advice
    return (
        f"lost contact with the other processes (of {os.environ.get('WORLD_SIZE', '?')}, which meet at {where}), and "
        f"nobody said why\n  where: {first}\n"
        "  to do: see their output; where they never met, start as many as the launchers say, and name the network "
        "interface that machines share in GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME"
    )
