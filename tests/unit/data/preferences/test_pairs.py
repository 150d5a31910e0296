"""Preference pairs and prompts to token ids."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

from hftune.data.readers.files import find_files
from hftune.errors import ArgumentError, DataError
from tests.unit.data.helpers import (
    assistant,
    call,
    make_tokenizer,
    prompts_dataset,
    read_rows,
    row,
    template,
    tokenize_pairs,
    user,
)

PAIR = {"prompt": "天气?", "chosen": "Thank you 🙂", "rejected": "\n\nno"}
PROMPT = "<|im_start|>user\n天气?<|im_end|>\n<|im_start|>assistant\n"


def decoded(tokenizer: PreTrainedTokenizerFast, example: dict[str, Any]) -> dict[str, str]:
    return {name: tokenizer.decode(ids) for name, ids in example.items() if name.endswith("_ids")}


def test_answers_end_with_the_terminator(chatml: PreTrainedTokenizerFast) -> None:
    dataset, counts = tokenize_pairs([row(**PAIR)], chatml, max_length=999)
    assert decoded(chatml, dataset[0]) == {
        "prompt_ids": PROMPT, "chosen_ids": "Thank you 🙂<|im_end|>", "rejected_ids": "\n\nno<|im_end|>",
    }  # fmt: skip
    answers = len(dataset[0]["chosen_ids"]) + len(dataset[0]["rejected_ids"])
    assert (counts.used, counts.truncated, counts.trained_tokens) == (1, 0, answers)
    assert counts.tokens == answers + 2 * len(dataset[0]["prompt_ids"])


def test_ids_are_those_of_the_whole_text(chatml: PreTrainedTokenizerFast) -> None:
    """Also where the first token of an answer could join the line break before it."""
    dataset, _ = tokenize_pairs([row(**PAIR)], chatml, max_length=999)
    for name in ("chosen", "rejected"):
        whole = chatml(PROMPT + PAIR[name] + "<|im_end|>", add_special_tokens=False)["input_ids"]
        assert dataset[0]["prompt_ids"] + dataset[0][f"{name}_ids"] == whole


@pytest.mark.parametrize(
    ("mode", "of_the_prompt", "of_the_answer"),
    [("mask", "<think>\n\n</think>\n\n", ""), ("train", "", "<think>\n\n</think>\n\n"), ("drop", "", "")],
)
def test_whose_empty_thoughts_are(mode: str, of_the_prompt: str, of_the_answer: str) -> None:
    tokenizer = make_tokenizer(template("qwen3"))
    dataset, _ = tokenize_pairs([row(**PAIR)], tokenizer, max_length=999, empty_thoughts=mode)
    shown = decoded(tokenizer, dataset[0])
    assert shown["prompt_ids"] == PROMPT + of_the_prompt
    assert shown["chosen_ids"] == f"{of_the_answer}Thank you 🙂<|im_end|>"


def test_an_answer_with_thoughts_and_one_without_share_their_prompt() -> None:
    tokenizer = make_tokenizer(template("qwen3"))
    pair = PAIR | {"chosen": "<think>\nhm\n</think>\n\nyes", "rejected": "no"}
    dataset, _ = tokenize_pairs([row(**pair)], tokenizer, max_length=999)
    assert decoded(tokenizer, dataset[0]) == {
        "prompt_ids": PROMPT,
        "chosen_ids": "<think>\nhm\n</think>\n\nyes<|im_end|>",
        "rejected_ids": "<think>\n\n</think>\n\nno<|im_end|>",
    }


@pytest.mark.parametrize("mode", ["mask", "train"])
@pytest.mark.parametrize(("name", "closing"), [("nemotron_3_nano", "\n</think>\n"), ("nemotron_3_ultra", "</think>")])
def test_a_prompt_that_opens_thoughts_is_that_of_both(name: str, closing: str, mode: str) -> None:
    """The template writes an answer without a thought behind another prompt, with thinking off."""
    tokenizer = make_tokenizer(template(name))
    asked = tokenizer.apply_chat_template([user("hi")], tokenize=False, add_generation_prompt=True)
    assert asked.endswith("<think>\n")
    pair = {"prompt": [user("hi")], "chosen": [assistant("yes", reasoning_content="hm")], "rejected": [assistant("no")]}
    shown = []
    for turned in (pair, pair | {"chosen": pair["rejected"], "rejected": pair["chosen"]}):
        dataset, _ = tokenize_pairs([row(**turned)], tokenizer, max_length=999, empty_thoughts=mode)
        shown.append(decoded(tokenizer, dataset[0]))
    thinks, not_so = f"hm{closing}yes<|im_end|>", f"{closing.lstrip()}no<|im_end|>"
    assert shown[0] == {"prompt_ids": asked, "chosen_ids": thinks, "rejected_ids": not_so}
    assert shown[1] == {"prompt_ids": asked, "chosen_ids": not_so, "rejected_ids": thinks}
    assert len(dataset[0]["prompt_ids"]) == len(tokenizer(asked)["input_ids"]), "the tokens that inference gives"


def test_empty_thoughts_that_a_prompt_opens_are_not_dropped() -> None:
    pair = {"prompt": [user("hi")], "chosen": [assistant("yes", reasoning_content="hm")], "rejected": [assistant("no")]}
    tokenizer = make_tokenizer(template("nemotron_3_nano"))
    with pytest.raises(DataError, match="prompt differently"):
        tokenize_pairs([row(**pair)], tokenizer, max_length=999, empty_thoughts="drop")


def test_several_turns_and_a_system_text(chatml: PreTrainedTokenizerFast) -> None:
    turns = [user("a"), assistant("b"), user("c")]
    dataset, _ = tokenize_pairs([row(messages=turns, system="S", chosen="C", rejected="R")], chatml, max_length=999)
    parts = [("system", "S"), ("user", "a"), ("assistant", "b"), ("user", "c")]
    text = "".join(f"<|im_start|>{role}\n{content}<|im_end|>\n" for role, content in parts)
    assert decoded(chatml, dataset[0]) == {
        "prompt_ids": text + "<|im_start|>assistant\n", "chosen_ids": "C<|im_end|>", "rejected_ids": "R<|im_end|>",
    }  # fmt: skip


# A prompt of 12 tokens: <|im_start|> user \n a b c d <|im_end|> \n <|im_start|> assistant \n; answers of 9 and 5.
LONG = {"prompt": "abcd", "chosen": "ABCDEFGH", "rejected": "1234"}


@pytest.mark.parametrize(
    ("limits", "lengths"),
    [
        ({"max_length": 21}, (12, 9, 5)),
        # The prompt gives way first ...
        ({"max_length": 20}, (11, 9, 5)),
        ({"max_length": 18}, (9, 9, 5)),
        # ... down to half of max_length, then the answers.
        ({"max_length": 16}, (8, 8, 5)),
        ({"max_length": 8}, (4, 4, 4)),
        ({"max_length": 2}, (1, 1, 1)),
        ({"max_length": 99, "max_prompt_length": 3}, (3, 9, 5)),
        ({"max_length": 99, "max_completion_length": 6}, (12, 6, 5)),
        ({"max_length": 16, "max_completion_length": 6}, (10, 6, 5)),
        ({"max_length": 9, "max_prompt_length": 3, "max_completion_length": 1}, (3, 1, 1)),
    ],
)
def test_truncation(chatml: PreTrainedTokenizerFast, limits: dict[str, int], lengths: tuple[int, int, int]) -> None:
    whole = tokenize_pairs([row(**LONG)], chatml, max_length=999)[0][0]
    dataset, counts = tokenize_pairs([row(**LONG)], chatml, **limits)
    prompt, chosen, rejected = lengths
    # The prompt keeps its end, the answers their start.
    assert dataset[0]["prompt_ids"] == whole["prompt_ids"][12 - prompt :]
    assert dataset[0]["chosen_ids"] == whole["chosen_ids"][:chosen]
    assert dataset[0]["rejected_ids"] == whole["rejected_ids"][:rejected]
    assert counts.truncated == int(lengths != (12, 9, 5))


def test_pairs_equal_after_truncation_are_dropped(chatml: PreTrainedTokenizerFast) -> None:
    rows = [row(prompt="a", chosen="same 1", rejected="same 2"), row(prompt="a", chosen="1", rejected="2")]
    dataset, counts = tokenize_pairs(rows, chatml, max_length=99, max_completion_length=2)
    assert (len(dataset), counts.dropped) == (1, {"chosen and rejected are equal after truncation": 1})
    with pytest.raises(DataError, match="all 1 records were dropped"):
        tokenize_pairs(rows[:1], chatml, max_length=99, max_completion_length=2)


@pytest.mark.parametrize(
    ("value", "name", "words"),
    [
        ({"messages": [user("a")], "chosen": [call("f"), {"role": "tool", "content": "1"}, assistant("1")],
          "rejected": "R"}, "qwen2_5", ["an answer of 3 turns"]),
        ({"prompt": "a", "chosen": [call("f")], "rejected": "R"}, "llama3", ["drops the function call"]),
        ({"prompt": "a", "chosen": "C", "rejected": "R", "system": "S"}, "gemma", ["System role"]),
        ({"messages": [user("a"), assistant("b")]}, "gemma", ["run_sft.py"]),
    ],
)  # fmt: skip
def test_errors_name_the_record(value: dict[str, Any], name: str, words: list[str]) -> None:
    with pytest.raises(DataError) as caught:
        tokenize_pairs([row(9, **value)], make_tokenizer(template(name)), max_length=99)
    assert caught.value.place == "data.jsonl:9"
    assert all(word in str(caught.value) for word in words)


@pytest.mark.parametrize("limits", [{"max_length": 1}, {"max_length": 9, "max_prompt_length": 0}])
def test_lengths_are_refused(chatml: PreTrainedTokenizerFast, limits: dict[str, int]) -> None:
    with pytest.raises(ArgumentError, match="--max_"):
        tokenize_pairs([row(**PAIR)], chatml, **limits)


# --- prompts ------------------------------------------------------------------------------------------------------


def test_samples(samples: Path) -> None:
    rows = read_rows(find_files(str(samples / "preference"), "--train_file_dir"), max_samples=20)
    tokenizer = make_tokenizer(template("qwen2_5"))
    dataset, counts = tokenize_pairs(rows, tokenizer, max_length=4096)
    assert counts.used == 20
    assert all(tokenizer.decode(example["chosen_ids"]).endswith("<|im_end|>") for example in dataset)
    assert len(prompts_dataset(rows, tokenizer, max_prompt_length=None)[0]) == 20


def test_offsets_need_scores_that_agree(chatml: PreTrainedTokenizerFast) -> None:
    rows = [row(**PAIR, chosen_score=3, rejected_score=1), row(**PAIR)]
    dataset, _ = tokenize_pairs(rows, chatml, max_length=99, offset=True)
    assert dataset["margin"][:] == [2.0, 1.0]
    with pytest.raises(DataError, match="not above the rejected"):
        tokenize_pairs([row(**PAIR, margin=-1)], chatml, max_length=99, offset=True)
    with pytest.raises(DataError, match="no record has scores"):
        tokenize_pairs([row(**PAIR)], chatml, max_length=99, offset=True)
    assert "margin" not in tokenize_pairs(rows, chatml, max_length=99)[0].column_names
