"""`hftune watch FOLDER`: how the runs of a folder do, by the files that they write."""

from __future__ import annotations

import os
from pathlib import Path

from hftune.errors import ArgumentError
from hftune.path_hints import path_hint
from hftune.visible import say

HELP = """Shows how the runs of a folder do: a stage's output folder, a pipeline's, or one with such folders below it.

hftune watch FOLDER [FOLDER ...]       until Ctrl-C; of a single stage until it has finished
hftune watch FOLDER --once             once, for scripts: exit code 2 where there is no run
--every SECONDS                        between two looks; left out: 1

Only files are read, so that the run may be on another machine that shares the folder."""
_FEWEST = 0.1


def watch(argv: list[str]) -> None:
    """Follow the runs of folders.

    Raises:
        ArgumentError: A word too many, or no folder.
        ManifestError: With `--once`, there is no run.
    """
    if not argv or {"-h", "--help"} & {*argv}:
        say(HELP)
        return
    folders, once, every = _taken(argv)
    for folder in folders:
        if not os.path.isdir(Path(folder)):
            fix = path_hint(folder, "the output folder of a stage or of a pipeline")
            raise ArgumentError(f"there is no folder {folder}", place="hftune watch", fix=fix)
        if not os.access(folder, os.R_OK | os.X_OK):
            fix = "make it readable for you (ls -ld shows whose it is), or name another folder"
            raise ArgumentError(f"{folder} cannot be read", place="hftune watch", fix=fix)
    # Here: the help page needs no rich.
    from hftune.tools.watching.following import follow, show

    if once:
        show(folders)
    else:
        follow(folders, every)


def _taken(argv: list[str]) -> tuple[list[str], bool, float]:
    """Folders, whether to look once, and seconds between two looks."""
    folders, once, every, left = [], False, 1.0, iter(argv)
    for word in left:
        name, equals, value = word.partition("=")
        if word == "--once":
            once = True
        elif name == "--every":
            text = value if equals else next(left, "")
            if not text.replace(".", "", 1).isdecimal() or float(text) < _FEWEST:
                raise ArgumentError(f"--every takes seconds, not {text!r}", place="--every", fix="--every 5")
            every = float(text)
        elif word.startswith("-"):
            raise ArgumentError(f"`hftune watch` has no {name}", fix="hftune watch --help")
        else:
            folders.append(word)
    if not folders:
        raise ArgumentError("`hftune watch` needs a folder", fix="hftune watch outputs/lora")
    return folders, once, every
