"""`hftune preview` and `hftune tokenize` as a user calls them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hftune.arguments.data import DataArguments
from hftune.arguments.entry import parse_arguments
from hftune.arguments.stage_table import STAGES, Stage
from hftune.cli import dispatch
from hftune.data.encode import ChatEncoder, TextEncoder
from hftune.data.endless import open_tokenized
from hftune.data.splits import load_splits, make_encoder
from hftune.errors import ArgumentError, DataError
from hftune.models.loading.tokenizer import load_tokenizer

RECORDS = [
    {"messages": [{"role": "user", "content": f"{n}?"}, {"role": "assistant", "content": f"n {n}"}]} for n in range(20)
]


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HFTUNE_CACHE", str(tmp_path / "cache"))
    file = tmp_path / "chats.jsonl"
    file.write_text("".join(json.dumps(record) + "\n" for record in RECORDS))
    (tmp_path / "texts.jsonl").write_text("".join(json.dumps({"text": f"text {n}"}) + "\n" for n in range(20)))
    return file


def test_preview(tiny_model: Path, data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dispatch(["preview", "run_sft.py", "--model_name_or_path", str(tiny_model), "--train_file_dir", str(data)])
    shown = capsys.readouterr().out
    assert f'{data}:3: messages, because it has "messages"' in shown and f"{data}:4: " not in shown
    assert shown.count("train ") >= 3
    assert "20 records read, 20 used" in shown and "terminator" in shown
    assert "an epoch: 20 rows, 3 steps of 8" in shown


def test_preview_as_served_was_removed() -> None:
    with pytest.raises(ArgumentError, match="was removed") as refused:
        dispatch(["preview", "run_sft.py", "--as-served"])
    assert "hftune serve" in refused.value.fix


def test_a_stage_that_is_based_on_another_previews_its_records(
    tiny_model: Path, data: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(STAGES, "other", Stage("something else", STAGES["sft"].arguments, based_on="sft"))
    pages = []
    for stage in ("sft", "other"):
        dispatch(["preview", f"run_{stage}", "--model_name_or_path", str(tiny_model), "--train_file_dir", str(data)])
        pages.append(capsys.readouterr().out.replace(f"run_{stage}", "run"))
    assert pages[0] == pages[1] and "messages" in pages[0]


def test_records_tokenised_ahead_are_those_of_the_run(tiny_model: Path, data: Path, tmp_path: Path) -> None:
    flags = ["--model_name_or_path", str(tiny_model), "--max_length", "64"]
    folder = tmp_path / "ahead"
    source = ["--train_file_dir", str(data), "--validation_split_percentage", "10"]
    dispatch(["tokenize", "run_sft", *flags, *source, "--output_dir", str(folder)])
    model, files, _, args = parse_arguments("sft", [*flags, *source, "--output_dir", "o"])
    encoder = ChatEncoder.from_arguments(load_tokenizer(model, args), args)
    expected = load_splits(encoder, files, args)
    found = load_splits(encoder, DataArguments(tokenized_dir=str(folder)), args)
    assert found.train.to_dict() == expected.train.to_dict()
    assert found.evaluation.to_dict() == expected.evaluation.to_dict()
    assert found.about == expected.about
    with pytest.raises(ArgumentError, match="already holds a finished result"):
        dispatch(["tokenize", "run_sft", *flags, *source, "--output_dir", str(folder)])


def test_a_run_that_would_tokenise_otherwise_refuses_them(tiny_model: Path, data: Path, tmp_path: Path) -> None:
    flags, folder = ["--model_name_or_path", str(tiny_model)], tmp_path / "ahead"
    dispatch(["tokenize", "sft", *flags, "--train_file_dir", str(data), "--output_dir", str(folder)])
    model, _, _, args = parse_arguments("sft", [*flags, "--output_dir", "o", "--max_length", "32"])
    tokenizer = load_tokenizer(model, args)
    with pytest.raises(DataError, match=r"were tokenised with max_length 1024 \(this run: 32\)"):
        load_splits(ChatEncoder.from_arguments(tokenizer, args), DataArguments(tokenized_dir=str(folder)), args)
    *_, args = parse_arguments("sft", [*flags, "--output_dir", "o"])
    tokenizer.chat_template += " "
    with pytest.raises(DataError, match="another tokenizer or chat template"):
        load_splits(ChatEncoder.from_arguments(tokenizer, args), DataArguments(tokenized_dir=str(folder)), args)
    with pytest.raises(DataError, match="holds no tokenised records"):
        load_splits(ChatEncoder.from_arguments(tokenizer, args), DataArguments(tokenized_dir=str(tmp_path)), args)


def test_texts_tokenised_ahead_are_whole_documents(tiny_model: Path, data: Path, tmp_path: Path) -> None:
    flags, folder = ["--model_name_or_path", str(tiny_model), "--block_size", "16"], tmp_path / "ahead"
    source = ["--train_file_dir", str(data.with_name("texts.jsonl")), "--validation_split_percentage", "10"]
    dispatch(["tokenize", "run_pt", *flags, *source, "--output_dir", str(folder)])
    model, _, _, args = parse_arguments("pt", [*flags, "--output_dir", "o"])
    encoder = TextEncoder.from_arguments(load_tokenizer(model, args), args)
    splits = open_tokenized(encoder, DataArguments(tokenized_dir=str(folder)), args)
    assert list(splits.about["train"]["sources"]) == ["ahead"]
    assert splits.about["train"]["rows"] == 18 and splits.about["eval"]["rows"] == 2


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["preview"], "needs the script"),
        (["tokenize", "run_xyz"], "needs the script"),
        (["tokenize", "run_sft", "--shard", "1/4"], "--shard was removed"),
        (["preview", "run_sft", "--model_name_or_path", "none/of/it"], "2 problems"),
    ],
)
def test_what_cannot_be_done_is_said(argv: list[str], words: str) -> None:
    with pytest.raises(ArgumentError, match=words):
        dispatch(argv)


@pytest.mark.parametrize("loss", ["kto", "sigmoid"])
def test_answers_are_tokenised_as_run_dpo_wants_them(tiny_model: Path, data: Path, tmp_path: Path, loss: str) -> None:
    """Pairs, pairs with other answers, or answers with a label: the script's own choice."""
    file = tmp_path / "answers" / "records.jsonl"
    file.parent.mkdir()
    answer = {"chosen": "yes", "rejected": "no"} if loss == "sigmoid" else {"completion": "yes", "label": True}
    file.write_text("".join(json.dumps({"prompt": f"{n}?"} | answer) + "\n" for n in range(4)))
    flags = ["--model_name_or_path", str(tiny_model), "--loss_type", loss]
    dispatch(["tokenize", "run_dpo", *flags, "--train_file_dir", str(file), "--output_dir", str(tmp_path / "ahead")])
    model, files, _, args = parse_arguments("dpo", [*flags, "--output_dir", "o", "--train_file_dir", str(file)])
    tokenizer, ahead = load_tokenizer(model, args), DataArguments(tokenized_dir=str(tmp_path / "ahead"))
    found, expected = (load_splits(make_encoder("dpo", tokenizer, args, one), one, args) for one in (ahead, files))
    assert found.train.to_dict() == expected.train.to_dict() and found.about == expected.about
    assert ("label" in found.train.column_names) == (loss != "sigmoid")
