"""Starts the processes of a stage so that none outlives the runner, and ends them so that none is left.

Between the runner and the launcher stands a small process, the supervisor: launchers leave their ranks running when
they are killed themselves. The supervisor hears when the runner dies, adopts whatever the launcher leaves, and ends all
of it.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, BinaryIO, NoReturn

import psutil

from hftune import child_processes, interrupts
from hftune.opening.own_file import open_own

_NOISE = re.compile(
    r"^\[?\d{4}-\d\d-\d\d .*\[(INFO|WARNING)\]"  # deepspeed's launcher
    r"|^[WEI]\d{4} [\d:.]+ .*torch/distributed"  # torchrun's agent
    r"|^\s*(warnings\.warn|frame #\d+)|FutureWarning|UserWarning|DeprecationWarning"
    r"|^\s*\d+%\|.*\||^\s*$|^=+$|^-+$|^\*+$"
    r"|Killing subprocess|exits with return code|^Traceback \(most recent call last\):$"
)
_OF_ANOTHER = re.compile(r"rank \d+ on \S+ has stopped at|lost ranks? |lost contact")
# Logs of long runs grow to gigabytes, and the error is near the end.
_TAIL_BYTES = 1 << 18
_LINES = 12

_FULL = "the disk is full: make room"
# With less than this no log line can be trusted to have been written.
_FULL_BYTES = 1 << 20
# Launchers exit with 1 themselves and print their ranks' codes: deepspeed as `return code`, torchrun as `exitcode`.
_CAUSES = (
    (r"No space left on device|os error 28|PytorchStreamWriter failed writing", _FULL),
    (
        r"OutOfMemoryError|CUDA out of memory|can't allocate memory|Cannot allocate memory|^MemoryError"
        r"|can't start new thread",
        "out of memory: --gradient_checkpointing True, a smaller --per_device_train_batch_size with more "
        "--gradient_accumulation_steps, or another ZeRO stage (hftune plan)",
    ),
    (
        r"return code = -9|exitcode\s*: -9|Signal 9|^killed by signal 9$",
        "a process was killed from outside (SIGKILL); most often the machine has run out of memory: see `dmesg`",
    ),
)


def explain(log: Path, code: int, start: int = 0) -> list[str]:
    """The lines that explain why a stage failed.

    Args:
        log: Its output.
        code: Its exit code, negative for a signal.
        start: Where its output begins in the log.
    """
    text = _end_of(log, start)
    # In the order of what can be trusted: the stage's own message, the disk, known causes, what other ranks say, and
    # last words.
    said = list(_messages(text))
    own = [message for message in said if not _OF_ANOTHER.match(message[0])]
    if own:
        return own[0]
    # The log may lie on the same disk, and lack the very line that says so.
    full = log.is_file() and shutil.disk_usage(log.parent).free < _FULL_BYTES
    ended = f"{text}\nkilled by signal {-code}"
    causes = [cause for pattern, cause in _CAUSES if re.search(pattern, ended, re.MULTILINE)]
    if full or causes:
        return [_FULL if full else causes[0], *last_words(text, 3)]
    # That another rank has stopped is a consequence; a traceback of this log would be the cause.
    if said and "Traceback (most recent call last):\n  File" not in text:
        return said[0]
    return last_words(text, _LINES) or ["it said nothing"]


def _end_of(log: Path, start: int) -> str:
    if not log.is_file():
        return ""
    with log.open("rb") as stream:
        size = stream.seek(0, 2)
        stream.seek(max(start, size - _TAIL_BYTES))
        # A progress bar redraws its line after \r: each drawing becomes a line, which `_NOISE` knows.
        return stream.read().decode(errors="replace").replace("\r", "\n")


def _messages(text: str) -> Iterator[list[str]]:
    """The messages that `run_script` printed, each from `error:` to the next empty line."""
    begins = r"(?:\[rank \d+\] )?error: "
    for found in re.finditer(rf"^{begins}(.*(?:\n(?!\s*$|{begins}).*)*)", text, re.MULTILINE):
        yield found[1].splitlines()


def last_words(text: str, count: int) -> list[str]:
    """The last `count` lines without noise: of the first traceback if there is one, else of the text."""
    lines = text.splitlines()
    begins = [number for number, line in enumerate(lines) if "Traceback (most recent call last)" in line]
    if begins:
        # Later tracebacks are other ranks' or the launcher's, about the processes that the first one took along.
        for number in range(begins[0] + 1, len(lines)):
            bare = re.sub(r"^\[?rank\d+\]?:\s?", "", lines[number])
            if bare and not bare[0].isspace():  # the exception itself
                lines = lines[begins[0] : number + 1]
                break
    told = [line.rstrip() for line in lines if not _NOISE.search(line)]
    return told[-count:]


# Of <linux/prctl.h>; Python has no names for them.
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36


_LOOK_SECONDS = 0.1
STOPPING, ENDED = "stopping: a checkpoint is being saved; once more to stop at once", "ended at once"


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
        # Parents come before their children: the first is a rank, and no worker that a rank has forked for its data.
        # One is enough: ranks agree on stopping at the same step. With none here the launcher passes it on.
        for process in [*filter(_is_rank, below), *below][:1]:
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


@contextlib.contextmanager
def counted_signals() -> Iterator[list[int]]:
    """A list that gets every SIGINT, SIGTERM and SIGHUP of the block; they end nothing there."""
    found: list[int] = []
    with interrupts.paused():
        numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        before: dict[int, Any] = {
            number: signal.signal(number, lambda *got: found.append(got[0])) for number in numbers
        }
        try:
            yield found
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def attend(
    running: SupervisedProcess, signals: Sequence[int], said: Callable[[str], None], look: Callable[[], None]
) -> int:
    """Wait for a command to end; returns its exit code, negative for a signal.

    Args:
        signals: Of `counted_signals`: at the first the command is asked to stop, at the second it is ended.
        said: Told what was done about one.
        look: Called again and again.
    """
    answered = 0
    try:
        # Polled, for a blocking wait is resumed after a handler (PEP 475), and nobody would look at the signals.
        while (code := running.poll()) is None:
            if len(signals) > answered:
                answered = len(signals)
                said(STOPPING if answered == 1 else ENDED)
                (running.ask_to_stop if answered == 1 else running.kill)()
            look()
            time.sleep(_LOOK_SECONDS)
    # KeyboardInterrupt and SystemExit too: no stage may run without its runner.
    except BaseException:
        running.kill()
        raise
    return code


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
        # Adopted processes that have ended stay as zombies until their exit codes are read.
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        time.sleep(0.01)


def descendants(pid: int) -> list[psutil.Process]:
    """The processes below `pid` that still run, each before those that it has started."""
    found = []
    with contextlib.suppress(psutil.NoSuchProcess):
        for process in psutil.Process(pid).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                found += [process] if process.status() != psutil.STATUS_ZOMBIE else []
    return found


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
