"""What a training script shows, and what goes to a log: its own lines here, everything else there.

What libraries print, log and warn goes through Python's streams, which lead into the log; hftune's own lines go where
they led before, and into the log too. What C code and other programs write is shown as it is. Nothing is written to the
disk before a run has passed its checks: until `open_log` lines are kept in memory.
"""

from __future__ import annotations

import contextlib
import io
import logging
import os
import re
import shutil
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, TextIO, cast

from hftune.opening.own_file import open_own

SHOW_ALL = "HFTUNE_SHOW_ALL"
"""Variable: 1 leaves the output of libraries where it is, which a debugger needs."""

ELSEWHERE = "HFTUNE_TERMINAL"
"""Variable: folder with the descriptors 1 and 2 of the process at which the user looks."""

_KEPT = 5000
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(\x07|\x1b\\)")
_CLEAR = "\r\x1b[2K"


class LoggedStream(io.TextIOBase):
    """A stream whose lines go into the log.

    Args:
        mark: What hftune's own lines begin with there, which are shown as well; "" for those of libraries.
    """

    def __init__(self, real: TextIO, log: Log, mark: str) -> None:
        self.real, self.log, self.mark, self._rest = real, log, mark, ""

    def write(self, text: str) -> int:
        """Take a text; a line of progress makes room for one that is shown."""
        if self.mark:
            clear_progress()
            with readers_may_leave(self.real):
                self.real.write(text)
        with self.log.lock:
            *lines, self._rest = (self._rest + text).split("\n")
            for line in lines:
                self.log.keep(line, self.mark)
            if "\r" in self._rest and not self.mark:
                # A bar of a library draws over itself: it becomes the line of progress.
                state = self._rest.rpartition("\r")[2]
                show_progress(self.log.cleaned(state) or _progress)
                self._rest = f"\r{state}"
        return len(text)

    def finish(self) -> None:
        """Take a line that has no end."""
        self.log.keep(self._rest, self.mark)
        self._rest = ""

    def flush(self) -> None:
        """Pass what Python has buffered on to the system."""
        with readers_may_leave(self.real):
            self.real.flush()

    def isatty(self) -> bool:
        """Whether it is a terminal, and not a file or pipe."""
        return bool(self.mark) and self.real.isatty()

    def fileno(self) -> int:
        """Its file descriptor."""
        return self.real.fileno()

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """Of its characters."""
        return self.real.encoding

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)


@contextlib.contextmanager
def readers_may_leave(stream: TextIO) -> Iterator[None]:
    """What nobody reads any more is dropped from here on, instead of an error.

    `| head` leaves early, and Ctrl-C ends `| tee` before the run that saves its checkpoint.
    """
    try:
        yield
    except BrokenPipeError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        # The descriptor itself: the stream has a text in its buffer, which Python would write at its end.
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)


class Log:
    """Takes over Python's standard output and error, and what loggers write there.

    Args:
        clean: Makes of a line what may be kept: without secrets, without what a terminal would obey.
    """

    def __init__(self, clean: Callable[[str], str]) -> None:
        self.clean, self.lines, self.file = clean, deque[str](maxlen=_KEPT), cast(BinaryIO | None, None)
        # Reentrant: an error while a line is written may print a line of its own.
        self.lock = threading.RLock()
        self.before = (sys.stdout, sys.stderr)
        self.out, self.err = (LoggedStream(_users_stream(number), self, "> ") for number in (1, 2))
        self.theirs = [LoggedStream(stream, self, "") for stream in self.before]
        _move(self.before, cast(list[TextIO], self.theirs))

    def open(self, file: Path) -> None:
        """Append to a file all lines so far, and those to come."""
        with self.lock, contextlib.suppress(OSError):  # a disk that takes no log is told of by what needs it more
            if self.file is None:
                file.parent.mkdir(parents=True, exist_ok=True)
                self.file = open_own(file)
                for line in (f"--- {time.strftime('%Y-%m-%d %H:%M:%S %z')}", *self.lines):
                    self._write(line)

    def tail(self, count: int) -> list[str]:
        """The last lines that were not hftune's own."""
        return [line for line in self.lines if not line.startswith("> ")][-count:]

    def stop(self) -> None:
        """Give the streams back; all that came before is in the log."""
        _move(cast(list[TextIO], self.theirs), self.before)
        for stream in self.theirs:
            stream.finish()
        with self.lock:
            if self.file is not None:
                self.file.close()
                self.file = None

    def cleaned(self, line: str) -> str:
        """A line as it may be kept."""
        return self.clean(_ESCAPES.sub("", line).rstrip())

    def keep(self, line: str, mark: str = "> ") -> None:
        """Keep a line."""
        # Of a bar that draws over itself only the last state is worth a line.
        if text := self.cleaned(line.rstrip("\r").rpartition("\r")[2]):
            with self.lock:
                self.lines.append(mark + text)
                self._write(mark + text)

    def _write(self, line: str) -> None:
        # Past Python's buffers: a killed run leaves its last words, and a fork inherits no half of a line.
        if self.file is not None:
            with contextlib.suppress(OSError):
                os.write(self.file.fileno(), f"{line}\n".encode(errors="backslashreplace"))


