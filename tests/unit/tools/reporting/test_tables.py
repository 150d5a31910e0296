"""The page and its tables, compared with the text a reader sees."""

from __future__ import annotations

import pytest

from hftune.tools.reporting.stages import StageSummary
from hftune.tools.reporting.tables import format_cell, format_table, stages_section


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


def test_sections() -> None:
    section = stages_section([StageSummary("pt"), StageSummary("rm", steps=10, last_loss=0.5)])
    assert section.render() == (
        "## Stages\n"
        "\n"
        "The last loss is the mean of the last 10% of the logged ones. Losses of different stages do not compare.\n"
        "\n"
        "| stage | steps | first loss | last loss | trained tokens | trained tokens/s | wall time (s) |\n"
        "| ----- | ----: | ---------- | --------: | -------------- | ---------------- | ------------- |\n"
        "| pt    |     - | -          |         - | -              | -                | -             |\n"
        "| rm    |    10 | -          |    0.5000 | -              | -                | -             |"
    )
    assert stages_section([]).render().endswith("Nothing to show.")
