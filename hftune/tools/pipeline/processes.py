"""Starts the processes of a stage so that none outlives the runner, and ends them so that none is left.

Between the runner and the launcher stands a small process, the supervisor: launchers leave their ranks running when
they are killed themselves. The supervisor hears when the runner dies, adopts whatever the launcher leaves, and ends all
of it.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import BinaryIO, NoReturn, Protocol

import psutil

from hftune import child_processes
from hftune.opening.own_file import open_own

# Of <linux/prctl.h>; Python has no names for them.
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36


class Started(Protocol):
    """The interface of a running step."""

    def poll(self) -> int | None:
        """The exit code, negative for a signal; None while it runs."""

    def ask_to_stop(self) -> None:
        """Ask it to save a checkpoint and end."""

    def kill(self) -> None:
        """End it now, with everything that it started."""


class SupervisedProcess:
    """A command that runs under a supervisor."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._code: int | None = None

    def poll(self) -> int | None:
        """The exit code of the command, negative for a signal; None while it runs."""
        # A process can be waited for once only, so the code is kept.
        if self._code is None:
            done, status = os.waitpid(self.pid, os.WNOHANG)
            if done:
                code = os.waitstatus_to_exitcode(status)
                # The supervisor cannot die of its command's signal: it tells it as a shell does, 128 + number.
                self._code = 128 - code if code > 128 else code
        return self._code

    def ask_to_stop(self) -> None:
        """Send SIGTERM to one rank, or to the launcher if no rank is on this machine."""
        below = descendants(self.pid)
        scripts = {process.pid: process for process in below if _is_rank(process)}
        # Workers that a rank forks for its data look like it.
        ranks = [process for process in scripts.values() if _parent(process) not in scripts]
        # One is enough: ranks agree on stopping at the same step. With none here the launcher passes it on.
        for process in (ranks or below)[:1]:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.terminate()

    def kill(self) -> None:
        """Have the supervisor end everything, and then itself."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGTERM)


def start(command: Sequence[str], env: Mapping[str, str], log: Path | None) -> SupervisedProcess:
    """Run a command with its output in a log, or where this process has its own, and nothing to read.

    Raises:
        OSError: The disk does not take the log.
    """
    runner = os.getpid()
    # What is buffered at the fork would be printed twice, by either process.
    sys.stdout.flush()
    sys.stderr.flush()
    with open_own(log) if log is not None else contextlib.nullcontext() as stream:
        pid = os.fork()
        if pid:
            return SupervisedProcess(pid)
        _supervise(command, env, stream, runner)


def _supervise(command: Sequence[str], env: Mapping[str, str], log: BinaryIO | None, runner: int) -> NoReturn:
    """Run the command and exit, in the forked process. A signal of the command becomes an exit code above 128."""
    os.setsid()  # Ctrl-C in the terminal is the runner's alone
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _end_all)
    _prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    # Looked at after prctl: of a runner that died before it, no signal comes.
    if os.getppid() != runner:
        os._exit(1)
    try:
        child = child_processes.start(command, env=env, stdin=child_processes.DEVNULL, stdout=log, stderr=log)
        code = child.wait()
    except OSError as error:
        with contextlib.suppress(OSError):  # the exit code says it as well
            said = f"\nerror: {command[0]} cannot be started: {error.strerror}\n\n"
            os.write(log.fileno() if log is not None else 2, said.encode())
        # As a shell exits where it finds no command.
        code = 127
    _kill_below()
    # Never `sys.exit`: it would unwind the runner's copy of the stack, with its `finally` blocks and its lock.
    os._exit(code if code >= 0 else 128 - code)


def _end_all(number: int, frame: FrameType | None) -> None:
    _kill_below()
    os._exit(128 + number)


def _kill_below() -> None:
    """Kill all processes below this one."""
    # Again until nothing is left: a process that forks while it is killed leaves another.
    while below := descendants(os.getpid()):
        for process in below:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(below, timeout=1)
        _reap()


def _reap() -> None:
    """Read the exit codes of adopted processes that have ended: until then they stay as zombies."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            time.sleep(0)


def descendants(pid: int) -> list[psutil.Process]:
    """The processes below `pid` that still run, the oldest first."""
    try:
        below = psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []
    return [process for process in below if _alive(process)]


def _parent(process: psutil.Process) -> int | None:
    try:
        return int(process.ppid())
    except psutil.NoSuchProcess:
        return None


def _alive(process: psutil.Process) -> bool:
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def _is_rank(process: psutil.Process) -> bool:
    """Whether a process runs one of the scripts itself."""
    try:
        words = [Path(word).name for word in process.cmdline()]
    except psutil.Error:
        return False
    # Launchers have the script's name among their arguments too, but not as the first that python runs.
    after = [word for word in words[1:] if not word.startswith("-")]
    return bool(after) and words[0].startswith("python") and after[0].startswith(("run_", "merge_"))


def _prctl(option: int, value: int) -> None:
    """Call prctl(2), on Linux alone."""
    # Elsewhere a killed runner may leave its stage running; it holds the folder's lock, so the next runner says so.
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)
