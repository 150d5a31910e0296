"""What reward models train on and score."""

from __future__ import annotations

from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

from hftune.data.encode_rewards import ScoringEncoder, StepEncoder
from hftune.errors import DataError
from tests.unit.data.helpers import (
    assistant,
    call,
    make_tokenizer,
    row,
    template,
    tokenise_rows,
    tokenize_reward_pairs,
    user,
)
from tests.unit.data.test_encode_pairs import PAIR as SPOKEN
from tests.unit.data.test_encode_pairs import PROMPT, decoded
from tests.unit.data.test_turn_tokens import CHAT, MODES, PREFERENCE, STEPWISE

PAIR = {"prompt": "q", "chosen": "yes", "rejected": "no"}


def texts(dataset: Any, tokenizer: PreTrainedTokenizerFast) -> tuple[str, str]:
    return tuple(tokenizer.decode(dataset[0][side]) for side in ("chosen_ids", "rejected_ids"))


def test_answers_of_several_turns(chatml: PreTrainedTokenizerFast) -> None:
    chosen = [assistant("b"), user("c"), assistant("d")]
    value = {"prompt": [user("a")], "chosen": chosen, "rejected": [assistant("x")]}
    dataset, counts = tokenize_reward_pairs([row(**value)], chatml, max_length=999)
    said = "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n"
    assert texts(dataset, chatml) == (
        said + "b<|im_end|>\n<|im_start|>user\nc<|im_end|>\n<|im_start|>assistant\nd<|im_end|>\n",
        said + "x<|im_end|>\n",
    )
    assert counts.truncated == 0


def test_a_truncated_answer_of_several_turns_keeps_the_prompts_end(chatml: PreTrainedTokenizerFast) -> None:
    value = {
        "prompt": [user("a"), {**assistant("z"), "weight": 0}, user("q")],
        "chosen": [assistant("b"), user("c"), assistant("d")],
        "rejected": [assistant("x"), user("c"), assistant("y")],
    }
    dataset, counts = tokenize_reward_pairs([row(**value)], chatml, max_length=999, max_prompt_length=3)
    assert texts(dataset, chatml)[0].startswith("<|im_start|>assistant\nb<|im_end|>")
    assert counts.truncated == 1


def test_calls_and_their_results() -> None:
    """A whole trajectory is an answer; tools offered reach the template."""
    tool = {"type": "function", "function": {"name": "f", "description": "does f", "parameters": {}}}
    value = {
        "messages": [user("a")],
        "chosen": [call("f"), {"role": "tool", "content": "42"}, assistant("It is 42.")],
        "rejected": [assistant("I cannot know.")],
        "tools": [tool],
    }
    tokenizer = make_tokenizer(template("qwen2_5"))
    dataset, _ = tokenize_reward_pairs([row(**value)], tokenizer, max_length=9999)
    chosen, rejected = texts(dataset, tokenizer)
    assert "does f" in chosen and "does f" in rejected
    assert "42\n</tool_response>" in chosen and chosen.endswith("It is 42.<|im_end|>\n")


def test_a_thought_on_one_side_is_scored_as_it_is_written() -> None:
    tokenizer = make_tokenizer(template("nemotron_3_nano"))
    answers = [assistant("no"), assistant("yes", reasoning_content="hm")]
    value = {"prompt": [user("hi")], "chosen": answers[:1], "rejected": answers[1:]}
    dataset, _ = tokenize_reward_pairs([row(**value)], tokenizer, max_length=999)
    written = (tokenizer.apply_chat_template([user("hi"), answer], tokenize=False) for answer in answers)
    assert texts(dataset, tokenizer) == tuple(written)


def test_sources(chatml: PreTrainedTokenizerFast) -> None:
    dataset, _ = tokenize_reward_pairs([row(**PAIR, source="web"), row(**PAIR)], chatml, max_length=99)
    assert dataset["source"][:] == ["web", "data.jsonl"]


@pytest.mark.parametrize("how, expected", [("margin", [2.0, 4.0, 0.0]), ("weight", [2.0, 4.0, 3.0]), ("none", None)])
def test_missing_differences(chatml: PreTrainedTokenizerFast, how: str, expected: list[float] | None) -> None:
    rows = [row(**PAIR, margin=2), row(**PAIR, score_chosen=5, score_rejected=1), row(**PAIR)]
    dataset, _ = tokenize_reward_pairs(rows, chatml, max_length=99, score_difference=how)
    assert (dataset["margin"][:] if "margin" in dataset.column_names else None) == expected


