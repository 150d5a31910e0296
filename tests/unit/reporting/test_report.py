"""The page and its tables, compared with the text a reader sees."""

from __future__ import annotations

from pathlib import Path

import pytest

from hftune.reporting.history import StageSummary
from hftune.reporting.report import (
    answers_section,
    format_cell,
    format_table,
    mean_reward_section,
    reward_model_section,
    write_report,
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


def test_format_table_is_not_widened_by_one_long_cell() -> None:
    lines = format_table(["a", "b"], [("x" * 500, 1), ("y", 2)]).splitlines()

    assert len(lines[2]) > 500
    assert len(lines[3]) < 80


def test_format_table_without_rows_and_with_a_short_row() -> None:
    assert format_table(["a", "b"], []) == "| a   | b   |\n| --- | --- |"
    with pytest.raises(ValueError, match="1 cells under 2 headers"):
        format_table(["a", "b"], [("x",)])


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "-"),
        (True, "yes"),
        (0, "0"),
        (1234567, "1,234,567"),
        (0.0, "0.0000"),
        (-0.69314, "-0.6931"),
        (2e-5, "2.00e-05"),
        (99.999, "100.00"),
        (123.44, "123.4"),
        (12345.6, "12,346"),
        (float("nan"), "nan"),
        (float("-inf"), "-inf"),
        ("a|b", r"a\|b"),
        (r"a\|b", r"a\\\|b"),  # the backslash is text, and must not undo the escape of the pipe
        ("one\ntwo\r\nthree\n", "one<br>two<br>three"),
        ("<think>x</think>", r"\<think>x\</think>"),
    ],
)
def test_format_cell(value: object, text: str) -> None:
    assert format_cell(value) == text


def test_write_report(tmp_path: Path) -> None:
    reward_model = StageSummary("rm", steps=10, metrics={"eval_accuracy": 0.75, "eval_margin": 1.25})
    sections = [
        reward_model_section([reward_model]),
        mean_reward_section(-1.0, 0.5),
        answers_section(["Who?", "Why?"], {"base": ["me", "a|b"], "tuned": ["you", None]}),
    ]
    plots = {"SFT [loss]": tmp_path / "run" / "plots" / "sft loss.png", "other": tmp_path / "rm.png"}

    path = write_report(tmp_path / "run", [StageSummary("pt"), reward_model], sections, plots, title="A run")

    assert path == tmp_path / "run" / "report.md"
    assert path.read_text(encoding="utf-8") == (
        "# A run\n"
        "\n"
        "## Stages\n"
        "\n"
        "The last loss is the mean of the last 10% of the logged ones. Losses of different stages do not compare.\n"
        "\n"
        "| stage | steps | first loss | last loss | trained tokens | trained tokens/s | wall time (s) |\n"
        "| ----- | ----: | ---------- | --------- | -------------- | ---------------- | ------------- |\n"
        "| pt    |     - | -          | -         | -              | -                | -             |\n"
        "| rm    |    10 | -          | -         | -              | -                | -             |\n"
        "\n"
        "## Reward model on held-out pairs\n"
        "\n"
        "Accuracy: how often the chosen answer scores above the rejected one. Margin: by how much, on average.\n"
        "\n"
        "| stage | accuracy | margin | loss |\n"
        "| ----- | -------: | -----: | ---- |\n"
        "| rm    |   0.7500 | 1.2500 | -    |\n"
        "\n"
        "## Reward before and after RL\n"
        "\n"
        "Mean reward of the answers to held-out prompts.\n"
        "\n"
        "| before RL | after RL | change |\n"
        "| --------: | -------: | -----: |\n"
        "|   -1.0000 |   0.5000 | 1.5000 |\n"
        "\n"
        "## Answers\n"
        "\n"
        "| question | model | answer |\n"
        "| -------- | ----- | ------ |\n"
        "| Who?     | base  | me     |\n"
        "|          | tuned | you    |\n"
        "| Why?     | base  | a\\|b   |\n"
        "|          | tuned | -      |\n"
        "\n"
        "## Curves\n"
        "\n"
        "![SFT \\[loss\\]](plots/sft%20loss.png)\n"
        "\n"
        "![other](../rm.png)\n"
    )


def test_write_report_of_nothing(tmp_path: Path) -> None:
    text = write_report(tmp_path, []).read_text()

    assert "Nothing to show." in text
    assert "Curves" not in text


def test_change_needs_both_rewards() -> None:
    assert mean_reward_section(None, 0.5).rows == [(None, 0.5, None)]


def test_answers_must_fit_the_questions() -> None:
    with pytest.raises(ValueError, match="base has 1 answers to 2 questions"):
        answers_section(["a", "b"], {"base": ["x"]})
