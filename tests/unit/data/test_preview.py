"""What a person sees of the data: trained and masked text told apart, terminators marked, counts that add up."""

from __future__ import annotations

import io
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from rich.console import Console
from transformers import PreTrainedTokenizerFast

from hftune.arguments.data import DataArguments
from hftune.arguments.entry import parse_arguments
from hftune.data.encode import ChatEncoder
from hftune.data.encode_pairs import PairEncoder
from hftune.data.encode_prompts import PromptEncoder
from hftune.data.encode_rewards import RewardPairEncoder
from hftune.data.preview import TERMINATOR, TRAINED, coloured, describe_example, preview
from hftune.data.splits import load_splits
from tests.unit.data.helpers import assistant, row, tokenize_chat, tokenize_pairs, tokenize_reward_pairs, user

TURNS = '{"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello world"}]}\n'


def test_trained_text_is_marked_and_so_is_its_terminator(chatml: PreTrainedTokenizerFast) -> None:
    dataset, _ = tokenize_chat([row(messages=[user("hi"), assistant("天气🙂")])], chatml, max_length=99)
    text = coloured(dataset[0]["input_ids"], dataset[0]["labels"], chatml)
    assert text.plain == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n«天气🙂<|im_end|>»\n"
    styles = {text.plain[span.start : span.end]: span.style for span in text.spans}
    assert styles["天气🙂"] == TRAINED
    assert styles["<|im_end|>"] == TERMINATOR
    # A turn that was cut has no terminator to mark.
    cut, _ = tokenize_chat([row(messages=[user("hi"), assistant("天气🙂")])], chatml, max_length=11)
    assert TERMINATOR not in {span.style for span in coloured(cut[0]["input_ids"], cut[0]["labels"], chatml).spans}


def test_every_kind_of_example(chatml: PreTrainedTokenizerFast) -> None:
    pair = row(prompt="a", chosen="yes", rejected="no")
    lines = [part.plain for part in describe_example(tokenize_pairs([pair], chatml, max_length=99)[0][0], chatml)]
    assert lines[1:] == ["chosen (4 tokens): «yes<|im_end|>»", "rejected (3 tokens): «no<|im_end|>»"]
    scored = tokenize_reward_pairs([pair], chatml, max_length=99)[0][0]
    assert [part.plain.split(" ")[0] for part in describe_example(scored, chatml)] == ["chosen", "rejected"]
    prompt = {"prompt": [user("a"), assistant("b"), user("c")], "answer": "4"}
    assert [part.plain for part in describe_example(prompt, chatml)] == [
        "user: a\nassistant: b\nuser: c",
        "for reward functions: {'answer': '4'}",
    ]
    packed = {"input_ids": [5, 6, 7], "labels": [-100, 6, -100], "seq_lengths": [2, 1]}
    assert [part.plain.split(")")[0] for part in describe_example(packed, chatml)] == [
        "(document 1 of 2, 2 tokens, 1 trained",
        "(document 2 of 2, 1 tokens, 0 trained",
    ]


def test_samples_counts_and_steps(chatml: PreTrainedTokenizerFast, tmp_path: Path) -> None:
    (tmp_path / "d.jsonl").write_text(TURNS * 5 + "{]\n" + TURNS)
    arguments = DataArguments(
        train_file_dir=str(tmp_path / "d.jsonl"), data_cache_dir=str(tmp_path / "cache"), on_bad_record="drop"
    )
    *_, training = parse_arguments("sft", ["--output_dir", "o", "--max_length", "99", "--packing"])
    data = load_splits(ChatEncoder.from_arguments(chatml, training), arguments, training)
    out = io.StringIO()
    preview(data, chatml, 1, rows_per_step=4, console=Console(file=out, width=200, soft_wrap=True))
    text = out.getvalue()
    assert "7 records read, 6 used, 1 dropped (malformed JSON)" in text
    assert "«hello world<|im_end|>»" in text
    assert "packed (bfd) into 1 rows of 99" in text
    assert "an epoch: 1 rows, 1 steps of 4" in text


def test_encoders_read_their_flags(chatml: PreTrainedTokenizerFast) -> None:
    for stage, encoder in (("dpo", PairEncoder), ("rm", RewardPairEncoder)):
        *_, args = parse_arguments(stage, ["--output_dir", "o", "--max_length", "64", "--max_prompt_length", "9"])
        assert "total=64, prompt=9" in str(encoder.from_arguments(chatml, args).settings())
    prompts: Any = SimpleNamespace(max_prompt_length=7, system_prompt="S", borders_in_text="error")
    assert PromptEncoder.from_arguments(chatml, prompts).settings() == {
        "encoder": "prompts",
        "max_prompt_length": 7,
        "borders_in_text": "error",
        "system_prompt": "S",
    }
