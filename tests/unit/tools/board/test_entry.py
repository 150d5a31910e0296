"""`hftune board`: its words, and the address that it prints."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from hftune.cli import dispatch
from hftune.errors import ArgumentError
from hftune.tools.board import app


def test_the_address_has_a_token_and_is_this_machine_s(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[Any] = []

    def serve(board: Any, listening: Any, ready: Any) -> None:
        found.append((board, listening.getsockname()))
        ready()

    monkeypatch.setattr(app, "serve", serve)
    monkeypatch.chdir(tmp_path)
    for _ in range(2):
        dispatch(["board", "--port", "0"])
    first, second = re.findall(r"http://127\.0\.0\.1:(\d+)/([\w-]{32})/ ", capsys.readouterr().out)
    assert first[1] != second[1], "another one each time"
    assert [address for _, address in found] == [("127.0.0.1", int(first[0])), ("127.0.0.1", int(second[0]))]


def test_its_words(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dispatch(["board", "--help"])
    assert "hftune board [FOLDER ...]" in capsys.readouterr().out
    for argv, match in (
        ([str(tmp_path / "none")], "there is no"),
        (["run.yaml"], "starts no pipelines"),
        (["--port", "x"], "takes a number"),
        (["--port=99999"], "takes a number"),
        (["--host", "0.0.0.0"], "has no --host"),
    ):
        with pytest.raises(ArgumentError, match=match):
            dispatch(["board", *argv])
