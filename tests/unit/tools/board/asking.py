"""Asks the board's application without a network."""

from __future__ import annotations

import asyncio
import html
import re
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from hftune.tools.board.app import Board

TOKEN = "token-of-the-test-0123456789"
HOST = "127.0.0.1:8765"


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    text: str

    @property
    def said(self) -> str:
        """Its words, without tags."""
        return html.unescape(re.sub(r"<[^>]*>", " ", self.text))


def ask(board: Board, path: str, form: Any = None, *, token: str = TOKEN, **headers: str | None) -> Answer:
    """What the board answers; a form is sent, as the page itself would send it."""
    given: dict[str, str | None] = {"host": HOST}
    if form is not None:
        given |= {"origin": f"http://{HOST}", "content-type": "application/x-www-form-urlencoded"}
    given |= {name.replace("_", "-"): value for name, value in headers.items()}
    raw = form if isinstance(form, bytes) else urlencode(form or {}, doseq=True).encode()
    path, _, query = f"/{token}/{path}".partition("?")
    scope = {
        "type": "http",
        "asgi": {"spec_version": "2.3"},
        "http_version": "1.1",
        "method": "GET" if form is None else "POST",
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": query.encode(),
        "headers": [(name.encode(), value.encode()) for name, value in given.items() if value is not None],
        "server": ("127.0.0.1", 8765),
    }
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": raw, "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    # Of what nobody foresaw starlette answers, and tells the server.
    with suppress(RuntimeError):
        asyncio.run(board.app(scope, receive, send))
    start, *pieces = sent
    found = {name.decode(): value.decode() for name, value in start["headers"]}
    return Answer(start["status"], found, b"".join(piece["body"] for piece in pieces).decode())
