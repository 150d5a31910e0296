"""The one family of errors a user may see, and how a script ends with one.

A message says what went wrong, where (file:line, flag or config key), and what to do about it. A script ends with
exit code 2, the message on stderr, and no traceback. Anything else is a bug of ours and keeps its traceback.
"""

from __future__ import annotations

import copy
import difflib
import errno
import os
import time
import traceback
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import NoReturn, Self

from hftune import interrupts, terminal
from hftune.constants import INTERRUPTED_EXIT_CODE, PREEMPTED_EXIT_CODE, USER_ERROR_EXIT_CODE
from hftune.secrets import redact
from hftune.visible import as_typed, hide_in_tracebacks, say, visible


def shown(value: object, limit: int = 60) -> str:
    """A value from the data as a message may quote it: its start, on one line."""
    # Cut before it is split: a record may be a gigabyte in one line.
    text = visible(" ".join(str(value)[: 4 * limit].split()))
    return text if len(text) <= limit else f"{text[: limit - 3]}..."


def did_you_mean(name: str, names: Iterable[str], *, written: str = "{}") -> str:
    """ "did you mean --max_length?" for the nearest of `names`; empty where none is near.

    Args:
        written: How a name is written in the message, `--{}` for one.
    """
    # The default cutoff of 0.6 finds a slip of one or two letters and proposes nothing for another word.
    known = [*names]
    near = difflib.get_close_matches(name, known, n=1)
    # Of a pair such as per_device_eval_batch_size and per_device_train_batch_size the shorter name is always nearer.
    near = [twin for one in near if "eval" not in name and (twin := one.replace("eval", "train")) in known] or near
    return f"did you mean {written.format(near[0])}?" if near else ""


class UserError(Exception):
    """Something the user can fix.

    Args:
        cause: One line, what is wrong.
        place: Where: `file:line`, `--flag` or a config key. Left out where the cause already names it.
        fix: What to do about it.

    Attributes:
        on_all_ranks: Whether every process is known to raise it.
        exit_code: What a program ends with.
    """

    on_all_ranks = False
    exit_code = USER_ERROR_EXIT_CODE

    def __init__(self, cause: str, *, place: str | None = None, fix: str | None = None) -> None:
        self.cause, self.place, self.fix = cause, place, fix
        super().__init__(self.render())

    def at(self, place: str | None) -> Self:
        """The same fault at another place: what raised it did not know the record, or the line of the argument."""
        moved = copy.copy(self)
        moved.place = place
        moved.args = (moved.render(),)
        return moved

    def render(self) -> str:
        """The message as it is printed: cause, then place and fix on lines of their own."""
        lines = [self.cause]
        if self.place:
            lines.append(f"  where: {self.place}")
        if self.fix:
            lines.append(f"  to do: {self.fix}")
        # Causes quote data, paths and other programs; cleaned here, once, whoever prints it.
        return visible(as_typed("\n".join(lines)))


class DataError(UserError):
    """A file or a record that cannot be used.

    Args:
        kind: A few words for this sort of fault, the same for all records that have it. Records that are dropped are
            counted under it.
    """

    def __init__(
        self, cause: str, *, place: str | None = None, fix: str | None = None, kind: str = "unusable record"
    ) -> None:
        self.kind = kind
        super().__init__(cause, place=place, fix=fix)

    def among(self, bad: int, rows: int) -> Self:
        """The same fault, told as the first of `bad` records that cannot be used among `rows`."""
        told = copy.copy(self)
        if bad > 1:
            told.cause = f"{self.cause} (the first of {bad:,} records that cannot be used, among {rows:,})"
        return told.at(self.place)


class ArgumentError(UserError):
    """Flags or config keys that are unknown, wrong or do not go together."""


class ManifestError(UserError):
    """A folder whose history does not fit what is asked of it."""


def to_send(error: UserError) -> tuple[str, str | None, str | None]:
    """What another process needs to make an error again."""
    return error.cause, error.place, error.fix


def sent(cause: str, place: str | None, fix: str | None) -> ArgumentError:
    """The error of another process, from `to_send`."""
    return ArgumentError(cause, place=place, fix=fix)


def raise_together(problems: Iterable[UserError]) -> None:
    """Raise nothing for no problem, the problem itself for one, and one numbered message for several."""
    found = list(problems)
    if len(found) == 1:
        raise found[0]
    if found:
        listed = [f"{number}. {problem.render()}" for number, problem in enumerate(found, start=1)]
        raise ArgumentError("\n".join([f"{len(listed)} problems, nothing was started:", *listed]))


class Preempted(Exception):
    """The run was told to stop and has saved a checkpoint; it ends with `PREEMPTED_EXIT_CODE`."""


exit_hooks: list[Callable[[BaseException | None], None]] = []
"""Called before a script ends, with what ends it: an error, or None. Other processes may wait for this one."""

# Seconds in which the launcher ends the other ranks after rank 0 has spoken.
_OTHERS_WAIT = 3.0
# Seconds that a tool has to tidy up after Ctrl-C: removing a half-written model from a network drive takes some.
_TOOLS_PATIENCE = 30.0
# Lines of a library's output that are shown with an error that nobody foresaw.
_TAIL = 15


class _ExitHooks:
    """Calls `exit_hooks` however the block inside ends, and hides no error."""

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        # Who was told to stop is no culprit: the hooks tell other ranks of errors only.
        stopped = isinstance(error, Preempted | interrupts.Interrupted) or interrupts.stop_signal()
        for hook in exit_hooks:
            hook(None if stopped else error)


