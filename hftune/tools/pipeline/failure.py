"""Finds the few lines of a log that say why a stage failed, without those of launchers around them."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

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

_FULL = ("the disk is full", "make room")
# With less than this no log line can be trusted to have been written.
_FULL_BYTES = 1 << 20
_CAUSES: tuple[tuple[str, str, str], ...] = (
    (r"No space left on device|os error 28|PytorchStreamWriter failed writing", *_FULL),
    (r"File too large|os error 27", "a file grew beyond the limit that is set here (ulimit -f)", "raise the limit"),
    (r"Read-only file system|os error 30", "the folder is on a read-only file system", "make it writable"),
    (r"Permission denied|os error 13", "a file or folder may not be written or read", "give the rights to it"),
    (
        r"OutOfMemoryError|CUDA out of memory|can't allocate memory|Cannot allocate memory|^MemoryError"
        r"|can't start new thread",
        "out of memory",
        "--gradient_checkpointing True, a smaller --per_device_train_batch_size with more "
        "--gradient_accumulation_steps, or another ZeRO stage (hftune plan)",
    ),
)
_KILLED = (
    "a process was killed from outside (SIGKILL); most often the machine has run out of memory",
    "see `dmesg`; less memory: a smaller --per_device_train_batch_size, --gradient_checkpointing True",
)


def explain(log: Path, code: int, start: int = 0) -> tuple[list[str], str | None]:
    """Explain why a stage failed.

    Args:
        log: Its output.
        code: Its exit code, negative for a signal.
        start: Where its output begins in the log.

    Returns:
        The lines to show, and what to do where that is known.
    """
    text = _end_of(log, start)
    # In the order of what can be trusted: the stage's own message, the disk, known causes, signals, what other ranks
    # say, and last lines.
    own = _message(text)
    if own:
        return own, None
    # The log may lie on the same disk, and lack the very line that says so.
    if log.is_file() and shutil.disk_usage(log.parent).free < _FULL_BYTES:
        return [_FULL[0], *last_words(text, 3)], _FULL[1]
    for pattern, cause, remedy in _CAUSES:
        if re.search(pattern, text, re.MULTILINE):
            return [cause, *last_words(text, 3)], remedy
    # Launchers exit with 1 themselves and print their ranks' codes: deepspeed as `return code`, torchrun as `exitcode`.
    if code == -9 or re.search(r"return code = -9|exitcode\s*: -9|Signal 9", text):
        return [_KILLED[0], *last_words(text, 3)], _KILLED[1]
    # That another rank has stopped is a consequence; a traceback of this log would be the cause.
    told = _message(text, of_another=True)
    if told and "Traceback (most recent call last):\n  File" not in text:
        return told, None
    return last_words(text, _LINES) or ["it said nothing"], None


def _end_of(log: Path, start: int) -> str:
    if not log.is_file():
        return ""
    with log.open("rb") as stream:
        size = stream.seek(0, 2)
        stream.seek(max(start, size - _TAIL_BYTES))
        # A progress bar redraws its line after \r: each drawing becomes a line, which `_NOISE` knows.
        return stream.read().decode(errors="replace").replace("\r", "\n")


def _message(text: str, *, of_another: bool = False) -> list[str] | None:
    """The message that `run_script` printed, from `error:` to the next empty line; None without one.

    Args:
        of_another: Look for what a rank says of another one instead.
    """
    lines = text.splitlines()
    for number, line in enumerate(lines):
        match = re.match(r"(\[rank \d+\] )?error: (.*)", line)
        if match and bool(_OF_ANOTHER.match(match[2])) == of_another:
            end = next((place for place in range(number + 1, len(lines)) if not lines[place].strip()), len(lines))
            return [match[2], *lines[number + 1 : end]]
    return None


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
