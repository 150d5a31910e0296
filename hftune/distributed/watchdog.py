"""Turn a hang, or the death of another process, into a message and an exit code on every process.

`start` gives each process a thread that looks at its phase (`phases.py`) every few seconds, and one that tells the
others (`heartbeats.py`). Where a phase lasts longer than the time-out, all processes say where they are; every one
judges (`verdicts.py`), prints the verdict with the stack of its main thread, and ends.
"""

from __future__ import annotations

import faulthandler
import os
import re
import socket
import sys
import threading
import time

from torch.distributed import DistNetworkError, DistStoreError

from hftune import terminal
from hftune.constants import STALLED_EXIT_CODE
from hftune.distributed import heartbeats, phases, ranks, stacks, verdicts
from hftune.distributed.verdicts import Report, Verdict
from hftune.logging import notice
from hftune.visible import visible

# Seconds between two looks at the phase: at most, and at least where the time-out itself is short.
_BEAT, _QUICKEST = 5.0, 0.2

_SAME_HOST_GRACE = 3.0
"""Seconds in which a launcher ends the other processes of its machine, whose words would only repeat the first."""

_FROZEN = 60.0
"""Seconds beyond the time-out after which the thread itself is taken to be stuck; then the system dumps the stacks."""


class Watchdog:
    """What watches one process.

    Args:
        timeout: Seconds that a timed phase may last.
        alone: There are no others to be told, or no way to tell them.
    """

    def __init__(self, timeout: float, *, alone: bool) -> None:
        self.timeout, self.rank, self.host, self.pid = timeout, ranks.rank(), socket.gethostname(), os.getpid()
        self.beat = max(_QUICKEST, min(_BEAT, timeout / 5))
        self.done, self._lock, self._spoken = threading.Event(), threading.Lock(), False
        self._looked, self._resumed = time.monotonic(), 0.0
        self.others = None if alone else heartbeats.join(self._report, self._end, self.beat)
        # A daemon: a thread that waits must not keep a finished process alive.
        self._thread = threading.Thread(target=self._watch, name="hftune watchdog", daemon=True)
        self._thread.start()

    def stop(self, words: str = "") -> None:
        """End without a fault of the others; `words` say why they cannot continue without this process."""
        self._spoken = True
        self.done.set()
        if self.others is not None:
            self.others.stop(words)
        if _can_dump():
            faulthandler.cancel_dump_traceback_later()

    def _watch(self) -> None:
        while not self.done.is_set():
            if _can_dump():  # runs in a thread of the system's: also where this one cannot
                faulthandler.dump_traceback_later(self.timeout + _FROZEN, exit=True, file=terminal.error_descriptor())
            self._look()
            self.done.wait(self.beat)
        if _can_dump():  # `stop` may have come between the question above and the arming
            faulthandler.cancel_dump_traceback_later()

    def _look(self) -> None:
        phase, now = phases.now(), time.monotonic()
        if now - self._looked - self.beat > heartbeats.PAUSE:  # this whole process stood still: Ctrl-Z, a debugger
            self._resumed = now
            if self.others is not None:
                self.others.answered = now
        self._looked = now
        late = phase.timed and now - max(phase.since, self._resumed) >= self.timeout
        if self.others is None:
            if late:
                self._end(verdicts.judge({"words": ""}, {self.rank: self._report(True)}))
            return
        if late:
            self.others.ring()
        # The store's machine is gone, or rank 0, in whose process it is, has been stopped.
        patience = heartbeats.STORE_GONE if late else heartbeats.MACHINE_GONE
        if self.rank and now - self.others.answered > patience:
            self._end(self.others.without_store(hangs=late))

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

    def _end(self, verdict: Verdict) -> None:
        """Print the verdict in one piece and end the process, whatever its main thread does."""
        if verdict.kind == "end":  # rank 0 has done its work, and this process is about to
            return self.done.set()
        theirs = [verdict.reports[rank].get("host") for rank in verdict.ranks]
        if self.rank and verdict.kind != "hang" and self.host in theirs:
            time.sleep(_SAME_HOST_GRACE)  # the launcher's SIGTERM may end this process first
        with self._lock:  # both threads may come here
            if self._spoken:
                return
            self._spoken = True
        text = verdicts.render(verdict, self.rank, self.timeout, stacks.main_thread_stack())
        terminal.write_unbuffered(visible(text))
        if self.rank == 0 and self.others is not None:
            time.sleep(heartbeats.LINGER)  # the others read the reports, maybe from this very process
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
    alone = not ranks.is_distributed() or ranks.world_size() == 1
    if alone and ranks.world_size() > 1:
        notice("there is no process group yet: each process watches itself alone")
    _watchdog = Watchdog(timeout, alone=alone)


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
    if found is not None and found.others is not None:
        found.others.ring(words)
        # Its thread hears who is gone, says so and ends the process.
        found.done.wait(heartbeats.ANSWERS_WITHIN + heartbeats.STORE_GONE + _SAME_HOST_GRACE)
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
_NEVER_MET = re.compile(r"client socket has timed out|Timed out after .* waiting for clients|failed to connect")


def lost_contact(error: BaseException | None) -> bool:
    """Whether an error, of any backend, means that other processes are gone."""
    if isinstance(error, DistNetworkError | DistStoreError):
        return True
    return isinstance(error, RuntimeError) and _LOST.search(str(error)) is not None


def describe_lost_contact(error: BaseException) -> str:
    """The message for such an error where it is not known which process is gone."""
    where = f"{os.environ.get('MASTER_ADDR', '?')}:{os.environ.get('MASTER_PORT', '?')}"
    first = str(error).strip().splitlines()[0][:300]  # the rest is the backend's advice
    if _NEVER_MET.search(str(error)):
        return (
            f"the processes have not met: {os.environ.get('WORLD_SIZE', '?')} were to come to {where}\n"
            f"  where: {first}\n"
            "  to do: start as many as the launchers say, each with the same MASTER_ADDR and MASTER_PORT, which every "
            "machine can reach"
        )
    return (
        "lost contact with the other processes, and nobody said why\n"
        f"  where: {first}\n"
        "  to do: see their output; where they never met, name the network interface that machines share in "
        "GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME"
    )