def run_script(main: Callable[[], None]) -> None:
    """Run the `main` of a script that trains; a `UserError` becomes its message and exit code 2, a stop exit code 75.

    What libraries say goes to a log (`terminal.py`), the end of which is shown with an unexpected error.

    Under a launcher every rank usually meets the same error. Rank 0 speaks at once; the others wait a moment, in which
    the launcher ends them, and speak only if they are still alive, that is, if the error was theirs alone. An error
    that is known to be everyone's is said once a machine.
    """
    terminal.capture(lambda text: visible(redact(text)))
    _listen(PREEMPTED_EXIT_CODE, 3.0)
    stopped = "stopped before the first step, nothing was written: the same command starts again"
    _run(main, PREEMPTED_EXIT_CODE, stopped)


def run_tool(main: Callable[[], None]) -> None:
    """Likewise for what does not train: nothing is captured, and a stop is exit code 130."""
    _listen(INTERRUPTED_EXIT_CODE, _TOOLS_PATIENCE)
    _run(main, INTERRUPTED_EXIT_CODE, "stopped; nothing is left half written")


def _listen(code: int, patience: float) -> None:
    listener = interrupts.listen(exits=True, patience=patience, code=code)
    if listener is not None:
        listener.announce = _speak
        listener.last_acts.append(terminal.release)


def _run(main: Callable[[], None], stop_code: int, stopped: str) -> None:
    hide_in_tracebacks()
    try:
        with _ExitHooks():
            main()
    except UserError as error:
        _refuse(error)
    except Preempted as stop:
        interrupts.leave(PREEMPTED_EXIT_CODE)
        _speak(str(stop))
        _exit(PREEMPTED_EXIT_CODE)
    except Exception as error:
        # What a signal breaks in a library (a pipe, a collective) was broken on purpose: no traceback.
        if interrupts.stop_signal() and not interrupts.deferring():
            _stop(stopped, stop_code)
        if (refusal := _of_the_system(error)) is not None:
            _refuse(refusal)
        _fail(error)
    except interrupts.Interrupted:
        _stop(stopped, stop_code)
    finally:
        terminal.release()
        interrupts.stop_listening()


_NO_ROOM = (f"{{}}: {os.strerror(errno.ENOSPC)}", "make room on the disk, or use another one")
_OF_THE_SYSTEM = {
    errno.ENAMETOOLONG: ("a name is longer than the system takes: {}", "give a shorter one"),
    errno.ELOOP: ("a link leads back to itself: {}", "name what it should lead to, or remove it"),
    errno.ENOSPC: _NO_ROOM,
    errno.EDQUOT: _NO_ROOM,
}
"""What the system may answer anywhere: looking whether there is a file raises already, printing may fill a disk."""


def _of_the_system(error: Exception) -> ArgumentError | None:
    """The message for an error of the system's; None for one of another kind."""
    # Path.resolve turns ELOOP into a RuntimeError of Python's own.
    found = error.__context__ if type(error) is RuntimeError else error
    if not isinstance(found, OSError):
        return None
    if found.errno in _OF_THE_SYSTEM:
        cause, fix = _OF_THE_SYSTEM[found.errno]
        return ArgumentError(cause.format(shown(found.filename or "where the output goes", 300)), fix=fix)
    if found.errno == errno.ENOENT:
        try:
            os.getcwd()
        except FileNotFoundError:
            return ArgumentError("the working folder has been removed", fix="change to a folder that is there")
    return None


def _stop(words: str, code: int) -> None:
    # From here on a signal hastens the end; it raises nothing in the middle of the message.
    interrupts.leave(code)
    _speak(words)
    interrupts.kill_descendants()
    _exit(code)


def _refuse(error: UserError) -> None:
    interrupts.leave(error.exit_code)
    rank = int(os.environ.get("RANK", "0"))
    if rank != 0:
        time.sleep(_OTHERS_WAIT)
    who = f"[rank {rank}] " if rank != 0 else ""
    if not error.on_all_ranks or os.environ.get("LOCAL_RANK", "0") == "0":
        with suppress(OSError):  # `> log 2>&1` on the full disk that is the error: the exit code says it
            say(f"\n{who}error: {error.render()}\n", file=terminal.err(), flush=True)
    # Skip interpreter teardown: collectives of ranks that stopped elsewhere must not hold this one back.
    _exit(error.exit_code)


def _fail(error: Exception) -> NoReturn:
    """An error that nobody foresaw: the end of the log, then the traceback."""
    interrupts.leave(1)
    rank = int(os.environ.get("RANK", "0"))
    if rank != 0:
        time.sleep(_OTHERS_WAIT)
    who = f"[rank {rank}] " if rank != 0 else ""
    held = terminal.captured()
    if held is not None and (lines := held.tail(_TAIL)):
        where = f" (all of it: {held.file.name})" if held.file is not None else ""
        say("\n".join([f"{who}the last words of libraries{where}:", *lines, ""]), file=terminal.err())
    text = "".join(traceback.format_exception(error))
    say(f"{who}{text}", end="", file=terminal.err(), flush=True)
    # Not `os._exit`, as above: other ranks must see this one fail, and what Python cleans up may show the cause.
    raise SystemExit(1) from None


def _speak(text: str) -> None:
    """Rank 0 says a line for all."""
    if os.environ.get("RANK", "0") == "0":
        say(f"\n{text}\n" if text.startswith("stopped") else text, file=terminal.err(), flush=True)


def _exit(code: int) -> None:
    terminal.release()
    os._exit(code)
