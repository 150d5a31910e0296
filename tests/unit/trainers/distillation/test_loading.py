"""When two tokenizers are one, and that a teacher with another one is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hftune.arguments.entry import parse_arguments
from hftune.errors import ArgumentError
from hftune.trainers.distillation.loading import check_tokenizers, same_tokenizer
from tests.conftest import tiny_tokenizer


def worded() -> Any:
    """The same ids, but a text becomes others."""
    made = tiny_tokenizer()
    made.add_tokens(["world"])
    return made


def test_further_tokens_at_the_end_are_no_other_tokenizer() -> None:
    plain, longer = tiny_tokenizer(), tiny_tokenizer()
    longer.add_special_tokens({"additional_special_tokens": ["<tool>"]})
    assert same_tokenizer(plain, longer) and same_tokenizer(longer, plain)


def test_other_ids_and_other_words_are_another() -> None:
    one, other = tiny_tokenizer(), tiny_tokenizer()
    one.add_tokens(["<a>"])
    other.add_tokens(["<b>"])
    assert not same_tokenizer(one, other)
    assert not same_tokenizer(tiny_tokenizer(), worded())


def test_a_teacher_with_another_tokenizer_is_refused(tmp_path: Path) -> None:
    for name, tokenizer in {"same": tiny_tokenizer(), "other": worded()}.items():
        tokenizer.save_pretrained(tmp_path / name)
    (tmp_path / "none").mkdir()

    def check(teacher: str) -> None:
        named = ["--teacher_model_name_or_path", str(tmp_path / teacher)]
        argv = ["--model_name_or_path", "m", "--output_dir", "o", "--use_cpu", "True", "--report_to", "none"]
        model_args, *_, training_args = parse_arguments("distill", [*argv, *named])
        check_tokenizers(tiny_tokenizer(), model_args, training_args)

    check("same")
    check("none")  # a folder without one is taken to have the student's
    with pytest.raises(ArgumentError, match="another tokenizer than the student") as found:
        check("other")
    assert found.value.place == f"--teacher_model_name_or_path {tmp_path / 'other'}"
    assert "trl.experimental.gold" in str(found.value.fix)
