"""A command at a pseudo-terminal, as a person would start it from a shell. Not a test."""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Protocol

import psutil

from tests.warm import WarmStarter

_SHELL = 'trap : INT TERM HUP; "$@"; echo "EXIT CODE $?"; while :; do sleep 1; done'
"""A shell that stays, so that nothing is ended because its terminal is closed. What it traps, its command does not."""


class Shell(Protocol):
    """What the command is started from."""

    pid: int

    def wait(self) -> object:
        """Until it has ended."""


class Forked:
    """A shell that is the child of another process."""

    def __init__(self, pid: int) -> None:
        self.pid = pid

    def wait(self) -> None:
        """Until it has ended; its parent reaps it some time."""
        with suppress(psutil.NoSuchProcess):
            while psutil.Process(self.pid).status() != psutil.STATUS_ZOMBIE:
                time.sleep(0.01)


class AtTerminal:
    """Runs a command in a session of its own.

    Args:
        command: Its words.
        folder: Where it runs.
        environment: All its variables.
        warm: Forks the command, `python SCRIPT ...`, where a shell would start it.
    """

    def __init__(
        self, command: Sequence[str], folder: Path, environment: dict[str, str], warm: WarmStarter | None = None
    ) -> None:
        self.master, self._slave = pty.openpty()
        self._said = bytearray()
        self.shell: Shell
        if warm:
            _, script, *flags = command
            self.shell = Forked(warm.at_terminal(os.ttyname(self._slave), script, flags, environment))
        else:
            self.shell = subprocess.Popen(
                ["setsid", "-c", "bash", "-c", _SHELL, "bash", *command],
                cwd=folder,
                env=environment,
                stdin=self._slave,
                stdout=self._slave,
                stderr=self._slave,
            )
        self._closing = threading.Event()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def output(self) -> str:
        """What the terminal has been sent so far."""
        return bytes(self._said).decode(errors="replace")

    @property
    def lines(self) -> list[str]:
        """Lines that stay on the screen: of one that is written over its last state, and no empty ones."""
        found = []
        for line in self.output.replace("\r\n", "\n").split("\n"):
            shown = re.sub(r"\x1b\[2K", "", line.rpartition("\r")[2]).strip()
            if shown and not shown.startswith("EXIT CODE"):
                found.append(shown)
        return found

    @property
    def code(self) -> int | None:
        """The exit code of the command; None while it runs."""
        found = re.search(r"EXIT CODE (\d+)", self.output)  # also behind a progress bar without its line's end
        return int(found[1]) if found else None

    def ctrl_c(self) -> None:
        """What a person types."""
        os.write(self.master, b"\x03")

    def running(self) -> list[psutil.Process]:
        """Everything in the session but its shell."""
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.Error, ProcessLookupError):
                ours = os.getsid(process.pid) == self.shell.pid and process.pid != self.shell.pid
                alive = process.status() != psutil.STATUS_ZOMBIE
                if ours and alive and process.name() != "sleep":
                    found.append(process)
        return found

    def wait_until(self, condition: Callable[[], bool], seconds: float) -> bool:
        """Whether it became true in that time."""
        limit = time.monotonic() + seconds
        while time.monotonic() < limit:
            if condition():
                return True
            time.sleep(0.02)
        return condition()

    def wait(self, seconds: float = 120.0) -> int:
        """The exit code, once nothing runs any more."""
        self.wait_until(lambda: self.code is not None and not self.running(), seconds)
        left = [" ".join(process.cmdline()[:3]) for process in self.running()]
        assert self.code is not None and not left, f"{left} still run\n{self.output[-3000:]}"
        return self.code

    def close(self) -> None:
        """End the shell, and what was left."""
        for process in self.running():
            with suppress(psutil.Error):
                process.kill()
        with suppress(ProcessLookupError):
            os.kill(self.shell.pid, signal.SIGKILL)
        self.shell.wait()
        # A reader that is still at it would read on from whatever opens next under the descriptor's number.
        self._closing.set()
        self._reader.join()
        for end in (self._slave, self.master):
            os.close(end)

    def __enter__(self) -> AtTerminal:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _read(self) -> None:
        with suppress(OSError):
            while not self._closing.is_set():
                if select.select([self.master], [], [], 0.1)[0]:
                    self._said += os.read(self.master, 1 << 16)
