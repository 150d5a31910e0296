"""The one family of errors a user may see, and how a script ends with one.

A message says what went wrong, where (file:line, flag or config key), and what to do about it. A script ends with
exit code 2, the message on stderr, and no traceback. Anything else is a bug of ours and keeps its traceback.
"""

from __future__ import annotations

import difflib
import os
import sys
import time
from collections.abc import Callable, Iterable

from hftune.constants import PREEMPTED_EXIT_CODE, USER_ERROR_EXIT_CODE
from hftune.visible import hide_in_tracebacks, say, visible


def shown(value: object, limit: int = 60) -> str:
    """A value from the data as a message may quote it: its start, on one line."""
    text = visible(" ".join(str(value)[: 4 * limit].split()))
    return text if len(text) <= limit else f"{text[: limit - 3]}..."


def did_you_mean(name: str, names: Iterable[str], *, written: str = "{}") -> str:
    """ "did you mean --max_length?" for the nearest of `names`; empty where none is near.

    Args:
        written: How a name is written in the message, `--{}` for one.
    """
    near = difflib.get_close_matches(name, list(names), n=1)
    return f"did you mean {written.format(near[0])}?" if near else ""


class UserError(Exception):
    """Something the user can mend.

    Args:
        cause: One line, what is wrong.
        place: Where: `file:line`, `--flag` or a config key. Left out where the cause already names it.
        fix: What to do about it.

    Attributes:
        everywhere: Whether every process is known to raise it.
    """

    everywhere = False

    def __init__(self, cause: str, *, place: str | None = None, fix: str | None = None) -> None:
        self.cause, self.place, self.fix = cause, place, fix
        super().__init__(self.render())

    def render(self) -> str:
        """The message as it is printed: cause, then place and fix on lines of their own."""
        lines = [self.cause]
        if self.place:
            lines.append(f"  where: {self.place}")
        if self.fix:
            lines.append(f"  to do: {self.fix}")
        return visible("\n".join(lines))  # causes quote data, paths and other programs


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

    def at(self, place: str) -> DataError:
        """The same fault at another place; what raised it did not know the record."""
        return DataError(self.cause, place=place, fix=self.fix, kind=self.kind)


class ArgumentError(UserError):
    """Flags or config keys that are unknown, wrong or do not go together."""


class ManifestError(UserError):
    """A folder whose history does not fit what is asked of it."""


def raise_together(problems: Iterable[UserError]) -> None:
    """Raise nothing for no problem, the problem itself for one, and one numbered message for several."""
    found = list(problems)
    if len(found) == 1:
        raise found[0]
    if found:
        numbered = (f"{number}. {problem.render()}" for number, problem in enumerate(found, start=1))
        raise ArgumentError(f"{len(found)} problems, nothing was started:\n" + "\n".join(numbered))


class Preempted(Exception):
    """The run was told to stop and has saved a checkpoint; it ends with `PREEMPTED_EXIT_CODE`."""


farewells: list[Callable[[BaseException | None], None]] = []
"""Called before a script ends, with what ends it: an error, or None. Other processes may wait for this one."""


class _Farewell:
    """Says goodbye however the block inside ends, and hides nothing."""

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        for farewell in farewells:
            farewell(None if isinstance(error, Preempted) else error)


def run_script(main: Callable[[], None]) -> None:
    """Run a script's `main`; a `UserError` becomes its message and exit code 2, a stop on demand exit code 75.

    Under a launcher every rank usually meets the same error. Rank 0 speaks at once; the others wait a moment, in which
    the launcher ends them, and speak only if they are still alive, that is, if the error was theirs alone. An error
    that is known to be everyone's is said once a machine.
    """
    hide_in_tracebacks()
    try:
        with _Farewell():
            main()
    except UserError as error:
        rank = int(os.environ.get("RANK", "0"))
        if rank != 0:
            time.sleep(3.0)
        who = f"[rank {rank}] " if rank != 0 else ""
        if not error.everywhere or os.environ.get("LOCAL_RANK", "0") == "0":
            say(f"\n{who}error: {error.render()}\n", file=sys.stderr, flush=True)
        # Skip interpreter teardown: collectives of ranks that stopped elsewhere must not hold this one back.
        sys.stdout.flush()
        os._exit(USER_ERROR_EXIT_CODE)
    except Preempted as stop:
        say(f"\n{stop}\n", file=sys.stderr, flush=True)
        sys.stdout.flush()
        os._exit(PREEMPTED_EXIT_CODE)
