"""Tokenizers, their templates, and what is said where there is none."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from hftune.arguments.entry import parse_arguments
from hftune.errors import ArgumentError
from hftune.models.loading.tokenizer import load_tokenizer, read_chat_template


def given(model: Path, *flags: str) -> tuple[Any, Any]:
    """The arguments of the model and of training."""
    parsed = parse_arguments("sft", ["--output_dir", "o", "--model_name_or_path", str(model), *flags])
    return parsed[0], parsed[3]


def test_templates_by_name_and_file(tmp_path: Path) -> None:
    (tmp_path / "mine.jinja").write_text("{{ messages[0].content }}")
    assert read_chat_template(str(tmp_path / "mine.jinja")) == "{{ messages[0].content }}"
    assert "im_start" in read_chat_template("qwen3")
    assert "im_start" in read_chat_template("chatml")
    with pytest.raises(ArgumentError, match=r"give one of chatml, qwen3, .*the path of a \.jinja file"):
        read_chat_template("no-such-template")
    with pytest.raises(ArgumentError, match=r"did you mean qwen2_5\?"):
        read_chat_template("qwen")
    with pytest.raises(ArgumentError, match=r"did you mean chatml\?"):
        read_chat_template("chatlm")


def test_a_folder_without_a_tokenizer(tiny_model: Path, tmp_path: Path) -> None:
    bare = tmp_path / "out" / "checkpoint-1"
    shutil.copytree(tiny_model, bare, ignore=shutil.ignore_patterns("tokenizer*", "chat_template.jinja"))
    with pytest.raises(ArgumentError, match="holds no tokenizer") as caught:
        load_tokenizer(*given(bare))
    assert "one of:" not in str(caught.value) and "add --tokenizer_name_or_path with the folder" in str(caught.value)
    shutil.copy(tiny_model / "tokenizer.json", bare.parent)
    with pytest.raises(ArgumentError, match=f"add --tokenizer_name_or_path with {bare.parent}"):
        load_tokenizer(*given(bare))


def test_a_tokenizer_that_is_not_there(tiny_model: Path) -> None:
    with pytest.raises(ArgumentError, match="there is no folder owner/nam here") as caught:
        load_tokenizer(*given(tiny_model, "--tokenizer_name_or_path", "owner/nam"))
    assert caught.value.place == "--tokenizer_name_or_path"


@pytest.mark.parametrize(("name", "unknown"), [("phi3", "<|assistant|>, <|end|>"), ("qwen2_5", "")])
def test_tokens_of_another_model_are_said(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch, name: str, unknown: str
) -> None:
    heard: list[str] = []
    monkeypatch.setattr("hftune.models.loading.tokenizer.notice", heard.append)
    load_tokenizer(*given(tiny_model, "--chat_template", name))
    assert bool(unknown) == bool(heard)
    assert not unknown or (unknown in heard[0] and "which are no tokens of this tokenizer" in heard[0])
