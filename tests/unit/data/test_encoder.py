"""Chunks to an Arrow file, in one process and in several; counts of what became of records."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from datasets import load_from_disk
from transformers import PreTrainedTokenizerFast

from hftune.arguments.entry import parse_arguments
from hftune.cli import dispatch
from hftune.data import encoder
from hftune.data.counts import Counts, describe_turn_tokens
from hftune.data.encode import ChatEncoder, TextEncoder
from hftune.data.encode_pairs import LabelledEncoder, MismatchedPairEncoder, PairEncoder
from hftune.data.encode_prompts import PromptEncoder
from hftune.data.encode_rewards import RewardPairEncoder, StepEncoder
from hftune.data.encoder import without_counts, write_tokenised
from hftune.data.files import chunks, find_files, first_rows
from hftune.data.splits import load_splits, make_encoder
from hftune.errors import ArgumentError, DataError
from hftune.models.loading.tokenizer import load_tokenizer
from hftune.trainers.reward import longest_first
from tests.unit.data.helpers import assistant, tokenize_chat, user
from tests.unit.data.test_turn_tokens import PREFERENCE, encoded


def write(file: Path, count: int, bad: int = -1) -> Path:
    records = [{"messages": [user(str(n)), assistant(f"n {n} 天气" * (1 + n % 7))]} for n in range(count)]
    lines = [json.dumps(record) if n != bad else '{"messages": [' for n, record in enumerate(records)]
    file.write_text("\n".join(lines), encoding="utf-8")
    return file


@pytest.mark.parametrize("count", [0, 1, 2])
def test_workers_give_the_same(chatml: PreTrainedTokenizerFast, tmp_path: Path, count: int) -> None:
    file = write(tmp_path / "d.jsonl", 100)
    folder = tmp_path / "out"
    folder.mkdir()
    counts = write_tokenised(chunks([file], 8), ChatEncoder(chatml, max_length=20), folder, workers=count)
    dataset = load_from_disk(str(folder))
    rows = [row for chunk in chunks([file]) for row in chunk.rows()]
    expected, expected_counts = tokenize_chat(rows, chatml, max_length=20)
    assert without_counts(dataset).to_dict() == expected.to_dict()
    assert counts == expected_counts
    assert counts.truncated and counts.used == 100
    assert dataset.cache_files


@pytest.mark.parametrize("count", [1, 2])
def test_a_bad_record_stops_or_is_counted(chatml: PreTrainedTokenizerFast, tmp_path: Path, count: int) -> None:
    file = write(tmp_path / "d.jsonl", 100, bad=61)
    encoder = ChatEncoder(chatml, max_length=20)
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    with pytest.raises(DataError, match="malformed JSON") as caught:
        write_tokenised(chunks([file], 8), encoder, tmp_path / "a", workers=count)
    assert caught.value.place == f"{file}:62" and "62" in str(caught.value)
    counts = write_tokenised(chunks([file], 8), encoder, tmp_path / "b", workers=count, on_bad_record="drop")
    assert (counts.rows, counts.used, counts.dropped) == (100, 99, {"malformed JSON": 1})
    assert counts.examples["malformed JSON"].startswith(f"{file}:62: malformed JSON")


@pytest.mark.parametrize("count", [1, 2])
def test_one_message_counts_all_bad_records(
    chatml: PreTrainedTokenizerFast, tmp_path: Path, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write(tmp_path / "d.jsonl", 100, bad=21)
    lines = file.read_text(encoding="utf-8").splitlines()
    for place in (22, 50, 99):
        lines[place] = '{"messages": 3}'
    file.write_text("\n".join(lines), encoding="utf-8")
    encoder = ChatEncoder(chatml, max_length=20)
    (tmp_path / "a").mkdir()
    with pytest.raises(
        DataError, match=r"malformed JSON.*the first of 4 records that cannot be used, among 100\)"
    ) as caught:
        write_tokenised(chunks([file], 8), encoder, tmp_path / "a", workers=count)
    assert caught.value.place == f"{file}:22"
    monkeypatch.setattr("hftune.data.encoder.LOOKED_FURTHER", 16)
    with pytest.raises(DataError, match=r"the first of 2 records that cannot be used, among \d+"):
        write_tokenised(chunks([file], 8), encoder, tmp_path / "a", workers=count)


def test_first_rows(tmp_path: Path) -> None:
    files = [write(tmp_path / "a.jsonl", 5), write(tmp_path / "b.jsonl", 5)]
    found = first_rows(chunks(find_files(str(tmp_path), "--train_file_dir"), 2), 7)
    rows = [row for chunk in found for row in chunk.rows()]
    assert [(row.file, row.line) for row in rows] == [
        *((str(files[0]), line) for line in range(1, 6)),
        *((str(files[1]), line) for line in range(1, 3)),
    ]


def _where(item: int) -> tuple[int, int]:
    if item == 50:
        raise DataError("fifty", place="here:50", fix="Nothing.", kind="fifty")
    return item, os.getpid()


def test_workers_keep_order_and_read_no_more_than_they_need() -> None:
    read = []

    def items() -> object:
        for number in range(50):
            read.append(number)
            yield number

    found = []
    for number, process in encoder.map_in_order(_where, items(), 2):
        found.append(number)
        assert process != os.getpid()
        assert len(read) <= len(found) + encoder.WORTH_WORKERS + 2 * encoder.AHEAD
    assert found == list(range(50))


def test_errors_keep_their_place_on_the_way_from_a_worker() -> None:
    seen = []
    with pytest.raises(DataError) as caught:
        for number, _ in encoder.map_in_order(_where, iter(range(60)), 2):
            seen.append(number)
    assert seen == list(range(50))
    assert (caught.value.place, caught.value.fix, caught.value.kind) == ("here:50", "Nothing.", "fifty")


def test_counts_are_of_records_and_add_up() -> None:
    counts, more = Counts(rows=2), Counts(rows=1)
    counts.note_turn_tokens(["a", "a", "b"])
    counts.note_turn_tokens([])
    more.note_turn_tokens(["b"])
    counts.add(more)
    assert (counts.bordered, counts.borders) == (2, {"a": 1, "b": 2})
    assert counts.to_dict()["borders"] == {"a": 1, "b": 2} and "borders" not in Counts().to_dict()
    assert Counts(**counts.to_dict()) == counts
    assert "2 of 3 records" in describe_turn_tokens(counts, "split") and "stay text" in describe_turn_tokens(
        counts, "split"
    )
    assert "encoded as these tokens" in describe_turn_tokens(counts, "allow")


def test_a_pair_counts_as_one_record() -> None:
    _, counts, _ = encoded("dpo", "split", PREFERENCE)
    assert counts.bordered == 1 and set(counts.borders.values()) == {1}


LABELLED = [{"prompt": f"question {number}", "completion": "b", "label": number % 2 == 0} for number in range(4)]
PAIRS = [{"prompt": f"question {number}", "chosen": "b", "rejected": "c"} for number in range(4)]


@pytest.mark.parametrize(
    ("stage", "flags", "records", "expected"),
    [
        ("pt", "", None, TextEncoder),
        ("sft", "", None, ChatEncoder),
        ("rm", "", None, RewardPairEncoder),
        ("rm", "--reward_kind process", None, StepEncoder),
        ("rl", "", None, PromptEncoder),
        ("dpo", "--loss_type kto", LABELLED, LabelledEncoder),
        ("dpo", "--loss_type kto", PAIRS, MismatchedPairEncoder),
        ("dpo", "--loss_type apo_zero_unpaired", PAIRS, PairEncoder),
        ("dpo", "", PAIRS, PairEncoder),
    ],
)
def test_what_stages_losses_and_records_ask_for(
    chatml: PreTrainedTokenizerFast, tmp_path: Path, stage: str, flags: str, records: list[dict] | None, expected: type
) -> None:
    argv = ["--output_dir", str(tmp_path / "out"), "--use_cpu", "True", *flags.split()]
    if records:
        (tmp_path / "records.jsonl").write_text(json.dumps(records[0]) + "\n")
        argv += ["--train_file_dir", str(tmp_path)]
    _, data_args, _, args = parse_arguments(stage, argv)
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


def asked(number: int, **more: Any) -> dict[str, Any]:
    return {"prompt": f"question {number}", **more}


PAIR = {"chosen": "b", "rejected": "c"}
MIXED = {
    "rm, one with margins": ("rm", "", [asked(0, **PAIR, margin=1.5)], [asked(1, **PAIR)]),
    "dpo, one with scores": ("dpo", "--offset_alpha 1.0", [asked(0, **PAIR, margin=1.5)], [asked(1, **PAIR)]),
    "kto": ("dpo", "--loss_type kto", [asked(0, **PAIR)], [asked(1, chosen="d", rejected="e")]),
    "rl, answers of two types": ("rl", "", [asked(0, answer="4")], [asked(1, answer=5)]),
    "rl, rewarded in two ways": ("rl", "", [asked(0, answer="4")], [asked(1, tests=["x"])]),
    "sft, one renamed": ("sft", "--columns response=said", [asked(0, said="b")], [asked(1, response="c")]),
    "labels, renamed": (
        "dpo", "--loss_type kto --columns label=good", [asked(0, completion="b", good=True)],
        [asked(1, completion="c", label=False)],
    ),
}  # fmt: skip


@pytest.mark.parametrize(("stage", "flags", "first", "second"), MIXED.values(), ids=MIXED)
def test_two_sources_are_what_one_folder_of_both_is(
    chatml: PreTrainedTokenizerFast, tmp_path: Path, stage: str, flags: str, first: list, second: list
) -> None:
    """Which columns there are is decided by all records together, not by each source before they are joined."""
    files = [tmp_path / "data" / name for name in ("a.jsonl", "b.jsonl")]
    files[0].parent.mkdir()
    for file, records in zip(files, (first, second), strict=True):
        file.write_text("".join(json.dumps(record) + "\n" for record in records))
    found = []
    for given in (str(files[0].parent), ",".join(map(str, files))):
        argv = ["--output_dir", "o", "--use_cpu", "True", "--data_cache_dir", str(tmp_path / "cache"), *flags.split()]
        _, data_args, _, args = parse_arguments(
            stage, [*argv, "--train_file_dir", given, "--validation_file_dir", given]
        )
        splits = load_splits(make_encoder(stage, chatml, args, data_args), data_args, args)
        assert splits.evaluation is not None
        found.append([dataset.to_dict() for dataset in (splits.train, splits.evaluation)])
    assert found[0] == found[1] and len(found[0][0]) > 1


def test_a_column_that_no_source_has_is_refused(chatml: PreTrainedTokenizerFast, tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / f"{name}.jsonl").write_text(json.dumps(asked(0, response="b")) + "\n")
    argv = ["--output_dir", "o", "--columns", "system=said", "--data_cache_dir", str(tmp_path / "cache")]
    argv += ["--train_file_dir", f"{tmp_path}/a.jsonl,{tmp_path}/b.jsonl"]
    _, data_args, _, args = parse_arguments("sft", argv)
    for _ in range(2):  # the second time from the cache
        with pytest.raises(ArgumentError, match="no record has the column said"):
            load_splits(make_encoder("sft", chatml, args, data_args), data_args, args)


def test_when_all_are_dropped_it_is_said_of_which_data(chatml: PreTrainedTokenizerFast, tmp_path: Path) -> None:
    """Held-out records are too long, those that are trained are not."""
    for name, response in (("train", "b"), ("held", "b" * 200)):
        (tmp_path / f"{name}.jsonl").write_text(json.dumps(asked(0, response="b", system=response)) + "\n")
    argv = ["--output_dir", "o", "--max_length", "40", "--data_cache_dir", str(tmp_path / "cache")]
    argv += ["--train_file_dir", f"{tmp_path}/train.jsonl", "--validation_file_dir", f"{tmp_path}/held.jsonl"]
    _, data_args, _, args = parse_arguments("sft", argv)
    with pytest.raises(DataError, match="all 1 held-out records were dropped: 1 x no trained token") as error:
        load_splits(make_encoder("sft", chatml, args, data_args), data_args, args)
    assert error.value.place == f"--validation_file_dir {tmp_path}/held.jsonl, --max_length"
    data_args.validation_file_dir, data_args.train_file_dir = None, data_args.validation_file_dir
    with pytest.raises(DataError, match="all 1 records were dropped") as error:
        load_splits(make_encoder("sft", chatml, args, data_args), data_args, args)
    assert error.value.place == f"--train_file_dir {tmp_path}/held.jsonl, --max_length"


@pytest.mark.parametrize(
    ("stage", "flags"),
    [("sft", "--packing --max_length 32"), ("dpo", "--loss_type kto"), ("rm", ""), ("dpo", "--offset_alpha 1.0")],
)
def test_nothing_but_the_entries_is_left_in_the_cache(
    chatml: PreTrainedTokenizerFast, tmp_path: Path, stage: str, flags: str
) -> None:
    """Of records that were drawn, in an order of their own: `datasets` writes such selections down next to the data."""
    cache = tmp_path / "cache"
    more = {} if stage == "sft" else PAIR
    records = [asked(number, response="b", margin=number + 0.5, **more) for number in range(9)]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    (tmp_path / "b.jsonl").write_text(json.dumps(asked(9, response="c", **more)) + "\n")
    argv = ["--output_dir", "o", "--use_cpu", "True", "--data_cache_dir", str(cache), *flags.split()]
    argv += ["--train_file_dir", f"{tmp_path}/a.jsonl#5,{tmp_path}/b.jsonl", "--validation_split_percentage", "30"]
    _, data_args, _, args = parse_arguments(stage, argv)
    splits = load_splits(make_encoder(stage, chatml, args, data_args), data_args, args)
    if stage == "rm":
        longest_first(splits.train)
    left = [file for file in cache.rglob("*") if file.name.startswith(("cache-", "tmp", "flat"))]
    assert not left and {oct(file.stat().st_mode & 0o077) for file in cache.rglob("*")} == {"0o0"}
