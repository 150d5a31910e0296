"""`hftune board [FOLDER ...]`: a page in the browser, for this machine alone."""

from __future__ import annotations

import secrets
from contextlib import closing
from pathlib import Path

from hftune.errors import ArgumentError
from hftune.path_hints import path_hint
from hftune.visible import say

HELP = """A page in the browser, for this machine alone: runs with their curves as they train, and compared.

hftune board [FOLDER ...]

FOLDER            output folders of stages or pipelines, or folders with such below them; nothing else is read. Left
                  out: outputs, or the working folder where there is none
--port N          left out: 8765; 0: any that is free

The address has a token in it: whoever knows it sees what the runs have written. Ctrl-C ends the page, and no run."""
PORT = 8765


def board(argv: list[str]) -> None:
    """Show the page until the process is told to stop.

    Raises:
        ArgumentError: No such folder, or a port that is taken.
    """
    if {"-h", "--help"} & {*argv}:
        say(HELP)
        return
    words, port = _taken(argv)
    from hftune.tools.board.app import Board, serve
    from hftune.tools.listening.server import bound

    folders = [Path(word) for word in words] or [Path("outputs" if Path("outputs").is_dir() else ".")]
    token = secrets.token_urlsafe(24)
    with closing(bound("127.0.0.1", port)) as listening:
        address = f"http://127.0.0.1:{listening.getsockname()[1]}/{token}/"
        said = f"the board is at {address}   Ctrl-C ends it"
        serve(Board(folders, token), listening, lambda: say(said, flush=True))


def _taken(argv: list[str]) -> tuple[list[str], int]:
    """Folders, and the port."""
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
        elif word.endswith((".yaml", ".yml")):
            cause = "the board starts no pipelines any more"
            raise ArgumentError(cause, place=f"hftune board {word}", fix=f"hftune pipeline run {word}")
        elif not Path(word).is_dir():
            fix = path_hint(word, "a folder of runs")
            raise ArgumentError(f"there is no folder {word}", place="hftune board", fix=fix)
        else:
            words.append(word)
    return words, port
