"""The board's addresses, and who may use them.

Every address begins with the token, so that links within the page need no cookie, which other pages could ride on. A
page elsewhere may have its own name lead to this machine, or send a form here: the names by which this server is asked
for and where a form comes from are looked at as well. Paths of files are in no address: a run has a number made of its
folder's name, and only those that were found below the folders are looked up.
"""

from __future__ import annotations

import asyncio
import hmac
import threading
from collections.abc import Callable, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route

from hftune.errors import UserError
from hftune.logging import get_logger
from hftune.secrets import redact
from hftune.tools.board import form, pages
from hftune.tools.board.found import Found
from hftune.tools.board.layout import CSS, page
from hftune.tools.board.pipelines import ACTIONS
from hftune.tools.listening.server import LOCAL
from hftune.visible import html

LONGEST_BODY = 1 << 20
_MOST_FIELDS = 10_000
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; "
    "img-src data:; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    # Not `no-referrer`: with it browsers say of a form that it comes from nowhere. No other host is told anything.
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}
Fields = Mapping[str, Sequence[str]]


class Refused(Exception):
    """A request that is not answered."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status


class Board:
    """The page behind the application that uvicorn runs.

    Args:
        folders: Nothing outside of them is read, apart from `files`.
        files: Pipeline files that can be started.
        token: What every address begins with.
    """

    def __init__(self, folders: Sequence[Path], files: Sequence[Path], token: str) -> None:
        self.token, self.found, self._lock = token, Found(folders, files), threading.Lock()
        shown: dict[str, Callable[[Found, Fields], str]] = {
            "": pages.overview,
            "part/overview": pages.overview_part,
            "compare": pages.compare,
            "part/compare": pages.compare_part,
            "run/{id}": pages.run,
            "part/run/{id}": pages.run_part,
            "pipeline/{id}": pages.pipeline,
            "part/pipeline/{id}": pages.pipeline_part,
            "new": form.new,
        }
        routes = [Route(f"/{{token}}/{path}", self._shows(make)) for path, make in shown.items()]
        routes += [
            Route("/{token}/board.js", self.script),
            Route("/{token}/board.css", self.style),
            Route("/{token}/new", self._does(self._save), methods=["POST"]),
            Route("/{token}/pipeline/{id}", self._does(self._act), methods=["POST"]),
        ]
        handlers: dict[Any, Any] = {HTTPException: _no_page, Exception: _fail}
        self.app = Starlette(routes=routes, exception_handlers=handlers)

    # --- addresses ---

    def _shows(self, make: Callable[[Found, Fields], str]) -> Callable[..., Any]:
        """An endpoint that answers with a page."""

        async def show(request: Request) -> Response:
            return await self._guarded(request, lambda: HTMLResponse(redact(make(self.found, _asked(request)))))

        return show

    def _does(self, do: Callable[[str, Fields], Response]) -> Callable[..., Any]:
        """An endpoint that does what a form asks for, then leads to another page."""

        async def act(request: Request) -> Response:
            try:
                self._admit(request)
                given = await _form(request)
            except Refused as refused:
                return _refuse(refused)
            place = request.path_params.get("id", "")
            return await self._guarded(request, lambda: do(place, given))

        return act

    async def script(self, request: Request) -> Response:
        """The page's script."""
        text = resources.files("hftune.tools.board").joinpath("board.js").read_text(encoding="utf-8")
        return await self._guarded(request, lambda: Response(text, media_type="text/javascript"))

    async def style(self, request: Request) -> Response:
        """The page's style."""
        return await self._guarded(request, lambda: Response(CSS, media_type="text/css"))

    def _save(self, place: str, given: Fields) -> Response:
        try:
            made = form.save(self.found, given)
        except UserError as error:
            # With all that was filled in, which must not be lost.
            return HTMLResponse(redact(form.again(self.found, given, error)), status_code=400)
        if given.get("then") == ["run"]:
            self.found.pipelines.act(made, "run")
        return self._leads_to(f"pipeline/{made.id}")

    def _act(self, place: str, given: Fields) -> Response:
        action = next(iter(given.get("action", [])), "")
        if action not in ACTIONS:
            raise Refused(400, "nothing is known that could be done so")
        self.found.pipelines.act(self.found.pipelines.one(place), action)
        return self._leads_to(f"pipeline/{place}")

    def _leads_to(self, address: str) -> Response:
        # 303: the page that follows is asked for, and not sent the form again.
        return RedirectResponse(f"/{self.token}/{address}", status_code=303)

    # --- who may ask ---

    async def _guarded(self, request: Request, answer: Callable[[], Response]) -> Response:
        """The answer, made in a thread, to who may ask; a refusal else."""
        try:
            self._admit(request)
            response = await asyncio.to_thread(self._alone, answer)
        except Refused as refused:
            return _refuse(refused)
        except LookupError:
            return _refuse(Refused(404, "there is no such run or pipeline here any more"))
        except UserError as error:
            body = f"<h1>Not done</h1><pre>{html(error)}</pre>"
            depth = request.url.path.count("/") - 2
            return HTMLResponse(page("hftune board", body, depth=depth, live=False), 400, headers=HEADERS)
        response.headers.update(HEADERS)
        return response

    def _alone(self, answer: Callable[[], Response]) -> Response:
        # What was read of the runs is shared, and read on.
        with self._lock:
            return answer()

    def _admit(self, request: Request) -> None:
        """Let a request pass that knows the token, asks for this machine and comes from no other page.

        Raises:
            Refused: One that does not.
        """
        host = request.headers.get("host", "")
        if (_hostname(host) or "") not in LOCAL:
            raise Refused(403, "this server is asked for by another name than its own")
        if not hmac.compare_digest(request.path_params.get("token", "").encode(), self.token.encode()):
            raise Refused(404, "there is nothing here; `hftune board` has printed the address")
        origin = request.headers.get("origin")
        # Browsers name the origin of every form; of a page that is opened they do not.
        if origin != f"http://{host}" and (origin is not None or request.method == "POST"):
            raise Refused(403, "this was asked for by another page")


