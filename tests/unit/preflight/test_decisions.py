"""What the chat template is given, taken from the manifest of what is trained on."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hftune.checkpoints.template_arguments import give_recorded
from hftune.errors import UserError
from hftune.preflight.facts import take_template_arguments
from hftune.template_arguments import arguments_of
from tests.unit.data.helpers import make_tokenizer, template


def folder(path: Path, arguments: Any) -> str:
    path.mkdir()
    (path / "hftune.json").write_text(json.dumps({"tokenizer": {"chat_template_kwargs": arguments}}))
    return str(path)


def taken(base: str, chain: list[str], given: Any = None) -> Any:
    training: Any = SimpleNamespace(chat_template_kwargs=given)
    model: Any = SimpleNamespace(model_name_or_path=base)
    adapter: Any = SimpleNamespace(adapter_chain=chain)
    take_template_arguments(model, adapter, training)
    return training.chat_template_kwargs


def test_arguments_of_the_last_one_trained(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    base, first = folder(tmp_path / "base", {"a": 1}), folder(tmp_path / "first", {"a": 2})
    plain = folder(tmp_path / "plain", {})
    assert taken(base, []) == {"a": 1} and taken(base, [first]) == {"a": 2}
    assert taken(base, [first, plain]) == {"a": 2}
    assert taken(str(tmp_path / "none"), []) is None and taken(plain, []) is None
    capsys.readouterr()
    assert taken(base, [first], {}) == {}  # given, though none
    assert not capsys.readouterr().err


def test_a_tool_takes_them_too(tmp_path: Path) -> None:
    off, other = {"enable_thinking": False}, {"enable_thinking": True}
    trained = folder(tmp_path / "model", {**off, "gone": 1})
    tokenizer = make_tokenizer(template("qwen3"))
    assert arguments_of(give_recorded(tokenizer, trained, None)) == off  # what this template does not read is left out
    assert arguments_of(give_recorded(tokenizer, trained, other)) == other
    assert arguments_of(give_recorded(tokenizer, trained, {})) == {}
    with pytest.raises(UserError):
        give_recorded(tokenizer, folder(tmp_path / "bad", "text"), None)
