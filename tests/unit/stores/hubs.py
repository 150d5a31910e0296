"""Servers of this machine that answer as Hugging Face's Hub and ModelScope do, as far as their clients ask."""

from __future__ import annotations

import hashlib
import http.server
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import parse_qs, unquote, urlsplit

Files = dict[str, bytes]


class _Handler(http.server.BaseHTTPRequestHandler):
    """Files of the server's repositories, and what is uploaded to them."""

    protocol_version = "HTTP/1.1"
    server: Server

    def do_GET(self) -> None:
        """What there is, or 404."""
        url = urlsplit(self.path)
        status, headers, body = self.server.answer(unquote(url.path), parse_qs(url.query))
        span = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if status == 200 and span:
            whole, begin = len(body), int(span[1])
            body = body[begin : int(span[2]) + 1 if span[2] else whole]
            status, headers = 206, headers | {"Content-Range": f"bytes {begin}-{begin + len(body) - 1}/{whole}"}
        self.answer(status, headers, body)

    do_HEAD = do_GET

    def do_POST(self) -> None:
        """Keep what is uploaded."""
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.server.posted.append((urlsplit(self.path).path, body))
        self.answer(*self.server.take(urlsplit(self.path).path, body))

    do_PUT = do_POST

    def answer(self, status: int, headers: dict[str, str], body: bytes) -> None:
        """Send an answer; of a HEAD request its headers."""
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), "Accept-Ranges": "bytes", **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        """Nothing."""


class Server(http.server.ThreadingHTTPServer):
    """Repositories by kind and name: `models/owner/name` to files.

    Args:
        repos: What is there.
    """

    def __init__(self, repos: dict[str, Files]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.repos, self.posted = repos, list[tuple[str, bytes]]()

    @property
    def url(self) -> str:
        """Its address."""
        return f"http://127.0.0.1:{self.server_port}"

    def answer(self, path: str, query: dict[str, list[str]]) -> tuple[int, dict[str, str], bytes]:
        """A file, a list of files, or 404."""
        raise NotImplementedError(path)

    def take(self, path: str, body: bytes) -> tuple[int, dict[str, str], bytes]:
        """The answer to an upload."""
        return _json({"Code": 200, "Success": True, "Data": {}})


class HuggingFace(Server):
    """Hugging Face's Hub."""

    def answer(self, path: str, query: dict[str, list[str]]) -> tuple[int, dict[str, str], bytes]:
        """Overrides `Server.answer`."""
        if found := re.fullmatch(r"/api/((?:models|datasets)/[^/]+/[^/]+)(?:/(tree|revision)/[^/]+/?(.*))?", path):
            files = self.repos.get(found[1])
            if files is None:
                return _missing("RepoNotFound")
            if found[2] != "tree":
                return _json({"id": found[1].partition("/")[2], "sha": "a" * 40, "siblings": [], "tags": []})
            listed = [_entry(name, content) for name, content in files.items() if name.startswith(found[3])]
            return _json(listed) if listed else _missing("EntryNotFound")
        if found := re.fullmatch(r"/((?:datasets/)?[^/]+/[^/]+)/resolve/[^/]+/(.+)", path):
            repo = found[1] if found[1].startswith("datasets/") else f"models/{found[1]}"
            content = self.repos.get(repo, {}).get(found[2])
            if content is None:
                return _missing("EntryNotFound")
            return 200, {"ETag": f'"{_digest(content)}"', "X-Repo-Commit": "a" * 40}, content
        return _missing("RepoNotFound")


class ModelScope(Server):
    """ModelScope."""

    def answer(self, path: str, query: dict[str, list[str]]) -> tuple[int, dict[str, str], bytes]:
        """Overrides `Server.answer`."""
        found = re.fullmatch(r"/api/v1/((?:models|datasets)/[^/]+/[^/]+)(/repo(?:/files|/tree)?)?", path)
        files = self.repos.get(found[1]) if found else None
        if found is None or files is None:
            return _missing("none")
        if found[2] == "/repo":
            content = files.get(query["FilePath"][0])
            return _missing("none") if content is None else (200, {"ETag": _digest(content)}, content)
        listed = [
            {"Path": name, "Name": name, "Type": "blob", "Size": len(content), "Sha256": _digest(content)}
            for name, content in files.items()
        ]
        data = {"Files": listed, "TotalCount": len(listed)} if found[2] else {"Name": found[1]}
        return _json({"Code": 200, "Success": True, "Data": data})


@contextmanager
def served(server: Server) -> Iterator[Server]:
    """A server that answers as long as the block lasts."""
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()


def _entry(name: str, content: bytes) -> dict[str, object]:
    oid = hashlib.sha1(content).hexdigest()
    return {"type": "file", "path": name, "size": len(content), "oid": oid}


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _json(value: object) -> tuple[int, dict[str, str], bytes]:
    return 200, {"Content-Type": "application/json"}, json.dumps(value).encode()


def _missing(code: str) -> tuple[int, dict[str, str], bytes]:
    return 404, {"X-Error-Code": code, "Content-Type": "application/json"}, b"{}"
