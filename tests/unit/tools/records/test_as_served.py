"""`hftune preview --as-served`: which turns are behind what a server gives, and where they differ."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hftune.arguments.data import DataArguments
from hftune.data.encode import ChatEncoder
from hftune.data.encode_pairs import Limits, PairEncoder
from hftune.data.encode_rewards import RewardPairEncoder
from hftune.errors import ArgumentError, DataError
from hftune.tools.records.as_served import OFF, OTHER, REFUSED, SERVED, UNASKED, ServedCheck, check_served
from tests.unit.data.helpers import assistant, make_tokenizer, row, template, user
from tests.unit.data.test_shapes import SHAPES

THOUGHTS = [
    user("a"), assistant("b", reasoning_content="hm"), user("c"), assistant("d", reasoning_content="oh"),
]  # fmt: skip
PLAIN = [user("a"), assistant("b"), user("c"), assistant("d")]


def verdicts(name: str, messages: list[dict[str, Any]], **settings: Any) -> tuple[list[str], dict[str, int]]:
    check = ServedCheck(ChatEncoder(make_tokenizer(template(name)), max_length=None, **settings))
    return list(check(row(messages=messages))), dict(check.counts)


def test_turns_of_conversations() -> None:
    lines, counts = verdicts("qwen3", THOUGHTS)
    assert counts == {SERVED: 2} and lines[0].startswith("data.jsonl:1: turn 1 of 2, behind ")
    # One before the last question, the last one with an empty thought.
    assert verdicts("qwen3", PLAIN)[1] == {SERVED: 1, OFF: 1}
    assert verdicts("glm4moe", PLAIN)[1] == {OFF: 2}
    assert verdicts("deepseekv3", PLAIN)[1] == {OFF: 2} and verdicts("deepseekv3", THOUGHTS)[1] == {SERVED: 2}
    assert verdicts("llama3", [assistant("b"), *PLAIN])[1] == {UNASKED: 1, SERVED: 2}
    assert verdicts("gemma", THOUGHTS)[1] == {REFUSED: 1}


@pytest.mark.parametrize("name", ["qwen3", "gptoss"])
def test_calls_in_texts_and_several_calls_at_once(name: str) -> None:
    for shape in ("Hermes", "Anthropic", "ShareGPT"):
        check = ServedCheck(ChatEncoder(make_tokenizer(template(name)), max_length=None))
        for record in SHAPES[shape]:
            assert [*check(row(**record))]
        assert check.counts.keys() <= {SERVED, OFF}, (shape, check.counts)


def test_the_first_difference() -> None:
    (first, _), counts = verdicts("deepseekv3", PLAIN, rewritten="keep")
    assert counts == {OTHER: 2}
    assert "from token" in first and "trained behind '', served '<think>\\n'" in first
    (line,), counts = verdicts("qwen3", PLAIN, train_on_inputs=True)
    assert counts == {OTHER: 1} and "from token 1 on trained behind '', served '<|im_start|>" in line
    (line,), _ = verdicts("qwen3", PLAIN[:2], empty_thoughts="train")
    assert line.endswith(SERVED)


def test_pairs() -> None:
    tokenizer, pair = make_tokenizer(template("qwen3")), {"prompt": "a " * 50, "chosen": "b", "rejected": "c"}
    check = ServedCheck(PairEncoder(tokenizer, limits=Limits(99, 20, 79)))
    (line,) = check(row(**pair))
    assert line.endswith("behind 20 tokens: as served with thinking off, but for its start (--max_prompt_length)")
    (line,) = ServedCheck(PairEncoder(tokenizer, limits=Limits(999)))(row(**pair))
    assert line.endswith(OFF)
    with pytest.raises(ArgumentError, match="nothing here answers a prompt"):
        ServedCheck(RewardPairEncoder(tokenizer, limits=Limits(99)))


def test_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    records = [{"messages": PLAIN}, {"messages": []}, {"talk": THOUGHTS}]
    (tmp_path / "d.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    args = DataArguments(train_file_dir=str(tmp_path), columns="messages=talk")
    tokenizer = make_tokenizer(template("deepseekv3"))
    check_served(ChatEncoder(tokenizer, max_length=99), args)
    said = capsys.readouterr().out
    assert "d.jsonl:2: refused" in said and "2 as served with thinking off; 1 refused; 2 as served" in said
    with pytest.raises(DataError, match="2 trained turns are not behind what a server gives"):
        check_served(ChatEncoder(tokenizer, max_length=99, rewritten="keep"), args)
