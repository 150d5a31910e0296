"""Each script makes of its records what its arguments ask for, also where they were tokenised ahead."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from transformers import PreTrainedTokenizerFast

from hftune.arguments.entry import parse_arguments
from hftune.cli import dispatch
from hftune.data.encoders import make_encoder
from hftune.data.preferences.labelled import LabelledEncoder, MismatchedPairEncoder
from hftune.data.preferences.pairs import PairEncoder
from hftune.data.preferences.prompts import PromptEncoder
from hftune.data.preferences.reward_pairs import RewardPairEncoder
from hftune.data.preferences.step_encoder import StepEncoder
from hftune.data.splits import load_splits
from hftune.data.tokenizing.chats import ChatEncoder
from hftune.data.tokenizing.texts import TextEncoder
from hftune.models.loading.tokenizer import load_tokenizer

LABELLED = [{"prompt": f"question {number}", "completion": "b", "label": number % 2 == 0} for number in range(4)]
PAIRS = [{"prompt": f"question {number}", "chosen": "b", "rejected": "c"} for number in range(4)]


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
    assert type(make_encoder("dpo", chatml, args, data_args)) is expected


@pytest.mark.parametrize(
    ("stage", "flags", "expected"),
    [
        ("pt", "", TextEncoder),
        ("sft", "", ChatEncoder),
        ("rm", "", RewardPairEncoder),
        ("rm", "--reward_kind process", StepEncoder),
        ("rl", "", PromptEncoder),
    ],
)
def test_what_a_stage_makes(chatml: PreTrainedTokenizerFast, stage: str, flags: str, expected: type) -> None:
    _, data_args, _, args = parse_arguments(stage, ["--output_dir", "o", "--use_cpu", "True", *flags.split()])
    assert type(make_encoder(stage, chatml, args, data_args)) is expected


@pytest.mark.parametrize(("records", "loss"), [(LABELLED, "kto"), (PAIRS, "kto"), (PAIRS, "sigmoid")])
def test_dpo_takes_what_was_tokenised_for_it(tiny_model: Path, tmp_path: Path, records: list[dict], loss: str) -> None:
    (tmp_path / "records.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    flags = ["--model_name_or_path", str(tiny_model), "--loss_type", loss, "--use_cpu", "True"]
    source = ["--train_file_dir", str(tmp_path / "records.jsonl")]
    dispatch(["tokenize", "run_dpo", *flags, *source, "--output_dir", str(tmp_path / "ahead")])
    found = []
    for given in (source, ["--tokenized_dir", str(tmp_path / "ahead")]):
        model_args, data_args, _, args = parse_arguments("dpo", [*flags, *given, "--output_dir", "o"])
        encoder = make_encoder("dpo", load_tokenizer(model_args, args), args, data_args)
        found.append(load_splits(encoder, data_args, args).train.to_dict())
    assert found[0] == found[1] and ("kl_ids" in found[0]) == (loss == "kto")
