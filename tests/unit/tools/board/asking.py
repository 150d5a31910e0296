"""Asks the board's application without a network."""

from __future__ import annotations

import asyncio
import html
import re
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

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


def ask(board: Board, path: str, *, token: str = TOKEN, method: str = "GET", host: str = HOST) -> Answer:
    """What the board answers."""
    path, _, query = f"/{token}/{path}".partition("?")
    scope = {
        "type": "http",
        "asgi": {"spec_version": "2.3"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": query.encode(),
        "headers": [(b"host", host.encode())],
        "server": ("127.0.0.1", 8765),
    }
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    # Of what nobody foresaw starlette answers, and tells the server.
    with suppress(RuntimeError):
        asyncio.run(board.app(scope, receive, send))
    start, *pieces = sent
    found = {name.decode(): value.decode() for name, value in start["headers"]}
    return Answer(start["status"], found, b"".join(piece["body"] for piece in pieces).decode())
