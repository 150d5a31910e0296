"""Tables that pages share: of stages, by what they logged, and of answers beside each other."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from hftune.tools.reporting.page import part
from hftune.tools.reporting.stages import Stage, overview, series
from hftune.tools.reporting.tables import (
    answer_cards,
    format_cell,
    format_table,
    labels,
    render_cards,
    reward_section,
    stages_section,
)


def test_format_table() -> None:
    table = format_table(["stage", "steps", "loss"], [("pt", 1200, 2.5), ("sft", None, 10.25)])

    assert table == (
        "| stage | steps |   loss |\n| ----- | ----: | -----: |\n| pt    | 1,200 | 2.5000 |\n| sft   |     - |  10.25 |"
    )


def test_format_table_counts_chinese_characters_as_two_columns() -> None:
    table = format_table(["问题", "a"], [("你好吗", "x"), ("hi", "y")])

    assert table == (
        "| 问题   | a   |\n"
        "| ------ | --- |\n"
        "| 你好吗 | x   |\n"
        "| hi     | y   |"
    )  # fmt: skip


def test_format_table_of_odd_rows() -> None:
    lines = format_table(["a", "b"], [("x" * 500, 1), ("y", 2)]).splitlines()
    assert len(lines[2]) > 500 and len(lines[3]) < 80, "one long cell widens no other"
    assert format_table(["a", "b"], []) == "| a   | b   |\n| --- | --- |"
    with pytest.raises(ValueError, match="1 cells under 2 headers"):
        format_table(["a", "b"], [("x",)])


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "-"),
        (1234567, "1,234,567"),
        (-0.69314, "-0.6931"),
        (2e-5, "2.00e-05"),
        (123.44, "123.4"),
        (12345.6, "12,346"),
        (float("nan"), "nan"),
        ("a|b", r"a\|b"),
        (r"a\|b", r"a\\\|b"),  # the backslash is text, and must not undo the escape of the pipe
        ("one\ntwo\r\nthree\n", "one<br>two<br>three"),
        ("<think>x</think>", r"\<think>x\</think>"),
    ],
)
def test_format_cell(value: object, text: str) -> None:
    assert format_cell(value) == text


def test_sections() -> None:
    section = stages_section([overview("pt", {}, []), ("rm", 10, None, 0.5, None, None, None)])
    title, note, table = section.render().split("\n\n")
    assert title == "## Stages" and note.startswith("The last loss is the mean of the last 10%")
    assert re.sub(" +", " ", table.splitlines()[-1]) == "| rm | 10 | - | 0.5000 | - | - | - |"
    assert stages_section([]).render().endswith("Nothing to show.")


def test_series_are_in_order_of_steps() -> None:
    lines = [(1, 3.0), (3, 1.0), (2, 2.0), (3, 0.5)]  # out of order, and a step that was logged again
    logged = [{"step": step, "loss": loss} for step, loss in lines] + [{"step": 1, "eval_loss": 2.5}]
    assert series(logged, "loss") == ([1, 2, 3], [3.0, 2.0, 0.5])
    assert series(logged, "absent") == ([], [])


# 20 losses: 19 down to 0. The last tenth is two of them, 1 and 0.
_LOSSES = [{"loss": float(19 - step), "step": step} for step in range(20)]
_SAID = {"steps": 20, "trained_tokens": 1000, "wall_seconds": 50.0, "metrics": {"train_runtime": 40.0, "note": "a"}}


@pytest.mark.parametrize(
    ("manifest", "logged", "row"),
    [
        (_SAID, _LOSSES, (20, 19.0, 0.5, 1000, 25.0, 50.0)),  # 1000 tokens in the 40 seconds of training
        (_SAID | {"train_seconds": 80.0}, [], (20, None, None, 1000, 12.5, 50.0)),  # of all starts
        ({"metrics": None}, [], (None,) * 6),
        ({"trained_tokens": 10, "metrics": {"train_runtime": 5.0}}, [{"loss": 1.0, "step": 7}], (7, 1, 1, 10, 2, 5)),
        ({"trained_tokens": 10, "wall_seconds": 4}, [], (None, None, None, 10, 2.5, 4)),
    ],
)
def test_overview(manifest: dict[str, Any], logged: list[dict[str, Any]], row: tuple[object, ...]) -> None:
    assert overview("sft", manifest, logged) == ("sft", *row)


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


def test_in_a_terminal_and_in_markdown() -> None:
    assert render_cards(answer_cards(FOUND | REWARDS)) == (
        "- asked: Who?\n  - base (reward 1): me\n  - sft (reward 2): you\n"
        "- asked: Why?\n  - base: a\\|b\n  - sft (reward 3): \\<b>"
    )
    rewards = reward_section(FOUND | REWARDS)
    assert rewards and rewards.rows == [("base", 1.0), ("sft", 2.5)] and "2 questions, by rm." in rewards.note
    assert reward_section(FOUND) is None and answer_cards({}) == []


def test_answers_must_fit_the_questions() -> None:
    with pytest.raises(ValueError, match="base has 1 answers to 2 questions"):
        answer_cards({"questions": ["a", "b"], "answers": {"base": ["x"]}})


def test_on_the_page() -> None:
    page = details(answers=FOUND | REWARDS)
    assert "<p>Who?</p>" in page and "<dt>sft<small>reward 2</small></dt><dd>you</dd>" in page
    assert "<dt>base</dt><dd>a|b</dd>" in page, "an empty answer has no reward"
    assert "<dd>&lt;b&gt;</dd>" in page and "<details>" not in page
    many = {"questions": [f"{n}?" for n in range(9)], "answers": {"base": ["."] * 9}}
    assert "<summary>3 more questions</summary>" in details(answers=many)


def details(**found: Any) -> str:
    return part("details", Stage("sft", Path("sft"), {}, **found))


def test_completions_of_one_prompt_lie_together() -> None:
    asked = [{"role": "user", "content": "How?"}]
    lines = [
        {
            **{"step": step, "prompt": asked, "rewards": {"rm": reward}},
            "completion": [{"role": "assistant", "content": said}],
        }
        for step, said, reward in ((1, "so", -0.25), (9, "thus", 1.5))
    ]
    page = details(completions=lines)
    assert page.count("<p>How?</p>") == 1
    assert "<dt>step 1<small>rm -0.25</small></dt><dd>so</dd><dt>step 9<small>rm 1.5</small></dt><dd>thus</dd>" in page
