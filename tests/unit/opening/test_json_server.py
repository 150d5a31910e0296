"""A server is hostile until checked: what it may answer, how long, how much, and where the key goes."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from hftune.errors import ArgumentError
from hftune.opening import json_server
from hftune.opening.json_server import JsonServer, Refused, split_address
from tests.answering import server

FLAG = "--server"


def ask(url: str, *, limit: int = 1000, patience: float = 0.0, timeout: float = 5.0, key: str | None = None) -> Any:
    return JsonServer(url, FLAG, key=key, variable="KEY", timeout=timeout).ask(
        "/x", {"a": 1}, limit=limit, patience=patience
    )


def test_what_is_asked_and_answered() -> None:
    with server(lambda path, body: (200, {"path": path, "body": body})) as asked:
        assert ask(f"{asked.url}/v1/", key="key-of-the-test") == {"path": "/v1/x", "body": {"a": 1}}
        assert JsonServer(asked.url, FLAG, key=None, variable="KEY").ask("/m", limit=100, patience=0)["path"] == "/m"
        (_, _, headers), (_, _, bare) = asked.requests
    assert headers["Authorization"] == "Bearer key-of-the-test" and "Authorization" not in bare
    assert headers["Accept-Encoding"] == "identity"


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        ((200, b"no json"), "not valid JSON"),
        ((200, b"[1]"), "an object {...} is wanted"),
        ((200, b'{"a": "' + b"x" * 2000 + b'"}'), "more than 1000 bytes"),
        ((200, b"raw:HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{}"), "does not answer: IncompleteRead"),
        ((200, b"raw:SSH-2.0-OpenSSH\r\n"), "does not answer"),
        ((302, b""), "status 302"),
        ((401, {"error": {"message": "no such key"}}), "status 401: no such key"),
        ((404, {"detail": "Not Found"}), "status 404: Not Found"),
        ((400, b"\x1b[31m" + b"y" * 5000), "status 400"),
        ((503, {"message": "busy"}), "does not answer: status 503: busy"),
    ],
)
def test_an_answer_that_cannot_be_used_is_one_message(answer: Any, says: str) -> None:
    with server(lambda path, body: answer) as asked, pytest.raises(ArgumentError) as problem:
        ask(asked.url)
    said = str(problem.value)
    assert says in said and len(said) < 800 and "\x1b" not in said and problem.value.fix
    if answer[0] == 401:
        assert "variable KEY" in said
    if answer[0] == 302:
        assert "http://elsewhere.example/v1" in said


def test_what_it_says_holds_no_key() -> None:
    said = {"error": "wrong: sk-key-of-the-test-1234"}
    with server(lambda path, body: (400, said)) as asked, pytest.raises(Refused) as problem:
        ask(asked.url, key="sk-key-of-the-test-1234")
    assert problem.value.status == 400 and "1234" not in str(problem.value)


def test_a_server_that_is_busy_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr(json_server.time, "sleep", slept.append)
    answers = [(503, b""), (429, b""), (200, {"a": 1})]
    with server(lambda path, body: answers.pop(0)) as asked:  # type: ignore[arg-type,return-value]
        assert ask(asked.url, patience=60) == {"a": 1}
    assert slept == [1.0, 2.0]


def test_nobody_there_is_said_once_patience_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr(json_server.time, "monotonic", lambda: sum(slept))
    monkeypatch.setattr(json_server.time, "sleep", slept.append)
    with server(lambda path, body: (200, {})) as asked:
        pass
    with pytest.raises(ArgumentError, match="does not answer: Connection refused"):
        ask(asked.url, patience=80.0)
    assert slept == [1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 19.0], "longer each time, and no longer than asked"


def test_a_server_that_says_nothing_has_an_end() -> None:
    stop = threading.Event()

    def silent(path: str, body: Any) -> Any:
        stop.wait(60)
        return 200, b"{}"

    with server(silent) as asked:
        with pytest.raises(ArgumentError, match=r"nothing came in 0 seconds"):
            ask(asked.url, timeout=0.3)
        stop.set()


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("localhost:8000", "no address"),
        ("ftp://h", "no address"),
        ("http://", "no address"),
        ("http://h:99999", "no address"),
        ("http://h:0", "no address"),
        ("http://h/a b", "no address"),
        ("http://h/v1?key=x", "no address"),
        ("http://user:secretword@h", "a key does not belong into an address"),
    ],
)
def test_addresses(url: str, says: str) -> None:
    with pytest.raises(ArgumentError, match=says) as problem:
        split_address(url, FLAG)
    assert "secretword" not in str(problem.value)
    assert split_address("https://h:8000/v1", FLAG).port == 8000


def test_a_key_that_is_no_header() -> None:
    with pytest.raises(ArgumentError, match="cannot be sent"):
        JsonServer("http://h", FLAG, key="a\r\nb", variable="KEY")
