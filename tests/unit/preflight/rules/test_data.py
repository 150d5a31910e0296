"""What goes and does not go together with tokenised folders and with streams."""

from __future__ import annotations

from pathlib import Path

import pytest

from hftune.preflight.rules.data import check_data
from hftune.preflight.rules.without_effect import check_without_effect
from tests.unit.preflight.said import problems

pytestmark = pytest.mark.long


def said(model: Path, *flags: str, stage: str = "pt") -> str:
    return problems(model, *flags, stage=stage, rules=(check_data, check_without_effect), train_file_dir=None)


TOKENIZED = ["--tokenized_dir", "corpus"]


def test_nothing_to_say(tiny_model: Path) -> None:
    evaluated = ["--eval_strategy", "steps", "--validation_tokenized_dir", "held_out"]
    assert said(tiny_model, *TOKENIZED, "--weights", "1", *evaluated) == ""
    assert said(tiny_model, "--datasets", "a,b", "--logical_shards", "3", "--shuffle_buffer", "0") == ""


STREAMED = ["--streaming", "--train_file_dir", ".", "--max_steps", "5"]


def test_a_stream_with_a_length_and_held_out_files(tiny_model: Path) -> None:
    for stage in ("pt", "sft"):
        assert said(tiny_model, *STREAMED, "--validation_file_dir", ".", stage=stage) == ""


def test_the_table_is_asked(tiny_model: Path) -> None:
    assert "only text and conversations are streamed" in said(tiny_model, *STREAMED, stage="dpo")
    assert "2 kinds of training data at once" in said(tiny_model, *TOKENIZED, "--train_file_dir", ".")
    assert "no records are held out" in said(tiny_model, "--train_file_dir", ".", "--do_eval")
    assert said(tiny_model, *TOKENIZED, stage="sft") == ""
