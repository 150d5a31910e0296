"""`hftune watch FOLDER`: a line for each run, and of the one that trains its curves, of one that stopped why."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path

from rich.console import Console
from rich.live import Live
from rich.text import Text

from hftune.errors import ArgumentError, ManifestError
from hftune.path_hints import path_hint
from hftune.secrets import redact
from hftune.tools.reporting.page import spark
from hftune.tools.reporting.runs import FINISHED, RUNNING, SILENT, Runs, Watched
from hftune.tools.reporting.stages import curves_of
from hftune.tools.reporting.tables import format_cell
from hftune.tools.words import Words, number
from hftune.visible import clock, say, visible

_LETTERS, _LINES = 600, 6


def line(run: Watched) -> str:
    """A run on one line: `sft: step 3/10, loss 1.235, 12,346 tokens/s, 0:35 left (running)`."""
    return f"{run.name}: {run.moment()} ({run.state})" if run.log.lines else f"{run.name}: {run.state}"


def view(runs: Sequence[Watched]) -> str:
    """All runs, a line each, and more of the one that trains, or else was written last."""
    if not runs:
        return "no run has begun here"
    shown = next((run for run in reversed(runs) if run.state == RUNNING), runs[-1])
    more = [*_details(shown)]
    head = ["", shown.name] if more and len(runs) > 1 else []
    # What a run says may hold line breaks.
    return "\n".join(" ".join(text[:_LETTERS].split("\n")) for text in (*map(line, runs), *head, *more))


def _details(run: Watched) -> Iterator[str]:
    if run.fault:
        yield run.fault
        return
    if run.state == SILENT:
        yield f"nothing was written for {clock(run.quiet())}: it was killed, or waits"
    for title, curves in curves_of(run.log.lines).items():
        for label, points in curves.items():
            name = title if len(curves) == 1 else f"{title}, {label}"
            first, last = (format_cell(float(points[1][at])) for at in (0, -1))
            yield f"{name:<26} {spark(points)}  {first} → {last}"
    if saved := run.checkpoints():
        yield f"checkpoints: {', '.join(map(str, saved[-6:]))}"
    if run.state not in (RUNNING, FINISHED):
        name, lines = run.last_words(_LINES)
        yield from (f"{name}:", *lines) if lines else ()


def follow(folders: Sequence[str], every: float, console: Console | None = None) -> None:
    """Show the runs of folders every few seconds; of a single stage until it has finished, else for ever.

    At a terminal the picture changes in place, and what does not fit is cut off below; elsewhere each change is a line.
    """
    console, found, said = console or Console(highlight=False), Runs(folders), dict[Path, str]()
    moves = console.is_terminal and not console.is_dumb_terminal  # where rich draws nothing
    live = Live(console=console, auto_refresh=False, vertical_overflow="ellipsis") if moves else None
    with live or nullcontext():
        while not _ended(found):
            runs = found.read()
            if live:
                live.update(Text(visible(redact(view(runs)))), refresh=True)
            for run in () if live else runs:
                text = " ".join(line(run).split())
                if said.get(run.folder) != text:
                    said[run.folder] = text
                    say(text, flush=True)
            time.sleep(0 if _ended(found) else every)


def _ended(found: Runs) -> bool:
    """Whether a single stage was asked for, and has finished: what a pipeline does next nobody knows here."""
    return [(run.folder, run.state) for run in found.all.values()] == [(found.tops[0], FINISHED)]


HELP = """Shows how the runs of a folder do: a stage's output folder, a pipeline's, or one with such folders below it.

hftune watch FOLDER [FOLDER ...]       until Ctrl-C; of a single stage until it has finished
hftune watch FOLDER --once             once, for scripts: exit code 2 where there is no run
--every SECONDS                        between two looks; left out: 1

Only files are read, so that the run may be on another machine that shares the folder."""


def watch(argv: list[str]) -> None:
    """Follow the runs of folders.

    Raises:
        ArgumentError: A word too many, or no folder.
        ManifestError: With `--once`, there is no run.
    """
    if not argv or {"-h", "--help"} & {*argv}:
        say(HELP)
        return
    words = Words("hftune watch")
    words.add_argument("folders", nargs="+")
    words.add_argument("--once", action="store_true")
    words.add_argument("--every", type=number(float, 0.1, 1e6), default=1.0)
    given = words.parse_args(argv)
    folders = given.folders
    for folder in folders:
        if not os.path.isdir(Path(folder)):
            fix = path_hint(folder, "the output folder of a stage or of a pipeline")
            raise ArgumentError(f"there is no folder {folder}", place="hftune watch", fix=fix)
        if not os.access(folder, os.R_OK | os.X_OK):
            fix = "make it readable for you (ls -ld shows whose it is), or name another folder"
            raise ArgumentError(f"{folder} cannot be read", place="hftune watch", fix=fix)
    if not given.once:
        follow(folders, given.every)
    elif runs := Runs(folders).read():
        say(view(runs))
    else:
        cause = f"no run has begun in {', '.join(folders)}"
        raise ManifestError(cause, place=folders[0], fix="give the output folder of a stage or of a pipeline")
