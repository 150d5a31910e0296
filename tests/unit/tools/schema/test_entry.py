"""`hftune schema`: what it prints."""

from __future__ import annotations

import json

import pytest

from hftune.cli import dispatch
from hftune.errors import ArgumentError
from hftune.tools.schema import entry


def test_it_prints_one(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(entry, "kept", lambda folder, parts, made: made())
    monkeypatch.setattr(entry, "_made", lambda name: {"title": f"of {name}", "a": "é"})
    dispatch(["schema", "run_sft.py"])
    found = json.loads(capsys.readouterr().out)
    assert found["title"] == "of sft" and found["$comment"].startswith("Written by `hftune schema`, hftune ")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "takes one name"),
        (["sftt"], "no schema of sftt\n.*did you mean sft"),
        (["sft", "--output", "a.json"], "takes one name\n.* > .*no --output any more"),
    ],
)
def test_words_that_make_no_sense(words: list[str], said: str) -> None:
    with pytest.raises(ArgumentError, match=said):
        dispatch(["schema", *words])
