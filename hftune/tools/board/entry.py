"""`hftune board [FOLDER ...]`: a page in the browser, for this machine alone."""

from __future__ import annotations

import secrets
from contextlib import closing
from pathlib import Path

from hftune.errors import ArgumentError, raise_together
from hftune.path_hints import path_hint
from hftune.visible import say

HELP = """A page in the browser, for this machine alone: runs with their curves as they train, compared, and pipelines.

hftune board [FOLDER ...] [PIPELINE.yaml ...]

FOLDER            output folders of stages or pipelines, or folders with such below them; nothing else is read. Left
                  out: outputs, or the working folder where there is none. What the form writes goes to FOLDER/board of
                  the first one
PIPELINE.yaml     pipeline files to start from the page as well
--port N          left out: 8765; 0: any that is free

The address has a token in it: whoever knows it can start commands as you. Ctrl-C ends the page, and no run."""
PORT = 8765


def board(argv: list[str]) -> None:
    """Show the page until the process is told to stop.

    Raises:
        ArgumentError: No such folder or file, a port that is taken, or a package is missing.
    """
    if {"-h", "--help"} & {*argv}:
        say(HELP)
        return
    words, port = _taken(argv)
    from hftune.tools.listening.server import address_of, bound, missing_packages, run_app

    raise_together(missing_packages("hftune board"))
    from hftune.tools.board.app import Board

    files = [Path(word) for word in words if word.endswith((".yaml", ".yml"))]
    folders = [Path(word) for word in words if not word.endswith((".yaml", ".yml"))]
    token = secrets.token_urlsafe(24)
    found = Board(folders or [Path("outputs" if Path("outputs").is_dir() else ".")], files, token)
    with closing(bound("127.0.0.1", port)) as listening:
        address = f"{address_of(listening)}/{token}/"
        run_app(found.app, listening, lambda: say(f"the board is at {address}   Ctrl-C ends it", flush=True), _nothing)


def _nothing() -> None:
    """Pipelines that were started run on."""


def _taken(argv: list[str]) -> tuple[list[str], int]:
    """Folders and files, and the port."""
    words, port, left = [], PORT, iter(argv)
    for word in left:
        name, equals, value = word.partition("=")
        if name == "--port":
            text = value if equals else next(left, "")
            if not text.isdecimal() or int(text) > 65535:
                raise ArgumentError(f"--port takes a number, not {text!r}", place="--port", fix="--port 8765")
            port = int(text)
        elif word.startswith("-"):
            raise ArgumentError(f"`hftune board` has no {name}", place="hftune board", fix="hftune board --help")
        elif not Path(word).exists():
            fix = path_hint(word, "a folder of runs, or a pipeline file")
            raise ArgumentError(f"there is no {word}", place="hftune board", fix=fix)
        else:
            words.append(word)
    return words, port
