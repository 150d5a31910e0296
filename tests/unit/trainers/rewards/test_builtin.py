"""Rewards that need no model."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from hftune.arguments.defaults.medicalgpt import MEDICALGPT
from hftune.errors import ArgumentError
from hftune.logging import notices
from hftune.trainers.rewards.builtin import BUILTIN, accuracy, fits_length, follows_format


@pytest.mark.parametrize(
    ("right", "said", "reward"),
    [
        ("42", "The answer is 42.", 1.0),
        ("0.5", r"\boxed{1/2}", 1.0),
        (None, "42", None),
        (42, "42", 1.0),
        (1e-07, r"\boxed{0.0000001}", 1.0),
        (True, "True", 1.0),
        # Texts of a list are ways to be right, or all of them; numbers of a list are one answer, in order.
        (["NYC", "New York City"], "The answer is New York City.", 1.0),
        (["NYC"], "The answer is LA.", 0.0),
        (["1", "2"], r"\boxed{1, 2}", 1.0),
        (r'["\\frac{1}{2}"]', r"\boxed{\frac{1}{2}}", 1.0),
        ('["not JSON', '["not JSON', 1.0),
        ([1, 2, 3], "[1, 2, 3]", 1.0),
        ([1, 2, 3], r"\boxed{1, 2, 3}", 1.0),
        ([1, 2, 3], "[3, 2, 1]", 0.0),
        ([1, 2, 3], "3", 0.0),
    ],
)
def test_accuracy(right: Any, said: str, reward: float | None) -> None:
    assert accuracy([[{"role": "assistant", "content": said}]], answer=[right]) == [reward]
    assert accuracy([said], solution=[right]) == [reward]


def test_each_record_has_its_right_answer_in_a_column_of_its_own() -> None:
    answers = {"answer": ["4", None, None], "solution": ["5", "5", None]}
    assert accuracy(["4", "5", "6"], **answers) == [1.0, 1.0, None]


def test_accuracy_without_right_answers_is_refused() -> None:
    with pytest.raises(ArgumentError, match="no record has a right answer"):
        accuracy(["42"], prompts=["?"])


def test_what_is_not_compared_without_math_verify_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "math_verify", None)
    assert accuracy([r"\boxed{\sqrt{8}}"], answer=[r"2\sqrt{2}"]) == [0.0]
    assert any("only answers that are certainly equal count" in line for line in notices())


def test_the_format_that_a_prompt_asks_for() -> None:
    """Tags around the answer where the prompt, as messages or as text, asks for them."""
    texts = ["<think>a</think><answer>4</answer>", "<think>a</think>\n<answer>\n4\n</answer>\n", "<think>a</think> 4"]
    texts += ["<answer>4</answer>", "<think>a</think><answer>4</answer> done", "<think>a</think><answer></answer>"]
    asks = [{"role": "system", "content": MEDICALGPT["grpo"]["system_prompt"]}, {"role": "user", "content": "2 + 2?"}]
    plain = [{"role": "user", "content": "2 + 2?"}]
    assert follows_format(texts, prompts=[asks] * 6) == [1.0, 1.0, 0.0, 0.0, 0.0, 0.0]
    assert follows_format(texts[:1] * 2, prompts=[MEDICALGPT["grpo"]["system_prompt"], "2 + 2?"]) == [1.0, 1.0]
    assert follows_format(texts[2:3] * 2, prompts=[asks, plain]) == [0.0, 1.0]
    texts = ["<think>a</think> b", "<think>a</think>", "b", "<think>a</think> <think>b</think> c"]
    assert follows_format(texts) == [1.0, 0.0, 0.0, 0.0], "no tags without a prompt"


def test_length() -> None:
    assert fits_length(["", "a " * 8, "a " * 16, "a " * 256, "a " * 384, "a " * 600]) == [0.0, 0.5, 1.0, 1.0, 0.5, 0.0]
    names = [make(20).__name__ for make in BUILTIN.values()]
    assert names == [*BUILTIN], "as the flag calls them"


def test_overlong_answers_lose_up_to_one_over_the_last_fifth() -> None:
    """Of 20 tokens the last 4: at 16 nothing yet, at 17 a quarter, at 20 all."""
    answers = [[7] * length for length in (0, 16, 17, 18, 20)]
    assert BUILTIN["overlong"](20)(completions=[], completion_ids=answers) == [0.0, 0.0, -0.25, -0.5, -1.0]
    assert BUILTIN["overlong"](3)(completion_ids=[[7] * 2, [7] * 3]) == [0.0, -1.0]
