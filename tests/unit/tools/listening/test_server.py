"""A port is held before anything is loaded, and an application answers at it until it is interrupted."""

from __future__ import annotations

import importlib.util
import socket
import urllib.request
from contextlib import closing
from typing import Any

import pytest

from hftune.errors import ArgumentError
from hftune.tools.listening.server import address_of, bound, missing_packages, run_app


def test_a_port_that_is_taken() -> None:
    with bound("127.0.0.1", 0) as first:
        first.listen()
        port = first.getsockname()[1]
        assert address_of(first) == f"http://127.0.0.1:{port}"
        with pytest.raises(ArgumentError, match=f"127.0.0.1:{port} cannot be listened at: Address already in use"):
            bound("127.0.0.1", port)
    # It is free again at once.
    with bound("127.0.0.1", port) as again, socket.socket():
        assert again.getsockname()[1] == port
    with pytest.raises(ArgumentError, match="cannot be listened at"):
        bound("203.0.113.1", 0)


def test_missing_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not [*missing_packages("hftune board")]
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "uvicorn" else found(name))
    (problem,) = missing_packages("hftune board")
    assert "needs uvicorn" in str(problem) and "pip install 'hftune[serve]'" in str(problem)


def test_it_answers_until_it_is_interrupted() -> None:
    said = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"well"})

    with closing(bound("127.0.0.1", 0)) as listening:

        def ready() -> None:
            with urllib.request.urlopen(address_of(listening), timeout=10) as answer:
                said.append(answer.read())
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            run_app(app, listening, ready, lambda: said.append(b"stopped"))
    assert said == [b"well", b"stopped"]
