"""`hftune schema`: what it prints."""

from __future__ import annotations

import json

import pytest

from hftune.cli import dispatch
from hftune.errors import ArgumentError
from hftune.tools.schema import entry


def test_it_prints_one(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(entry, "kept", lambda folder, parts, made: made())
    dispatch(["schema", "merge"])
    found = json.loads(capsys.readouterr().out)
    assert found["title"] == "Arguments of `hftune merge`" and "peft_model_path" in found["properties"]
    assert found["$comment"].startswith("Written by `hftune schema`, hftune ")


@pytest.mark.parametrize(("words", "said"), [([], "required: name"), (["sftt"], "invalid choice: 'sftt'.*sft")])
def test_words_that_make_no_sense(words: list[str], said: str) -> None:
    with pytest.raises(ArgumentError, match=said):
        dispatch(["schema", *words])
