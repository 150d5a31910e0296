"""The board's addresses, and who may use them. It only reads.

Every address begins with the token, and a page elsewhere that has its own name lead to this machine is refused. Paths
of files are in no address: a run has a number made of its folder's name, looked up among those that were found.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.routing import Route

from hftune.logging import get_logger
from hftune.secrets import redact
from hftune.tools.board.pages import CSS, Pages
from hftune.tools.listening.server import LOCAL

_STYLE = base64.b64encode(hashlib.sha256(CSS.encode()).digest()).decode()
HEADERS = {
    "Content-Security-Policy": f"default-src 'none'; style-src 'sha256-{_STYLE}'; img-src data:; form-action 'none'; "
    "base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class Board:
    """The application that uvicorn runs.

    Args:
        folders: Nothing outside of them is read.
        token: What every address begins with.
    """

    def __init__(self, folders: Sequence[Path], token: str) -> None:
        self.token, self.pages, self._lock = token, Pages(folders), threading.Lock()
        shown: dict[str, Callable[[Request], str]] = {
            "": lambda request: self.pages.overview(request.query_params.getlist("run")),
            "compare": lambda request: self.pages.compare(request.query_params.getlist("run")),
            "run/{id}": lambda request: self.pages.run(request.path_params["id"]),
        }
        routes = [Route(f"/{{token}}/{path}", self._shows(make)) for path, make in shown.items()]
        handlers: dict[Any, Any] = {HTTPException: _refuse, Exception: _fail}
        self.app = Starlette(routes=routes, exception_handlers=handlers)

    def _shows(self, make: Callable[[Request], str]) -> Callable[[Request], Response]:
        """An endpoint that answers with a page; starlette calls it in a thread."""

        def show(request: Request) -> Response:
            self._admit(request)
            try:
                # What was read of the runs is shared, and read on.
                with self._lock:
                    return HTMLResponse(redact(make(request)), headers=HEADERS)
            except LookupError as error:
                raise HTTPException(404, "there is no such run here any more") from error

        return show

    def _admit(self, request: Request) -> None:
        """Let a request pass that knows the token, and asks for this machine by its own name.

        Raises:
            HTTPException: One that does not.
        """
        if _hostname(request.headers.get("host", "")) not in LOCAL:
            raise HTTPException(403, "this server is asked for by another name than its own")
        if not hmac.compare_digest(request.path_params.get("token", "").encode(), self.token.encode()):
            raise HTTPException(404, "there is nothing here; `hftune board` has printed the address")


def _hostname(host: str) -> str | None:
    try:
        return urlsplit(f"//{host}").hostname
    except ValueError:  # brackets that do not close
        return None


async def _refuse(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return PlainTextResponse(error.detail, error.status_code, headers=HEADERS)


async def _fail(request: Request, error: Exception) -> Response:
    get_logger().error("a request failed", exc_info=error)
    return PlainTextResponse("this failed; the terminal of `hftune board` says why", 500, headers=HEADERS)
