"""Answers with a label, and answers to other prompts, for KTO."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from transformers import PreTrainedTokenizerFast

from hftune.arguments.entry import parse_arguments
from hftune.data.preferences.labelled import LabelledEncoder, MismatchedPairEncoder, preference_encoder
from hftune.data.preferences.pairs import PairEncoder
from tests.unit.data.helpers import row, tokenise_rows


def test_labels_and_other_answers(chatml: PreTrainedTokenizerFast) -> None:
    rows = [row(prompt=text, completion=f"answer {text}", label=text < "c") for text in "abcd"]
    dataset, counts = tokenise_rows(rows, LabelledEncoder(chatml, max_length=99))
    assert dataset["label"][:] == [True, True, False, False]
    assert counts.used == 4 and counts.trained_tokens == sum(map(len, dataset["completion_ids"][:]))
    texts = [chatml.decode(ids) for ids in dataset["completion_ids"][:]]
    assert texts[0] == "answer a<|im_end|>"
    # half the data set away: another prompt's
    assert [chatml.decode(ids) for ids in dataset["kl_ids"][:]] == [*texts[2:], *texts[:2]]


def test_other_answers_fit_behind_the_prompt(chatml: PreTrainedTokenizerFast) -> None:
    rows = [row(prompt="a", completion="x" * 40, label=True), row(prompt="b" * 30, completion="y", label=False)]
    dataset, counts = tokenise_rows(rows, LabelledEncoder(chatml, max_length=30))
    assert counts.truncated == 2
    for record in dataset:
        assert len(record["prompt_ids"]) + len(record["completion_ids"]) <= 30
        assert 1 <= len(record["kl_ids"]) <= max(1, 30 - len(record["prompt_ids"]))


def test_pairs_get_good_and_bad_answers_in_turn(chatml: PreTrainedTokenizerFast) -> None:
    rows = [row(prompt=text, chosen=f"good {text}", rejected=f"bad {text}") for text in "abcd"]
    dataset, _ = tokenise_rows(rows, MismatchedPairEncoder(chatml, max_length=99))
    shown = [chatml.decode(ids).removesuffix("<|im_end|>") for ids in dataset["kl_ids"][:]]
    assert shown == ["good c", "bad d", "good a", "bad b"]


@pytest.mark.parametrize(
    ("record", "flags", "expected"),
    [
        ({"prompt": "a", "completion": "b", "label": True}, "--loss_type kto", LabelledEncoder),
        ({"prompt": "a", "chosen": "b", "rejected": "c"}, "--loss_type kto", MismatchedPairEncoder),
        ({"prompt": "a", "chosen": "b", "rejected": "c"}, "--loss_type apo_zero_unpaired", PairEncoder),
        ({"prompt": "a", "chosen": "b", "rejected": "c"}, "", PairEncoder),
    ],
)
def test_what_losses_and_records_ask_for(
    chatml: PreTrainedTokenizerFast, tmp_path: Path, record: dict, flags: str, expected: type
) -> None:
    (tmp_path / "records.jsonl").write_text(json.dumps(record) + "\n")
    argv = ["--model_name_or_path", "m", "--output_dir", str(tmp_path / "out"), "--use_cpu", "True"]
    _, data_args, _, args = parse_arguments("dpo", [*argv, "--train_file_dir", str(tmp_path), *flags.split()])
    assert type(preference_encoder(chatml, args, data_args)) is expected