def _hostname(host: str) -> str | None:
    try:
        return urlsplit(f"//{host}").hostname
    except ValueError:  # brackets that do not close
        return None


def _asked(request: Request) -> Fields:
    found: dict[str, list[str]] = {}
    for name, value in request.query_params.multi_items():
        found.setdefault(name, []).append(value)
    return found | ({"id": [request.path_params["id"]]} if "id" in request.path_params else {})


async def _form(request: Request) -> Fields:
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/x-www-form-urlencoded":
        raise Refused(415, "a form is sent as application/x-www-form-urlencoded")
    raw = bytearray()
    async for piece in request.stream():
        raw += piece
        if len(raw) > LONGEST_BODY:
            raise Refused(413, f"the form has more than {LONGEST_BODY} bytes")
    found: dict[str, list[str]] = {}
    try:
        for name, value in parse_qsl(raw.decode(), max_num_fields=_MOST_FIELDS):
            found.setdefault(name, []).append(value)
    except ValueError as error:  # too many fields, or no UTF-8
        raise Refused(400, "the form cannot be read") from error
    return found


def _told(status: int, body: str) -> Response:
    return HTMLResponse(page("hftune board", body, live=False, styled=False), status, headers=HEADERS)


def _refuse(refused: Refused) -> Response:
    return _told(refused.status, f"<p>{html(refused)}</p>")


async def _no_page(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return _told(error.status_code, "<p>there is nothing here; `hftune board` has printed the address</p>")


async def _fail(request: Request, error: Exception) -> Response:
    get_logger().error("a request failed", exc_info=error)
    return _told(500, "<p>this failed; the terminal of `hftune board` says why</p>")
