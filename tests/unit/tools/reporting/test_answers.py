"""Answers beside each other, in Markdown and on the page, by names that tell the models apart."""

from __future__ import annotations

from typing import Any

import pytest

from hftune.tools.reporting.page import part
from hftune.tools.reporting.tables import answer_cards, answer_sections, completion_cards, labels

FOUND: dict[str, Any] = {
    "questions": ["Who?", "Why?"],
    "answers": {"models/base": ["me", "a|b"], "out/sft-merged": ["you", "<b>"]},
}
REWARDS = {"rewards": {"models/base": [1.0, None], "out/sft-merged": [2.0, 3.0]}, "reward_model": "out/rm-merged"}


@pytest.mark.parametrize(
    "names, expected",
    [
        (["org/base", "o/sft-merged", "o/rl-merged"], ["base", "sft", "rl"]),
        (["o/sft", "o/sft-merged"], ["sft", "sft-merged"]),
        (["o/lr=1/sft-merged", "o/lr=2/sft-merged"], ["lr=1/sft", "lr=2/sft"]),
        (["base", "after"], ["base", "after"]),
        ([], []),
    ],
)
def test_labels(names: list[str], expected: list[str]) -> None:
    assert labels(names) == expected


def test_in_markdown() -> None:
    (section,) = answer_sections(FOUND)
    assert section.render() == (
        "## Answers\n"
        "\n"
        "| question | model | answer |\n"
        "| -------- | ----- | ------ |\n"
        "| Who?     | base  | me     |\n"
        "|          | sft   | you    |\n"
        "| Why?     | base  | a\\|b   |\n"
        "|          | sft   | \\<b>   |"
    )
    rewards, answers = answer_sections(FOUND | REWARDS | {"max_new_tokens": 8}, shown=1)
    assert rewards.rows == [("base", 1.0), ("sft", 2.5)] and "2 questions, by rm." in rewards.note
    assert len(answers.rows) == 2 and answers.note == (
        "Greedy, at most 8 tokens. The first 1 of 2 questions; all are in answers.json."
    )
    assert list(answer_sections({})) == []


def test_answers_must_fit_the_questions() -> None:
    with pytest.raises(ValueError, match="base has 1 answers to 2 questions"):
        list(answer_sections({"questions": ["a", "b"], "answers": {"base": ["x"]}}))


def test_on_the_page() -> None:
    page = details(cards=answer_cards(FOUND | REWARDS))
    assert "<p>Who?</p>" in page and "<dt>sft<small>reward 2</small></dt><dd>you</dd>" in page
    assert "<dt>base</dt><dd>a|b</dd>" in page, "an empty answer has no reward"
    assert "<dd>&lt;b&gt;</dd>" in page and "<details>" not in page
    many = {"questions": [f"{n}?" for n in range(9)], "answers": {"base": ["."] * 9}}
    assert "<summary>3 more questions</summary>" in details(cards=answer_cards(many))


def details(*, cards: Any = (), completions: Any = ()) -> str:
    return part("details", [], [], None, cards, 6, None, completions, [], "")


def test_completions_of_one_prompt_lie_together() -> None:
    asked = [{"role": "user", "content": "How?"}]
    lines = [
        {
            "step": step,
            "prompt": asked,
            "completion": [{"role": "assistant", "content": said}],
            "rewards": {"rm": reward},
        }
        for step, said, reward in ((1, "so", -0.25), (9, "thus", 1.5))
    ]
    page = details(completions=completion_cards(lines))
    assert page.count("<p>How?</p>") == 1
    assert "<dt>step 1<small>rm -0.25</small></dt><dd>so</dd><dt>step 9<small>rm 1.5</small></dt><dd>thus</dd>" in page
