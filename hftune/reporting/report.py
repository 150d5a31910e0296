"""`report.md`: what a run of stages came to, on one page. And the one table that terminal and page share."""

from __future__ import annotations

import math
import os
import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from hftune.reporting.history import StageSummary

REPORT_NAME = "report.md"
WIDEST_PADDING = 60
"""Cells are padded to the widest of their column, but no further than this: one long answer must not widen all."""


@dataclass(frozen=True)
class Section:
    """A heading, a sentence about it, and a table."""

    title: str
    headers: Sequence[str]
    rows: Sequence[Sequence[object]]
    note: str = ""

    def render(self) -> str:
        parts = [
            f"## {self.title}",
            self.note,
            format_table(self.headers, self.rows) if self.rows else "Nothing to show.",
        ]
        return "\n\n".join(part for part in parts if part)


def write_report(
    folder: Path,
    stages: Sequence[StageSummary],
    sections: Sequence[Section] = (),
    plots: Mapping[str, Path] | None = None,
    title: str = "Training report",
) -> Path:
    """Write `report.md` into a folder.

    Args:
        folder: Where the report goes; made if need be.
        stages: One line each in the first table, in this order.
        sections: What follows, in this order; see the `*_section` functions below.
        plots: Caption → PNG; shown last, by links relative to the folder.
        title: The page's heading.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    parts = [f"# {title}", stages_section(stages).render(), *(section.render() for section in sections)]
    if plots:
        parts.append("## Curves")
        parts += [f"![{_in_brackets(caption)}]({_link(path, folder)})" for caption, path in plots.items()]
    path = folder / REPORT_NAME
    path.write_text("\n\n".join(parts) + "\n", encoding="utf-8")
    return path


def stages_section(stages: Sequence[StageSummary]) -> Section:
    """One row per stage: how long, how fast, and what it did to the loss."""
    headers = ["stage", "steps", "first loss", "last loss", "trained tokens", "trained tokens/s", "wall time (s)"]
    rows = [
        (
            stage.stage,
            stage.steps,
            stage.first_loss,
            stage.last_loss,
            stage.trained_tokens,
            stage.trained_tokens_per_second,
            stage.wall_seconds,
        )
        for stage in stages
    ]
    note = "The last loss is the mean of the last 10% of the logged ones. Losses of different stages do not compare."
    return Section("Stages", headers, rows, note)


def reward_model_section(stages: Sequence[StageSummary]) -> Section:
    """Held-out accuracy and margin of the reward models given, one row each."""
    rows = [
        (
            stage.stage,
            stage.metrics.get("eval_accuracy"),
            stage.metrics.get("eval_margin"),
            stage.metrics.get("eval_loss"),
        )
        for stage in stages
    ]
    note = "Accuracy: how often the chosen answer scores above the rejected one. Margin: by how much, on average."
    return Section("Reward model on held-out pairs", ["stage", "accuracy", "margin", "loss"], rows, note)


def mean_reward_section(before: float | None, after: float | None) -> Section:
    """Mean reward of the answers to held-out prompts, before and after reinforcement learning."""
    change = None if before is None or after is None else after - before
    note = "Mean reward of the answers to held-out prompts."
    return Section("Reward before and after RL", ["before RL", "after RL", "change"], [(before, after, change)], note)


def answers_section(questions: Sequence[str], answers: Mapping[str, Sequence[str | None]]) -> Section:
    """What each model answers, a row for each question and model.

    Args:
        questions: Shown beside the first model's answer.
        answers: Model name → its answers, in the order of the questions.
    """
    for model, given in answers.items():
        if len(given) != len(questions):
            raise ValueError(f"{model} has {len(given)} answers to {len(questions)} questions")
    models = list(answers)
    rows = [
        (question if model == models[0] else "", model, answers[model][number])
        for number, question in enumerate(questions)
        for model in models
    ]
    return Section("Answers", ["question", "model", "answer"], rows)


def format_table(headers: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A Markdown table that also reads well in a terminal: padded cells, numbers to the right, None as "-"."""
    for row in rows:
        if len(row) != len(headers):
            raise ValueError(f"a row of {len(row)} cells under {len(headers)} headers: {row!r}")
    numeric = [_all_numbers([row[column] for row in rows]) for column in range(len(headers))]
    lines = [[_escape(header) for header in headers], *([format_cell(cell) for cell in row] for row in rows)]
    widths = [max(3, *(min(_width(line[column]), WIDEST_PADDING) for line in lines)) for column in range(len(headers))]
    rule = ["-" * (width - 1) + ":" if right else "-" * width for width, right in zip(widths, numeric, strict=True)]
    return "\n".join(_join(line, widths, numeric) for line in [lines[0], rule, *lines[1:]])


def format_cell(value: object) -> str:
    """One value as a table shows it."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return _format_float(value)
    return _escape(str(value))


def _format_float(value: float) -> str:
    """About five digits, whatever the size; no exponent but for the very small."""
    size = abs(value)
    if not math.isfinite(value):
        return str(value)
    if 0 < size < 0.001:
        return f"{value:.2e}"
    decimals = 4 if size < 10 else 2 if size < 100 else 1 if size < 1000 else 0
    return f"{value:,.{decimals}f}"


def _escape(text: str) -> str:
    """Text that stays one cell: pipes and newlines would end it, a tag such as <think> would vanish from the page."""
    # Backslashes before a pipe are doubled, or they would undo the escape.
    text = re.sub(r"(\\*)\|", r"\1\1\\|", text.strip())
    return re.sub(r"\r\n|\r|\n", "<br>", text.replace("<", r"\<"))


def _all_numbers(cells: Sequence[object]) -> bool:
    known = [cell for cell in cells if cell is not None]
    return bool(known) and all(isinstance(cell, int | float) and not isinstance(cell, bool) for cell in known)


def _width(text: str) -> int:
    """Columns a text takes in a terminal: Chinese characters take two."""
    return sum(2 if unicodedata.east_asian_width(char) in "WF" else 1 for char in text)


def _join(cells: Sequence[str], widths: Sequence[int], numeric: Sequence[bool]) -> str:
    padded = []
    for cell, width, right in zip(cells, widths, numeric, strict=True):
        padding = " " * (width - _width(cell))
        padded.append(padding + cell if right else cell + padding)
    return "| " + " | ".join(padded) + " |"


def _in_brackets(caption: str) -> str:
    return re.sub(r"([\[\]\\])", r"\\\1", caption)


def _link(path: Path, folder: Path) -> str:
    return quote(Path(os.path.relpath(path, folder)).as_posix())
