"""The parts that several formats share: system text, history, question, answer, ERNIEKit's turns."""

from __future__ import annotations

from typing import Any

import pytest

from hftune.data.records import read_answer, read_erniekit, read_history, read_question, read_turns
from hftune.errors import DataError
from tests.unit.data.helpers import assistant, row, user
from tests.unit.data.records.values import HG, SYSTEM, UA


def test_a_system_text_comes_first_and_once() -> None:
    assert read_turns(row(conversations=HG, system="S")) == [SYSTEM, *UA]
    assert read_turns(row(messages=[SYSTEM, *UA], system_prompt="S")) == [SYSTEM, *UA]
    assert read_turns(row(messages=UA, system="")) == UA
    with pytest.raises(DataError, match="another one in it"):
        read_turns(row(messages=[SYSTEM, *UA], system="other"))


@pytest.mark.parametrize("history", [[["Q", "A"]], '[["Q", "A"]]', UA, HG])
def test_history_comes_before_the_question(history: Any) -> None:
    assert read_question(row(query="next", history=history, system="S"), "query") == [SYSTEM, *UA, user("next")]


@pytest.mark.parametrize("history", ["x", [["Q"]], 7])
def test_broken_history(history: Any) -> None:
    with pytest.raises(DataError, match="history"):
        read_history(row(history=history))


def test_an_input_belongs_to_its_instruction_alone() -> None:
    value = {"instruction": "do", "prompt": "ask", "input": "this"}
    assert read_question(row(**value), "instruction") == [user("do\nthis")]
    assert read_question(row(**value), "prompt") == [user("ask")]
    with pytest.raises(DataError, match='"instruction" is empty'):
        read_question(row(instruction=" ", input=""), "instruction")


@pytest.mark.parametrize("value", ["A", assistant("A"), [assistant("A")], {"from": "gpt", "value": "A"}])
def test_an_answer(value: Any) -> None:
    assert read_answer(row(response=value), "response") == [assistant("A")]


def test_erniekit_answers_in_turn_with_labels() -> None:
    found = read_erniekit(row(src=["a", "b"], tgt=["c", "d"], label=[0, 1], system="S"))
    assert found == [SYSTEM, user("a"), assistant("c", weight=0.0), user("b"), assistant("d", weight=1.0)]
    assert read_erniekit(row(src='["a", "b"]', tgt="c")) == [user("a"), assistant("c"), user("b")]


@pytest.mark.parametrize(
    ("value", "words"),
    [({"src": ["a", "b", "c"], "tgt": ["d"]}, "3 questions"), ({"src": "a", "tgt": "b", "label": [1, 1]}, "1 weights")],
)
def test_broken_erniekit(value: dict[str, Any], words: str) -> None:
    with pytest.raises(DataError, match=words):
        read_erniekit(row(**value))
