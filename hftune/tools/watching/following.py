"""Shows runs once, or until they end: as a picture that changes in a terminal, as lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.live import Live

from hftune.errors import ManifestError
from hftune.tools.watching.runs import FINISHED, Runs
from hftune.tools.watching.view import line, view
from hftune.visible import say


def _console() -> Console:
    return Console(highlight=False, markup=False, emoji=False)


def show(folders: Sequence[str], console: Console | None = None) -> None:
    """Print how the runs of folders do.

    Raises:
        ManifestError: There is none.
    """
    runs = Runs(folders).read()
    if not runs:
        cause = f"no run has begun in {', '.join(folders)}"
        raise ManifestError(cause, place=folders[0], fix="give the output folder of a stage or of a pipeline")
    (console or _console()).print(view(runs))


def follow(folders: Sequence[str], every: float, console: Console | None = None) -> None:
    """Show the runs of folders every few seconds; of a single stage until it has finished, else for ever."""
    console = console or _console()
    found = Runs(folders)
    if console.is_terminal and not console.is_dumb_terminal:  # where rich draws nothing
        # What does not fit into the terminal is cut off below; the last picture stays when it ends.
        with Live(console=console, auto_refresh=False, vertical_overflow="ellipsis") as live:
            while not _ended(found):
                live.update(view(found.read()), refresh=True)
                time.sleep(0 if _ended(found) else every)
        return
    said: dict[Path, str] = {}
    while not _ended(found):
        for run in found.read():
            text = " ".join(line(run).split())
            if said.get(run.folder) != text:
                said[run.folder] = text
                say(text, flush=True)
        time.sleep(0 if _ended(found) else every)


def _ended(found: Runs) -> bool:
    """Whether a single stage was asked for, and has finished: what a pipeline does next nobody knows here."""
    return [(run.folder, run.state) for run in found.all.values()] == [(found.tops[0], FINISHED)]
