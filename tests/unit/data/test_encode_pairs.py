"""Preference pairs and labelled answers to token ids, and what is cut of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from transformers import PreTrainedTokenizerFast

from hftune.arguments.entry import parse_arguments
from hftune.data.counts import Counts
from hftune.data.encode_pairs import (
    LabelledEncoder,
    Limits,
    MismatchedPairEncoder,
    Pair,
    PairEncoder,
    PairText,
    truncated_pair,
)
from hftune.data.splits import describe
from hftune.errors import ArgumentError, DataError
from tests.unit.data.helpers import (
    CHATML,
    assistant,
    call,
    make_tokenizer,
    row,
    template,
    tokenise_rows,
    tokenize_pairs,
    user,
    with_limits,
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


@pytest.mark.parametrize("answers", [("lo", "x"), ("x", "lo")])
def test_ids_are_those_of_the_whole_text(answers: tuple[str, str]) -> None:
    """Also where the first token of one answer alone joins what the prompt ends with."""
    tokenizer = make_tokenizer(CHATML.replace("'\n' + m", "'\nhel' + m").replace("assistant\n'", "assistant\nhel'"))
    dataset, _ = tokenize_pairs([row(prompt="a", chosen=answers[0], rejected=answers[1])], tokenizer, max_length=999)
    for name, answer in zip(("chosen", "rejected"), answers, strict=True):
        text = f"<|im_start|>user\nhela<|im_end|>\n<|im_start|>assistant\nhel{answer}<|im_end|>"
        whole = tokenizer(text, add_special_tokens=False)["input_ids"]
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


def test_empty_thoughts_that_a_prompt_opens_are_not_dropped() -> None:
    pair = {"prompt": [user("hi")], "chosen": [assistant("yes", reasoning_content="hm")], "rejected": [assistant("no")]}
    tokenizer = make_tokenizer(template("nemotron_3_nano"))
    with pytest.raises(DataError, match="prompt differently"):
        tokenize_pairs([row(**pair)], tokenizer, max_length=999, empty_thoughts="drop")


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


def test_offsets_need_scores_that_agree(chatml: PreTrainedTokenizerFast) -> None:
    rows = [row(**PAIR, chosen_score=3, rejected_score=1), row(**PAIR)]
    dataset, _ = tokenize_pairs(rows, chatml, max_length=99, offset=True)
    assert dataset["margin"][:] == [2.0, 1.0]
    with pytest.raises(DataError, match="not above the rejected"):
        tokenize_pairs([row(**PAIR, margin=-1)], chatml, max_length=99, offset=True)
    with pytest.raises(DataError, match="no record has scores"):
        tokenize_pairs([row(**PAIR)], chatml, max_length=99, offset=True)
    assert "margin" not in tokenize_pairs(rows, chatml, max_length=99)[0].column_names


def test_labels_and_other_answers(chatml: PreTrainedTokenizerFast) -> None:
    rows = [row(prompt=text, completion=f"answer {text}", label=text < "c") for text in "abcd"]
    dataset, counts = tokenise_rows(rows, LabelledEncoder(chatml, limits=Limits(99)))
    assert dataset["label"][:] == [True, True, False, False]
    assert counts.used == 4 and counts.trained_tokens == sum(map(len, dataset["completion_ids"][:]))
    texts = [chatml.decode(ids) for ids in dataset["completion_ids"][:]]
    assert texts[0] == "answer a<|im_end|>"
    # half the data set away: another prompt's
    assert [chatml.decode(ids) for ids in dataset["kl_ids"][:]] == [*texts[2:], *texts[:2]]


def test_other_answers_fit_behind_the_prompt(chatml: PreTrainedTokenizerFast) -> None:
    rows = [row(prompt="a", completion="x" * 40, label=True), row(prompt="b" * 30, completion="y", label=False)]
    dataset, counts = tokenise_rows(rows, LabelledEncoder(chatml, limits=Limits(30)))
    assert counts.truncated == 2
    for record in dataset:
        assert len(record["prompt_ids"]) + len(record["completion_ids"]) <= 30
        assert 1 <= len(record["kl_ids"]) <= max(1, 30 - len(record["prompt_ids"]))


def test_pairs_get_good_and_bad_answers_in_turn(chatml: PreTrainedTokenizerFast) -> None:
    rows = [row(prompt=text, chosen=f"good {text}", rejected=f"bad {text}") for text in "abcd"]
    dataset, _ = tokenise_rows(rows, MismatchedPairEncoder(chatml, limits=Limits(99)))
    shown = [chatml.decode(ids).removesuffix("<|im_end|>") for ids in dataset["kl_ids"][:]]
    assert shown == ["good c", "bad d", "good a", "bad b"]


# A prompt of 12 tokens: <|im_start|> user \n a b c d <|im_end|> \n <|im_start|> assistant \n; answers of 9 and 5.
def test_each_kind_is_counted_and_said(chatml: PreTrainedTokenizerFast) -> None:
    rows = [
        row(prompt="abcd", chosen="ABCDEFGH", rejected="1234"),
        row(prompt="abcdefghijkl", chosen="1", rejected="2"),
        row(prompt="a", chosen="1", rejected="2"),
    ]
    _, counts = tokenize_pairs(rows, chatml, max_length=99, max_prompt_length=12, max_completion_length=8)
    assert (counts.cut, counts.truncated) == ({"answer": 1, "prompt": 1}, 2)
    assert "2 truncated (1 in the answer, 1 in the prompt)" in describe(counts.to_dict())
    _, counts = tokenize_pairs(rows, chatml, max_length=20, too_long="drop")
    assert counts.dropped == {"longer than its lengths": 2}
    assert "2 dropped (longer than its lengths)" in describe(counts.to_dict())
    assert "cut" not in counts.to_dict()


def numbered(prompt: int, chosen: int, rejected: int) -> Pair:
    return Pair(np.arange(prompt), [np.arange(100, 100 + chosen), np.arange(200, 200 + rejected)], PairText([]))


@pytest.mark.parametrize(
    ("way", "limits", "lengths"),
    [
        # Of a prompt of 12 tokens and answers of 9 and 5: the prompt gives way, but keeps half; then the answers do.
        ("cut", (18,), (9, 9, 5)),
        ("cut", (15,), (7, 8, 5)),
        ("cut", (3,), (1, 2, 2)),
        ("cut", (2,), (1, 1, 1)),
        ("cut", (99, 4, 6), (4, 6, 5)),
        ("cut", (15, None, 3), (12, 3, 3)),
        ("drop", (21,), (12, 9, 5)),
        ("drop", (20,), None),
        ("drop", (99, 11), None),
        ("drop", (99, None, 8), None),
        ("cut_prompt", (15,), (6, 9, 5)),
        ("cut_prompt", (10,), (1, 9, 5)),
        ("cut_prompt", (9,), None),  # no token of the prompt would stay
        ("cut_prompt", (99, None, 8), None),
        ("cut_answer", (15,), (12, 3, 3)),
        ("cut_answer", (13,), (12, 1, 1)),
        ("cut_answer", (12,), None),  # no token of an answer would stay
        ("cut_answer", (99, 11), None),
    ],
)
def test_what_is_kept(way: str, limits: tuple[Any, ...], lengths: tuple[int, ...] | None) -> None:
    total, prompt, completion = (*limits, None, None)[:3]
    found = truncated_pair(numbered(12, 9, 5), Limits(total, prompt, completion, way), Counts())
    assert (found and (len(found.prompt), *map(len, found.answers))) == lengths


def test_answers_with_a_label_are_cut_and_dropped_alike(chatml: PreTrainedTokenizerFast) -> None:
    value = {"prompt": "abcd", "completion": "ABCDEFGH", "label": True}
    for limits, used in (
        ({"max_length": 20}, 0),
        ({"max_length": 21}, 1),
        ({"max_length": 99, "max_characters": 9}, 0),
    ):
        encoder = LabelledEncoder(chatml, **with_limits({"too_long": "drop", **limits}))
        counts = Counts()
        encoder.encode([encoder.parse(row(**value))], counts)
        assert counts.used == used


@pytest.mark.parametrize("longer", ["chosen", "rejected"])
def test_characters_of_the_prompt_and_the_longer_answer(chatml: PreTrainedTokenizerFast, longer: str) -> None:
    """MedicalGPT's rule: of the rendered prompt and the answer as it was given; one more is one too many."""
    pair = row(**PAIR | {longer: "x" * 30})
    for budget, dropped in ((len(PROMPT) + 30, {}), (len(PROMPT) + 29, {"more characters than its lengths": 1})):
        encoder, counts = PairEncoder(chatml, limits=Limits(999, characters=budget)), Counts()
        encoder.encode([encoder.parse(pair)], counts)
        assert counts.dropped == dropped
    passed = truncated_pair(numbered(12, 9, 5), Limits(15, too_long="drop", characters=99), Counts())
    assert passed is not None and [len(passed.prompt), *map(len, passed.answers)] == [12, 3, 3], "its answers are cut"


# --- flags ----------------------------------------------------------------------------------------------------------


def test_lengths_by_flags() -> None:
    def args(stage: str, *flags: str) -> Any:
        return parse_arguments(stage, ["--output_dir", "o", *flags])[-1]

    both = ["--max_prompt_length", "100", "--max_completion_length", "20"]
    for stage in ("rm", "dpo"):
        assert (args(stage, *both).separate_limits, args(stage, *both).max_length) == ((100, 20), 120)
        together = args(stage, *both, "--length_budget", "sum", "--too_long", "drop")
        assert (together.separate_limits, together.max_length, together.most_characters) == ((None, None), 120, None)
        counted = args(stage, *both, "--length_budget", "sum_of_characters", "--too_long", "drop")
        assert (counted.separate_limits, counted.most_characters) == ((None, None), 120)
        with pytest.raises(ArgumentError, match="sum of two lengths"):
            args(stage, "--length_budget", "sum", "--max_prompt_length", "100")
        with pytest.raises(ArgumentError, match="add --too_long drop"):
            args(stage, *both, "--length_budget", "sum_of_characters")
        with pytest.raises(ArgumentError, match="--too_long cannot be"):
            args(stage, "--too_long", "forget")
