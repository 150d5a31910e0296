"""What a training script shows, and what goes to a log: its own lines here, everything else there.

Libraries print, log, warn and draw bars, in Python, in C and from programs that they start. So the file descriptors 1
and 2 themselves lead into a pipe, which a thread reads; hftune's own lines go to where they led before, and into the
log too. Nothing is written to the disk before a run has passed its checks: until `open_log` lines are kept in memory.
"""

from __future__ import annotations

import codecs
import contextlib
import fcntl
import io
import os
import re
import shutil
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, TextIO, cast

from hftune.opening.own_file import open_own

SHOW_ALL = "HFTUNE_SHOW_ALL"
"""Variable: 1 leaves the output of libraries where it is, which a debugger needs."""

ELSEWHERE = "HFTUNE_TERMINAL"
"""Variable: folder with the descriptors 1 and 2 of the process at which the user looks."""

_KEPT = 5000
_PIPE_BYTES = 1 << 20
_SET_PIPE_SIZE = 1031
_PATIENCE = 3.0
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(\x07|\x1b\\)")
_BAR = re.compile(r"\d+%\||\d+(\.\d+)?(it|s| records|examples)/s?|\d+ records")
_CLEAR = "\r\x1b[2K"


class LoggedStream:
    """A stream that writes to a terminal, or what stands in its place, and into the log as well."""

    def __init__(self, real: TextIO, log: Callable[[str], None]) -> None:
        self.real, self.log = real, log
        self.errors, self.encoding = real.errors, real.encoding

    def write(self, text: str) -> int:
        """Write a text; a line of progress makes room for it."""
        clear_progress()
        self.log(text)
        with readers_may_leave(self.real):
            self.real.write(text)
        return len(text)

    def flush(self) -> None:
        """Pass what Python has buffered on to the system."""
        with readers_may_leave(self.real):
            self.real.flush()

    def isatty(self) -> bool:
        """Whether it is a terminal, and not a file or pipe."""
        return self.real.isatty()

    def fileno(self) -> int:
        """Its file descriptor."""
        return self.real.fileno()

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


class Capture:
    """Takes over the file descriptors 1 and 2.

    Args:
        clean: Makes of a line what may be kept: without secrets, without what a terminal would obey.
    """

    def __init__(self, clean: Callable[[str], str]) -> None:
        self.clean = clean
        self.lines: deque[str] = deque(maxlen=_KEPT)
        self.file: IO[str] | None = None
        # Reentrant: an error while a line is written may print a line of its own.
        self._lock = threading.RLock()
        self._ended = threading.Event()
        self._own = ""
        sys.stdout.flush()
        sys.stderr.flush()
        # Before the pipe takes their place: these are where hftune's own lines go.
        self.saved = {number: _users_descriptor(number) for number in (1, 2)}
        self.out, self.err = (LoggedStream(_stream_on(self.saved[number]), self._say) for number in (1, 2))
        self._read, self._write = os.pipe()
        with contextlib.suppress(OSError):
            # A burst from C code that holds Python's lock would fill the usual 64 KiB, and wait for a thread that
            # cannot run.
            fcntl.fcntl(self._write, _SET_PIPE_SIZE, _PIPE_BYTES)
        for number in (1, 2):
            os.dup2(self._write, number)
        # Nobody else can print this line, so that its arrival means: all before it has been read.
        self._mark = os.urandom(16).hex()
        self._thread = threading.Thread(target=self._pump, name="hftune log", daemon=True)
        self._thread.start()

    def open_log(self, file: Path) -> None:
        """Append to a file all lines so far, and those to come."""
        with self._lock:
            if self.file is not None:
                return
            with contextlib.suppress(OSError):  # a disk that takes no log is told of by what needs it more
                file.parent.mkdir(parents=True, exist_ok=True)
                # Line by line, so that a killed run leaves its last words.
                stream = open_own(file)
                self.file = io.TextIOWrapper(stream, "utf-8", errors="backslashreplace", line_buffering=True)
                self.file.write(f"--- {time.strftime('%Y-%m-%d %H:%M:%S %z')}\n")
                self.file.writelines(f"{line}\n" for line in self.lines)

    def tail(self, count: int) -> list[str]:
        """The last lines that were not hftune's own."""
        self._drain()
        return [line for line in self.lines if not line.startswith("> ")][-count:]

    def stop(self) -> None:
        """Give the file descriptors back; all that came before is in the log."""
        if not self._ended.is_set():
            self._drain(end=True)
        for number, real in self.saved.items():
            os.dup2(real, number)
        with self._lock:
            if self.file is not None:
                with contextlib.suppress(OSError):  # closing writes what a full disk did not take
                    self.file.close()
                self.file = None

    def _say(self, text: str) -> None:
        """Keep whole lines of hftune's own, marked with `>` among the libraries' lines."""
        with self._lock:
            *whole, self._own = (self._own + text).split("\n")
            for line in whole:
                if line.strip():
                    self._keep(f"> {line}")

    def _drain(self, *, end: bool = False) -> None:
        """Wait until all that is in the pipe has been read."""
        with contextlib.suppress(Exception):  # streams may be closed, or replaced
            sys.stdout.flush()
            sys.stderr.flush()
        # The reading thread cannot wait for itself.
        if threading.current_thread() is self._thread or not self._thread.is_alive():
            return
        self._ended.clear()
        word = f"{self._mark}{'-end' if end else ''}"
        os.write(self._write, f"\n{word}\n".encode())
        # Bounded: a program that was started may still write into the pipe for ever.
        self._ended.wait(_PATIENCE)

    def _pump(self) -> None:
        decoder, rest = codecs.getincrementaldecoder("utf-8")(errors="replace"), ""
        # Bytes, not lines: a progress bar ends none, and a character may be cut between two reads.
        while data := os.read(self._read, 1 << 16):
            *lines, rest = (rest + decoder.decode(data)).split("\n")
            for line in lines:
                if line.startswith(self._mark):
                    self._ended.set()
                    if line.endswith("-end"):
                        return
                else:
                    self._take(line)
            if "\r" in rest:
                rest = self._draw(rest)

    def _take(self, line: str) -> None:
        # Of a bar that draws over itself only the last state is worth a line.
        text = _ESCAPES.sub("", line.rstrip("\r").rpartition("\r")[2]).rstrip()
        if text:
            with self._lock:
                self._keep(self.clean(text))

    def _draw(self, rest: str) -> str:
        """A bar of a library becomes the line of progress; returns what of it may still grow."""
        *states, last = rest.split("\r")
        shown = last if last.strip() else next((state for state in reversed(states) if state.strip()), "")
        if _BAR.search(shown):
            show_progress(self.clean(_ESCAPES.sub("", shown)).strip())
        return "\r" + last if last.strip() else "\r" + shown

    def _keep(self, line: str) -> None:
        self.lines.append(line)
        if self.file is not None:
            with contextlib.suppress(OSError):
                self.file.write(line + "\n")


