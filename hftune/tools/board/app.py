"""`hftune board [FOLDER ...]`: the page's addresses, and who may use them. It only reads.

Every address begins with the token, and a page elsewhere that has its own name lead to this machine is refused. Paths
of files are in no address: a run has a number made of its folder's name, looked up among those that were found.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
import socket
import threading
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from hftune.errors import ArgumentError
from hftune.logging import get_logger
from hftune.path_hints import path_hint
from hftune.secrets import redact
from hftune.tools.board.pages import CSS, Pages
from hftune.tools.listening import LOCAL, bound
from hftune.tools.words import Words, number
from hftune.visible import say

_STYLE = base64.b64encode(hashlib.sha256(CSS.encode()).digest()).decode()
HEADERS = {
    "Content-Security-Policy": f"default-src 'none'; style-src 'sha256-{_STYLE}'; img-src data:; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}
_SECONDS = 30
"""Of a client that says nothing."""


Answer = tuple[int, str]
"""Status, and a page; of any status but 200 a line of text."""


class Board:
    """Answers requests.

    Args:
        folders: Nothing outside of them is read.
        token: What every address begins with.
    """

    def __init__(self, folders: Sequence[Path], token: str) -> None:
        self.token, self.pages, self._lock = token, Pages(folders), threading.Lock()

    def answer(self, address: str, host: str) -> Answer:
        """The answer to a request.

        Args:
            address: Path and query.
            host: What the client says that it asks.
        """
        if _hostname(host) not in LOCAL:
            return 403, "this server is asked for by another name than its own"
        path, _, query = address.partition("?")
        _, token, place = [*path.split("/", 2), "", ""][:3]
        if not hmac.compare_digest(token.encode(errors="replace"), self.token.encode()):
            return 404, "there is nothing here; `hftune board` has printed the address"
        try:
            # What was read of the runs is shared, and read on.
            with self._lock:
                return 200, redact(self._page(place, parse_qs(query).get("run", [])))
        except LookupError:
            return 404, "there is no such run here any more"
        except Exception as error:
            get_logger().error("a request failed", exc_info=error)
            return 500, "this failed; the terminal of `hftune board` says why"

    def _page(self, place: str, runs: list[str]) -> str:
        if place in ("", "compare"):
            return self.pages.compare(runs) if place else self.pages.overview()
        kind, _, number = place.partition("/")
        if kind != "run":
            raise LookupError(place)
        return self.pages.run(number)


def serve(board: Board, listening: socket.socket, ready: Callable[[], None]) -> None:
    """Answer requests at a socket until this thread is interrupted.

    Args:
        ready: Called when clients may ask.
    """

    class Handler(BaseHTTPRequestHandler):
        timeout = _SECONDS
        error_message_format, error_content_type = "%(message)s\n", "text/plain"

        def do_GET(self) -> None:
            status, text = board.answer(self.path, self.headers.get("Host", ""))
            body = text.encode(errors="replace")
            kind = "text/html" if status == HTTPStatus.OK else "text/plain"
            with suppress(OSError):  # nobody waits for it any more
                self.send_response(status)
                sizes = {"Content-Type": f"{kind}; charset=utf-8", "Content-Length": str(len(body))}
                for name, value in {**HEADERS, **sizes}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body)

        def version_string(self) -> str:
            return "hftune"

        def log_message(self, format: str, *args: object) -> None:
            """What clients send is not printed."""

    server = ThreadingHTTPServer(listening.getsockname(), Handler, bind_and_activate=False)
    server.socket.close()
    server.socket = listening
    try:
        server.server_activate()
        ready()
        server.serve_forever()
    finally:
        server.server_close()


def _hostname(host: str) -> str | None:
    try:
        return urlsplit(f"//{host}").hostname
    except ValueError:  # brackets that do not close
        return None


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
    words = Words("hftune board")
    words.add_argument("folders", nargs="*")
    words.add_argument("--port", type=number(int, 0, 65535), default=PORT)
    given = words.parse_args(argv)
    _check_folders(given.folders)
    folders = [Path(word) for word in given.folders] or [Path("outputs" if Path("outputs").is_dir() else ".")]
    token = secrets.token_urlsafe(24)
    with closing(bound("127.0.0.1", given.port)) as listening:
        address = f"http://127.0.0.1:{listening.getsockname()[1]}/{token}/"
        said = f"the board is at {address}   Ctrl-C ends it"
        serve(Board(folders, token), listening, lambda: say(said, flush=True))


def _check_folders(words: list[str]) -> None:
    for word in words:
        if word.endswith((".yaml", ".yml")):
            cause = "the board starts no pipelines any more"
            raise ArgumentError(cause, place=f"hftune board {word}", fix=f"hftune pipeline run {word}")
        if not Path(word).is_dir():
            fix = path_hint(word, "a folder of runs")
            raise ArgumentError(f"there is no folder {word}", place="hftune board", fix=fix)