def test_a_negative_weight_is_refused(chatml: PreTrainedTokenizerFast) -> None:
    with pytest.raises(DataError, match="lower score, by 1") as caught:
        tokenize_reward_pairs([row(3, **PAIR, margin=-1)], chatml, max_length=99, score_difference="weight")
    assert caught.value.place == "data.jsonl:3"


def test_reward_pairs_hold_prompt_and_answer(chatml: PreTrainedTokenizerFast) -> None:
    dataset, counts = tokenize_reward_pairs([row(**SPOKEN)], chatml, max_length=999)
    assert decoded(chatml, dataset[0]) == {
        "chosen_ids": PROMPT + "Thank you 🙂<|im_end|>\n", "rejected_ids": PROMPT + "\n\nno<|im_end|>\n",
    }  # fmt: skip
    assert dataset.column_names == ["chosen_ids", "rejected_ids", "source", "length"]
    assert counts.tokens == len(dataset[0]["chosen_ids"]) + len(dataset[0]["rejected_ids"])


def encode(tokenizer: PreTrainedTokenizerFast, *values: dict[str, Any], **settings: Any) -> Any:
    rows = [row(number, **value) for number, value in enumerate(values, start=1)]
    return tokenise_rows(rows, StepEncoder(tokenizer, **{"max_length": 999, **settings}))


@pytest.mark.parametrize("separator", ["\n", "\n\n", " ", " ки\n"])
@pytest.mark.parametrize("name", ["qwen2_5", "llama3", "gemma"])
def test_a_step_is_scored_at_its_last_character(name: str, separator: str) -> None:
    tokenizer = make_tokenizer(template(name))
    steps = ["天气 🙂", "b", "天气 🙂", "it is 4"]
    value = {"prompt": "q", "completions": steps, "labels": [True, False, True, None]}
    dataset, counts = encode(tokenizer, value, step_separator=separator)
    example = dataset[0]
    assert example["step_labels"] == [1.0, 0.0, 1.0] and counts.trained_tokens == 3
    for number, end in enumerate(example["ends"]):
        seen, before = (tokenizer.decode(example["input_ids"][:to]) for to in (end + 1, end))
        said = separator.join(steps[: number + 1])
        assert seen.rstrip().endswith(said.rstrip()) and not before.endswith(said)


def test_what_is_cut_takes_its_steps_along(chatml: PreTrainedTokenizerFast) -> None:
    value = {"prompt": "q", "completions": ["a", "b", "c"], "labels": [1, 0, 1]}
    whole, _ = encode(chatml, value)
    cut, counts = encode(chatml, value, max_length=whole[0]["ends"][1] + 1)
    assert cut[0]["ends"] == whole[0]["ends"][:2] and cut[0]["step_labels"] == [1.0, 0.0]
    assert (counts.used, counts.truncated) == (1, 1)
    with pytest.raises(DataError, match="no labelled step within --max_length"):
        encode(chatml, value, max_length=4)


def test_last_step_only(chatml: PreTrainedTokenizerFast) -> None:
    value = {"prompt": "q", "completions": ["a", "b", "c"], "labels": [1, 0, None]}
    whole, _ = encode(chatml, value)
    last, _ = encode(chatml, value, last_only=True)
    assert (last[0]["ends"], last[0]["step_labels"]) == (whole[0]["ends"][1:2], [0.0])


@pytest.mark.parametrize("steps", [False, True])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("value", [CHAT, PREFERENCE, STEPWISE], ids=["chat", "pair", "steps"])
def test_scored_conversations(value: dict[str, Any], mode: str, steps: bool) -> None:
    tokenizer = make_tokenizer()
    make = ScoringEncoder(tokenizer, steps=steps, borders_in_text=mode)
    if mode == "error":
        with pytest.raises(DataError) as caught:
            make(row(5, **value))
        assert caught.value.place == "data.jsonl:5"
        return
    for one in make(row(5, **value)):
        number = one.ids.count(tokenizer.convert_tokens_to_ids("<|im_end|>"))
        assert (number == 2) is (mode == "split")
        assert {*one.turn_tokens} == {"<|im_start|>", "<|im_end|>", "<|endoftext|>"}
