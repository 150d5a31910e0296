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


@pytest.mark.parametrize(
    "flags, parts",
    [
        ([*TOKENIZED, "--train_file_dir", "."], ["2 kinds of training data at once"]),
        ([*TOKENIZED, "--validation_file_dir", "."], ["held-out records are tokenised, too", "hftune tokenize"]),
        ([*TOKENIZED, "--validation_split_percentage", "5"], ["--validation_split_percentage"]),
        ([*TOKENIZED, "--max_train_samples", "5"], ["they are used whole", "--max_steps"]),
        ([*TOKENIZED, "--num_samples_each_epoch", "0"], ["--num_samples_each_epoch"]),
        ([*TOKENIZED, "--accelerator_config", '{"split_batches": true}'], ["split_batches", "--accelerator_config"]),
        ([*TOKENIZED, "--accelerator_config", '{"dispatch_batches": true}'], ["dispatch_batches"]),
        ([*TOKENIZED, "--packing", "False"], ["tokenised documents are joined into blocks"]),
        ([*TOKENIZED, "--auto_find_batch_size"], ["--auto_find_batch_size"]),
        ([*TOKENIZED, "--train_sampling_strategy", "sequential"], ["--shuffle_buffer 0"]),
        (["--train_file_dir", ".", "--do_eval"], ["no records are held out", "--do_eval"]),
        (["--train_file_dir", ".", "--weights", "1,2"], ["--weights", "no effect without --tokenized_dir"]),
        (["--train_file_dir", ".", "--validation_tokenized_dir", "x"], ["--validation_tokenized_dir"]),
    ],
)
def test_a_rule_each(tiny_model: Path, flags: list[str], parts: list[str]) -> None:
    message = said(tiny_model, *flags)
    for part in parts:
        assert part in message


def test_only_pre_training_mixes_tokenised_folders(tiny_model: Path) -> None:
    assert said(tiny_model, *TOKENIZED, stage="sft") == ""
    found = said(tiny_model, *TOKENIZED, "--weights", "1", stage="sft")
    assert "use run_pt.py" in found and "--train_dataset_prob" in found


STREAMED = ["--streaming", "--train_file_dir", ".", "--max_steps", "5"]


def test_a_stream_with_a_length_and_held_out_files(tiny_model: Path) -> None:
    for stage in ("pt", "sft"):
        assert said(tiny_model, *STREAMED, "--validation_file_dir", ".", stage=stage) == ""


@pytest.mark.parametrize(
    "flags, parts",
    [
        (["--streaming", "--train_file_dir", "."], ["a stream has no length", "--max_steps"]),
        ([*STREAMED, "--validation_split_percentage", "5"], ["--validation_split_percentage", "--validation_file_dir"]),
        ([*STREAMED, "--max_train_samples", "5"], ["--max_train_samples"]),
        ([*STREAMED, "--num_samples_each_epoch", "5"], ["--num_samples_each_epoch"]),
        (["--streaming", "--max_steps", "5", *TOKENIZED], ["--streaming does not go with --tokenized_dir"]),
    ],
)
def test_a_rule_each_for_streams(tiny_model: Path, flags: list[str], parts: list[str]) -> None:
    message = said(tiny_model, *flags)
    for part in parts:
        assert part in message


def test_pairs_are_not_streamed(tiny_model: Path) -> None:
    assert "only text and conversations are streamed" in said(tiny_model, *STREAMED, stage="dpo")
