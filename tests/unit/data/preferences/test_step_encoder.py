"""Answers in steps: the formats people have, where each step is scored, and batches."""

from __future__ import annotations

from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

from hftune.data.encode_rewards import StepEncoder
from hftune.errors import DataError
from tests.unit.data.helpers import make_tokenizer, row, template, tokenise_rows


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