def _users_descriptor(number: int) -> int:
    """Where the user looks: where this descriptor leads, unless `hftune launch` says that it is elsewhere."""
    folder = os.environ.get(ELSEWHERE)
    if folder:
        with contextlib.suppress(OSError):
            return reopen(f"{folder}/{number}")
    return os.dup(number)


def reopen(path: str) -> int:
    """A descriptor of a terminal, pipe or file that another process has open, for adding to it.

    Raises:
        OSError: It cannot be opened by a name: a socket, or not on this machine.
    """
    return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_NOCTTY | os.O_CLOEXEC)


def _stream_on(number: int) -> TextIO:
    """A text stream on a file descriptor, which it does not close."""
    errors = "backslashreplace"
    return open(number, "w", encoding=sys.stdout.encoding or "utf-8", errors=errors, buffering=1, closefd=False)


_capture: Capture | None = None
_progress = ""
_turn = threading.RLock()


def capture(clean: Callable[[str], str]) -> Capture | None:
    """Take over standard output and error; None where they are no files of this process, or it was asked not to."""
    global _capture
    # A notebook or a test has streams of its own, which no descriptor leads to.
    if _capture is not None or os.environ.get(SHOW_ALL, "") not in ("", "0") or not _plain():
        return None
    _capture = Capture(clean)
    return _capture


def release() -> None:
    """Give standard output and error back."""
    global _capture
    clear_progress()
    if _capture is not None:
        _capture.stop()
        _capture = None
    for stream in filter(None, (sys.stdout, sys.stderr)):
        with readers_may_leave(stream):
            stream.flush()


def captured() -> Capture | None:
    """What holds standard output and error, if anything does."""
    return _capture


def open_log(file: Path) -> None:
    """Write the log to this file from here on, with all lines so far."""
    if _capture is not None:
        _capture.open_log(file)


def out() -> TextIO:
    """Standard output as the user sees it."""
    return cast(TextIO, _capture.out) if _capture is not None else sys.stdout


def err() -> TextIO:
    """Standard error as the user sees it."""
    return cast(TextIO, _capture.err) if _capture is not None else sys.stderr


def write_unbuffered(text: str) -> None:
    """Write to standard error in one system call, whatever other threads hold or wait for."""
    # Past Python's buffers and locks: the watchdog speaks while another thread may hold them for good.
    with contextlib.suppress(BrokenPipeError):
        os.write(error_descriptor(), (_CLEAR * bool(_progress) + text).encode())
    if _capture is not None:
        _capture.err.log(text)


def log_only(text: str) -> None:
    """Put a line of hftune's into the log alone."""
    if _capture is not None:
        _capture.err.log(text + "\n")


def error_descriptor() -> int:
    """The file descriptor of standard error as the user sees it."""
    return _capture.saved[2] if _capture is not None else 2


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
    return _capture.err.real if _capture is not None else sys.stderr


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
    """A forked process writes into the same pipe, and has no thread to read it."""
    global _progress, _turn
    _progress, _turn = "", threading.RLock()
    if _capture is not None:
        # The thread that held the old one was not forked along, so it would stay locked.
        _capture._lock = threading.RLock()
        _capture.file = None


os.register_at_fork(after_in_child=_in_child)
