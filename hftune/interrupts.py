"""Signals that ask this process to stop: Ctrl-C, a scheduler, a terminal that is closed, a launcher that forwards one.

Before training the first one raises `Interrupted` in the main thread: nothing has been written that matters. After
`defer` it is noted, for the trainer to act on at the end of a step. The second one ends the process at once.

Python runs its handlers between two bytecodes of the main thread, which may be inside a collective for minutes. So a
thread hears signals as well, through the file descriptor to which Python's own C handler writes each number.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

from hftune.constants import INTERRUPTED_EXIT_CODE

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)
# Stay ignored where they are: `nohup`, and jobs in the background of a script.
_USERS_CHOICE = (signal.SIGINT, signal.SIGHUP)

TOGETHER = 1.0
"""Seconds in which the same signal twice is one request: a terminal sends it to all, and torchrun passes it on. Another
signal is no second request either: DeepSpeed's launcher answers SIGINT with SIGTERM, and its end with SIGHUP."""

_WORKER_WAITS = 0.5


class Interrupted(KeyboardInterrupt):
    """The process was told to stop while nothing had to be saved."""


class Listener:
    """Handles the signals that ask one process to stop.

    Args:
        exits: Whether the second request ends the process, as in a script; else it raises KeyboardInterrupt, as a
            notebook expects, and no thread is needed.
        patience: Seconds in which the main thread may tidy up after `Interrupted` before the process ends without it.
        code: The exit code of that end.
    """

    def __init__(self, *, exits: bool, patience: float = 3.0, code: int = INTERRUPTED_EXIT_CODE) -> None:
        self.exits, self.patience, self.code = exits, patience, code
        self.signal: int | None = None
        self.deferring = self.leaving = self._raised = False
        self.announce: Callable[[str], None] = lambda text: None
        self.activity = "finishing this step, then a checkpoint is saved"
        self.last_acts: list[Callable[[], None]] = []
        self._first: dict[int, float] = {}
        self._before: dict[int, Any] = {}
        # Anonymous memory is shared with forks, so that workers of data loaders see the flag without a pipe of their
        # own.
        self._shared = mmap.mmap(-1, 1)
        self._pipe: tuple[int, int] | None = None

    def start(self) -> bool:
        """Whether signals are heard from now on: Python allows it in the main thread only."""
        if threading.current_thread() is not threading.main_thread():
            return False
        for number in SIGNALS:
            # `nohup` ignores SIGHUP for all that it starts: hearing it would end the run with the terminal after all.
            if number in _USERS_CHOICE and signal.getsignal(number) == signal.SIG_IGN:
                continue
            self._before[number] = signal.signal(number, self._handle)
        if self.exits:
            self._pipe = os.pipe()
            # Python's C handler writes into it and must never wait there; a full pipe has told us enough.
            os.set_blocking(self._pipe[1], False)
            # The only way to hear of a signal while the main thread is inside C code, a collective for one.
            signal.set_wakeup_fd(self._pipe[1], warn_on_full_buffer=False)
            threading.Thread(target=self._hear, name="hftune signals", daemon=True).start()
        return True

    def stop(self) -> None:
        """Restore the handlers from before `start`."""
        if self._pipe is not None:
            signal.set_wakeup_fd(-1)
            # The reading end is closed by the thread, which ends when it reads nothing more.
            os.close(self._pipe[1])
            self._pipe = None
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before.clear()

    def leave(self, code: int) -> None:
        """The process is about to end with this code: whatever asks it to stop now only hastens that."""
        self.leaving, self.code = True, code

    def parent_was_told(self) -> bool:
        """Whether the process from which this one was forked was told to stop."""
        return self._shared[0] == 1

    def _is_second_request(self, number: int) -> bool:
        """Whether this is another request, not the first one heard again."""
        now = time.monotonic()
        # A terminal sends Ctrl-C to every process, and torchrun passes it on: the same signal twice within a second.
        again = number in self._first and now - self._first[number] > TOGETHER
        self._first.setdefault(number, now)
        if self.signal is None:
            self.signal, self._shared[0] = number, 1
        return again

    def _handle(self, number: int, frame: FrameType | None) -> None:
        """Python's handler, which runs in the main thread between two bytecodes."""
        if not self.exits and self._is_second_request(number):
            raise KeyboardInterrupt
        # The thread notes signals too, but may be scheduled later than this handler.
        if self.signal is None:
            self.signal, self._shared[0] = number, 1
        if not (self.deferring or self.leaving or self._raised):
            self._raised = True
            # Once: a second exception would break the clean-up that the first one began.
            raise Interrupted(signal.Signals(number).name)

    def _hear(self) -> None:
        """Read signal numbers in a thread, also while the main thread is inside C code."""
        assert self._pipe is not None
        source = self._pipe[0]
        while data := os.read(source, 1):
            number = data[0]
            # The descriptor hears of every signal with a Python handler, a debugger's SIGALRM too.
            if number not in SIGNALS or number not in self._before:
                continue
            first = not self._first
            if self._is_second_request(number) or self.leaving:
                self._end("" if self.leaving else "ended at once")
            if first and self.deferring:
                name = signal.Signals(number).name
                self.announce(f"{name}: {self.activity}; once more to end at once")
            elif first:
                # Nothing runs yet that a checkpoint could save: the main thread has some seconds to leave by itself.
                threading.Thread(target=self._end_later, name="hftune end", daemon=True).start()
        os.close(source)

    def _end_later(self) -> None:
        time.sleep(self.patience)
        # Read after the wait: training may have begun in the meantime, and then it saves a checkpoint.
        if not self.deferring:
            self._end("stopped; nothing was begun")

    def _end(self, words: str) -> None:
        if words:
            self.announce(words)
        for act in (kill_descendants, *self.last_acts):
            # Whatever fails now, the process ends.
            with contextlib.suppress(Exception):
                act()
        # Without Python's clean-up: it would join threads that hang in a collective.
        os._exit(self.code if self.leaving or not self.deferring else INTERRUPTED_EXIT_CODE)


