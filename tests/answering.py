"""A server that answers as a test tells it to, and keeps what it was asked."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Answer = tuple[int, bytes | dict[str, Any]]
"""Status and body; a dict becomes JSON."""


class Asked:
    """An address, and the requests that came: path, body and headers."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.requests: list[tuple[str, Any, dict[str, str]]] = []


@contextmanager
def server(answer: Callable[[str, Any], Answer]) -> Iterator[Asked]:
    """A server at a free port whose answers are those of a function of path and body; `b"raw:..."` is sent as it is."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            size = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(size)) if size else None
            asked.requests.append((self.path, body, dict(self.headers)))
            status, said = answer(self.path, body)
            if isinstance(said, bytes) and said.startswith(b"raw:"):
                self.wfile.write(said.removeprefix(b"raw:"))
                return
            raw = said if isinstance(said, bytes) else json.dumps(said).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(raw)))
            if status // 100 == 3:
                self.send_header("Location", "http://elsewhere.example/v1")
            self.end_headers()
            self.wfile.write(raw)

        do_GET = do_POST

        def log_message(self, format: str, *args: Any) -> None:
            """Nothing."""

        def handle(self) -> None:
            with suppress(ConnectionError):  # the client has left, as it should
                super().handle()

    running = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    running.daemon_threads = True
    asked = Asked(f"http://127.0.0.1:{running.server_port}")
    threading.Thread(target=running.serve_forever, daemon=True, kwargs={"poll_interval": 0.01}).start()
    try:
        yield asked
    finally:
        running.shutdown()
        running.server_close()
