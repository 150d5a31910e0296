"""`hftune vocab` as a user calls it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from hftune.checkpoints.manifest import read_manifest
from hftune.cli import dispatch
from hftune.errors import ArgumentError, DataError
from hftune.tools.vocabulary.corpus import iterate_texts, read_corpus

from .conftest import CHINESE


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    folder = tmp_path / "corpus"
    folder.mkdir()
    turns = [{"from": "human", "value": CHINESE[0]}, {"from": "gpt", "value": CHINESE[1]}]
    pair = {"prompt": "问", "chosen": "好", "rejected": "坏"}
    records = [{"conversations": turns}, {"text": CHINESE[2]}, pair]
    (folder / "a.jsonl").write_text("".join(json.dumps(one, ensure_ascii=False) + "\n" for one in records))
    (folder / "b.txt").write_text("\n".join(CHINESE), encoding="utf-8")
    return folder


def vocab(*flags: object) -> None:
    dispatch(["vocab", *map(str, flags)])


def test_records_of_any_format_are_text(corpus: Path) -> None:
    texts = list(iterate_texts(str(corpus), "--train_file_dir"))
    assert texts[:3] == [f"{CHINESE[0]}\n{CHINESE[1]}", CHINESE[2], "问\n好"]
    assert len(texts) == 3 + len(CHINESE)
    assert list(iterate_texts(f"{corpus / 'b.txt'}#2", "--train_file_dir")) == CHINESE[:2]
    (corpus / "c.jsonl").write_text('{"nothing": 1}\n')
    with pytest.raises(DataError, match=r"c\.jsonl:1"):
        list(iterate_texts(str(corpus), "--train_file_dir"))


def test_a_large_corpus_is_thinned_evenly(tmp_path: Path) -> None:
    (tmp_path / "t.txt").write_text("\n".join(f"{number:03}" for number in range(400)))
    learnt, held_out = read_corpus(str(tmp_path / "t.txt"), None, 400)
    kept = sorted(map(int, [*learnt, *held_out]))
    assert kept == list(range(0, 400, 4)) and len(held_out) == 5
    learnt, held_out = read_corpus(str(tmp_path / "t.txt"), str(tmp_path / "t.txt"), 10_000)
    assert learnt == held_out and len(learnt) == 400


def test_extend_makes_a_model_that_trains(tiny_model: Path, corpus: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    flags = ("--model_name_or_path", tiny_model, "--train_file_dir", corpus, "--output_dir", out)
    vocab("extend", *flags, "--new_tokens", 30, "--pad_vocab_to_multiple_of", 64, "--add_special_tokens", "<tool>")
    model, info = AutoModelForCausalLM.from_pretrained(out, output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"]
    tokenizer = AutoTokenizer.from_pretrained(out)
    assert len(tokenizer) == 281 + 30 + 1 and model.config.vocab_size == 320
    assert tokenizer.chat_template == AutoTokenizer.from_pretrained(tiny_model).chat_template
    assert tokenizer.decode(tokenizer.encode("患者<tool>")) == "患者<tool>"
    ids = torch.tensor([tokenizer.encode(CHINESE[0])])
    assert torch.isfinite(model(ids, labels=ids).loss)
    manifest = read_manifest(out)
    assert manifest["status"] == "complete" and manifest["kind"] == "full"
    assert manifest["vocabulary"] == {"rows": 320, "tied": True, "new_tokens": [[281, 311]], "growth": None}
    figures = manifest["metrics"]["tokens_per_character"]
    assert figures["after"] < figures["before"] and figures["saved"] == 1 - figures["after"] / figures["before"]
    with pytest.raises(ArgumentError, match="finished result"):
        vocab("extend", *flags)


def test_train_merge_resize(tiny_model: Path, corpus: Path, tmp_path: Path) -> None:
    vocab("train", "--train_file_dir", corpus, "--vocab_size", 330, "--output_dir", tmp_path / "domain")
    files = {file.name for file in (tmp_path / "domain").iterdir()}
    assert files == {"tokenizer.json", "tokenizer_config.json", "hftune.json"}
    given = ("--model_name_or_path", tiny_model, "--domain_tokenizer", tmp_path / "domain", "--tokenizer_only")
    vocab("merge", *given, "--validation_file_dir", corpus, "--output_dir", tmp_path / "merged")
    assert not list((tmp_path / "merged").glob("*.safetensors"))
    larger = ("--tokenizer_name_or_path", tmp_path / "merged", "--init_new_embeddings", "mean")
    vocab("resize", "--model_name_or_path", tiny_model, *larger, "--output_dir", tmp_path / "model")
    model, base = (AutoModelForCausalLM.from_pretrained(one) for one in (tmp_path / "model", tiny_model))
    assert model.config.vocab_size == len(AutoTokenizer.from_pretrained(tmp_path / "merged")) > 281
    rows, old = model.get_input_embeddings().weight, base.get_input_embeddings().weight
    assert torch.equal(rows[:281], old)
    torch.testing.assert_close(rows[281:], old.mean(0).expand(len(rows) - 281, -1))


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_a_sentencepiece_file_grows_with_its_tokenizer(kind: str, corpus: Path, tmp_path: Path) -> None:
    import sentencepiece

    flags = ("--train_file_dir", corpus, "--vocab_size", 315, "--tokenizer_type", kind)
    vocab("train", *flags, "--output_dir", tmp_path / "domain")
    extra = tmp_path / "words.txt"
    extra.write_text("发热咳嗽\n医生建议\n", encoding="utf-8")
    name = ("--tokenizer_name_or_path", tmp_path / "domain", "--domain_tokenizer", extra)
    vocab("merge", *name, "--output_dir", tmp_path / "more")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "more")
    processor = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / "more" / "tokenizer.model"))
    assert processor.vocab_size() == len(tokenizer) > 315
    for text in [*CHINESE, "发热咳嗽", "，医生建议"]:
        assert processor.encode(text) == tokenizer.encode(text, add_special_tokens=False)


def test_add(tiny_model: Path, tmp_path: Path) -> None:
    flags = ("--model_name_or_path", tiny_model, "--new_special_tokens", "<a>", "<b>")
    vocab("add", *flags, "--output_dir", tmp_path / "out")
    assert read_manifest(tmp_path / "out")["vocabulary"]["new_tokens"] == [[281, 282]]
    assert AutoTokenizer.from_pretrained(tmp_path / "out").encode("<b>") == [282]


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["shrink"], "there is no `hftune vocab shrink`\n  to do: one of: "),
        (["resise"], r"did you mean `hftune vocab resize`\?"),
        (["extend"], "2 problems"),
        (["add", "--output_dir", "o"], "no token was named"),
        (["add", "--output_dir", "o", "--add_tokens", "<a>"], "no model was named"),
        (["add", "--output_dir", "o", "--add_tokens", "<a>", "--model_name_or_path", "none/such"], "no tokenizer"),
        (["merge", "--output_dir", "o", "--domain_tokenizer", "x", "--learning_rate", "1"], "is no argument of"),
    ],
)
def test_what_cannot_be_done_is_said(argv: list[str], words: str, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ArgumentError, match=words):
        vocab(*argv)
    assert not list(tmp_path.iterdir())


def test_help(capsys: pytest.CaptureFixture[str]) -> None:
    vocab()
    assert "hftune vocab merge" in capsys.readouterr().out