def _move(old: Sequence[TextIO], new: Sequence[TextIO]) -> None:
    """Put other streams in the place of Python's, also for loggers that libraries have made already."""
    for name in (None, *logging.root.manager.loggerDict):
        for handler in logging.getLogger(name).handlers:
            # Its own attribute: hftune's handler looks for the stream each time.
            places = [place for place, stream in enumerate(old) if stream is vars(handler).get("stream")]
            if places and isinstance(handler, logging.StreamHandler):
                handler.setStream(new[places[0]])
    if [sys.stdout, sys.stderr] == [*old]:
        sys.stdout, sys.stderr = new


def _users_stream(number: int) -> TextIO:
    """Where the user looks: at Python's own stream, unless `hftune launch` says that it is elsewhere."""
    folder, stream = os.environ.get(ELSEWHERE), (sys.stdout, sys.stderr)[number - 1]
    if folder:
        with contextlib.suppress(OSError):
            there = reopen(f"{folder}/{number}")
            return open(there, "w", encoding=stream.encoding, errors="backslashreplace", buffering=1)
    if isinstance(stream, io.TextIOWrapper):
        stream.reconfigure(errors="backslashreplace", line_buffering=True)
    return stream


def reopen(path: str) -> int:
    """A descriptor of a terminal, pipe or file that another process has open, for adding to it.

    Raises:
        OSError: It cannot be opened by a name: a socket, or not on this machine.
    """
    return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_NOCTTY | os.O_CLOEXEC)


_log: Log | None = None
_progress = ""
_turn = threading.RLock()


def capture(clean: Callable[[str], str]) -> Log | None:
    """Take over standard output and error; None where they are no files of this process, or it was asked not to."""
    global _log
    # A notebook or a test has streams of its own, whose place nobody takes.
    if _log is not None or os.environ.get(SHOW_ALL, "") not in ("", "0") or not _plain():
        return None
    _log = Log(clean)
    return _log


def release() -> None:
    """Give standard output and error back."""
    global _log
    clear_progress()
    if _log is not None:
        _log.stop()
        _log = None
    for stream in filter(None, (sys.stdout, sys.stderr)):
        with readers_may_leave(stream):
            stream.flush()


def captured() -> Log | None:
    """What holds standard output and error, if anything does."""
    return _log


def open_log(file: Path) -> None:
    """Write the log to this file from here on, with all lines so far."""
    if _log is not None:
        _log.open(file)


def out() -> TextIO:
    """Standard output as the user sees it."""
    return cast(TextIO, _log.out) if _log is not None else sys.stdout


def err() -> TextIO:
    """Standard error as the user sees it."""
    return cast(TextIO, _log.err) if _log is not None else sys.stderr


def write_unbuffered(text: str) -> None:
    """Write to standard error in one system call, whatever other threads hold or wait for."""
    # Past Python's buffers and locks: the watchdog speaks while another thread may hold them for good.
    with contextlib.suppress(BrokenPipeError):
        os.write(error_descriptor(), (_CLEAR * bool(_progress) + text).encode())
    log_only(text)


def log_only(text: str) -> None:
    """Put lines of hftune's into the log alone."""
    if _log is not None:
        for line in text.splitlines():
            _log.keep(line)


def error_descriptor() -> int:
    """The file descriptor of standard error as the user sees it."""
    return _log.err.fileno() if _log is not None else 2


def show_progress(text: str) -> None:
    """Show one line in the place of the last one; nothing where nobody looks, and on ranks above 0."""
    global _progress
    stream = _real_error()
    if not stream.isatty() or os.environ.get("RANK", "0") != "0":
        return
    # COLUMNS is what the user says; else the terminal behind this very stream is asked, not standard output.
    width = shutil.get_terminal_size().columns if "COLUMNS" in os.environ else _width(stream)
    with _turn, contextlib.suppress(OSError, ValueError):
        # A line that wraps could not be cleared by one return.
        _progress = text if len(text) < width else text[: max(1, width - 2)] + "…"
        stream.write(_CLEAR + _progress)
        stream.flush()


def clear_progress() -> None:
    """Take the line of progress away: another one follows, or none."""
    global _progress
    with _turn, contextlib.suppress(OSError, ValueError):
        if _progress:
            _progress = ""
            stream = _real_error()
            stream.write(_CLEAR)
            stream.flush()


def _real_error() -> TextIO:
    return _log.err.real if _log is not None else sys.stderr


def _width(stream: TextIO) -> int:
    try:
        return os.get_terminal_size(stream.fileno()).columns or 80
    except (OSError, ValueError):
        return 80


def _plain() -> bool:
    """Whether Python's streams are those of the process: a notebook and a test have others."""
    try:
        return (sys.stdout.fileno(), sys.stderr.fileno()) == (1, 2)
    except (OSError, ValueError, AttributeError):
        return False


def _in_child() -> None:
    """A forked process adds its lines to the same log; locks that other threads held would stay so."""
    global _progress, _turn
    _progress, _turn = "", threading.RLock()
    if _log is not None:
        _log.lock = threading.RLock()


os.register_at_fork(after_in_child=_in_child)
