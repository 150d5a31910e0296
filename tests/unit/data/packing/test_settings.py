"""Which splits are packed, and how, is what the flags ask for; what has no effect is said."""

from __future__ import annotations

from typing import Any

import pytest

from hftune.arguments.entry import parse_arguments
from hftune.data.packing import settings as packing_module
from hftune.data.packing.rows import PackStats
from hftune.data.packing.settings import Packing, packing_by_split
from hftune.errors import ArgumentError


@pytest.mark.parametrize(
    ("stage", "flags", "train", "evaluation"),
    [
        ("sft", [], None, None),
        ("sft", ["--packing"], Packing(1024), Packing(1024)),
        ("sft", ["--greedy_intokens", "True", "--eval_packing", "False"], Packing(1024), None),
        ("sft", ["--eval_packing", "True", "--max_length", "9"], None, Packing(9)),
        ("sft", ["--packing", "--packing_strategy", "bfd_split"], Packing(1024, "bfd_split", False), ...),
        ("pt", [], Packing(1024, "wrapped", False), ...),
        ("pt", ["--packing", "False"], None, None),
        ("pt", ["--cross_document_attention", "True"], Packing(1024, "wrapped", True), ...),
    ],
)
def test_what_arguments_ask_for(stage: str, flags: list[str], train: Packing | None, evaluation: Any) -> None:
    *_, args = parse_arguments(stage, [*flags, "--output_dir", "o"])
    chosen = packing_by_split(args, "max_length" if stage == "sft" else "block_size")
    assert chosen.get("train") == train
    assert chosen.get("eval") == (train if evaluation is ... else evaluation)


def test_what_is_cut_while_packing_is_not_truncated_before() -> None:
    assert [Packing(9, strategy).cuts for strategy in ("bfd", "bfd_split", "wrapped")] == [False, True, True]


def test_rows_need_a_length() -> None:
    *_, args = parse_arguments("sft", ["--packing", "--output_dir", "o"])
    args.max_length = None
    with pytest.raises(ArgumentError, match="how long rows are"):
        packing_by_split(args, "max_length")


@pytest.mark.parametrize(
    ("stage", "flags", "words"),
    [
        ("sft", ["--packing_strategy", "wrapped"], "--packing_strategy has no effect without --packing"),
        (
            "pt",
            ["--packing", "False", "--cross_document_attention", "True"],
            "--cross_document_attention has no effect",
        ),
        ("sft", ["--packing", "--padding_free"], "--padding_free has no effect"),
    ],
)
def test_settings_of_what_is_not_done_are_said(
    stage: str, flags: list[str], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    monkeypatch.setattr(packing_module, "notice", said.append)
    for chosen, expected in ((flags, 1), ([], 0)):
        said.clear()
        *_, args = parse_arguments(stage, [*chosen, "--output_dir", "o"])
        packing_by_split(args, "max_length" if stage == "sft" else "block_size")
        assert sum(words in line for line in said) == len(said) == expected


def test_what_nobody_asks_for_is_off() -> None:
    assert Packing(9) == Packing(9, "bfd", cross_document_attention=False)
    empty = PackStats(9).to_dict()
    assert empty.pop("max_length") == 9 and not any(empty.values())