_listener: Listener | None = None
_parent: Listener | None = None
"""In a forked process: that of the one from which it was forked."""


def listen(*, exits: bool, patience: float = 3.0, code: int = INTERRUPTED_EXIT_CODE) -> Listener | None:
    """The listener of this process, started now; None where there is one, or outside of the main thread."""
    global _listener
    if _listener is not None:
        return None
    found = Listener(exits=exits, patience=patience, code=code)
    if not found.start():
        return None
    _listener = found
    return found


def stop_listening() -> None:
    """Give the signals back to whoever handled them before."""
    global _listener
    if _listener is not None:
        _listener.stop()
        _listener = None


def listener() -> Listener | None:
    """The listener of this process, if it has one."""
    return _listener


def stop_signal() -> int:
    """The signal that asked this process to stop; 0 for none."""
    return (_listener.signal or 0) if _listener is not None else 0


def defer(deferring: bool) -> None:
    """From here on signals are only noted, or (False) raise `Interrupted` again."""
    if _listener is not None:
        _listener.deferring = deferring


def deferring() -> bool:
    """Whether signals are noted only."""
    return _listener is not None and _listener.deferring


def leave(code: int) -> None:
    """This process is about to end with a code, and says nothing of signals any more."""
    if _listener is not None:
        _listener.leave(code)


@contextlib.contextmanager
def paused() -> Iterator[None]:
    """Give the signals back for a block, to a program that handles them itself."""
    if _listener is not None:
        _listener.stop()
    try:
        yield
    finally:
        if _listener is not None:
            _listener.start()


def kill_descendants() -> None:
    """End what this process has started: workers, compilers, servers."""
    # Imported here: nothing else on the way of a start needs it.
    import psutil

    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            process.kill()


def _in_child() -> None:
    """Reset handlers in a forked process: its parent answers a Ctrl-C, which the terminal sends to both."""
    global _listener, _parent
    before, _listener = _listener, None
    if before is None:
        return
    # Raised in a thread other than the main one, which may fork as well; then there is nothing to undo.
    with contextlib.suppress(ValueError):
        signal.set_wakeup_fd(-1)
        for number in before._before:
            # The parent answers these two; a worker that died of Ctrl-C would break the step that is being finished.
            ignored = number in (signal.SIGINT, signal.SIGUSR1)
            signal.signal(number, signal.SIG_IGN if ignored else signal.SIG_DFL)
    _parent = before


os.register_at_fork(after_in_child=_in_child)


def keep_working() -> None:
    """In a worker of a data loader: SIGTERM does not end it while its parent, told as well, finishes a step.

    DeepSpeed's launcher sends SIGTERM to all processes below it, the workers first.
    """
    parent = _parent
    if parent is None:
        return

    def end(number: int, frame: FrameType | None) -> None:
        # The parent is told by the same launcher, perhaps a moment later.
        limit = time.monotonic() + _WORKER_WAITS
        while time.monotonic() < limit:
            if parent.parent_was_told():
                return
            time.sleep(0.01)
        # The parent was not told: this worker alone is meant, and ends as if hftune had never handled the signal.
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, end)
