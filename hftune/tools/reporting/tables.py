"""Tables that terminal, Markdown and HTML share: a heading, a sentence, headers and rows."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

from hftune.tools.reporting.history import StageSummary
from hftune.visible import markdown

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
        """The section as Markdown."""
        parts = [
            f"## {self.title}",
            markdown(self.note),
            format_table(self.headers, self.rows) if self.rows else "Nothing to show.",
        ]
        return "\n\n".join(part for part in parts if part)


def stages_section(stages: Sequence[StageSummary]) -> Section:
    """A table with one row a stage: how long it took, how fast it was, and its losses."""
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


def format_table(headers: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A Markdown table that also reads well in a terminal: padded cells, numbers to the right, None as "-"."""
    # A row that is too short would shift its cells under other headers without a word.
    for row in rows:
        if len(row) != len(headers):
            raise ValueError(f"a row of {len(row)} cells under {len(headers)} headers: {row!r}")
    numeric = [_all_numbers([row[column] for row in rows]) for column in range(len(headers))]
    lines = [[markdown(header) for header in headers], *([format_cell(cell) for cell in row] for row in rows)]
    # Some readers of Markdown take fewer than three dashes for text.
    widths = [max(3, *(min(_width(line[column]), WIDEST_PADDING) for line in lines)) for column in range(len(headers))]
    rule = ["-" * (width - 1) + ":" if right else "-" * width for width, right in zip(widths, numeric, strict=True)]
    return "\n".join(_join(line, widths, numeric) for line in [lines[0], rule, *lines[1:]])


def format_cell(value: object) -> str:
    """One value as a table shows it."""
    if value is None:
        return "-"
    # Before int, which a bool is as well.
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return _format_float(value)
    return markdown(value)


def _format_float(value: float) -> str:
    """A float with about five digits; with an exponent only where it is very small."""
    size = abs(value)
    if not math.isfinite(value):
        return str(value)
    if 0 < size < 0.001:
        return f"{value:.2e}"
    decimals = 4 if size < 10 else 2 if size < 100 else 1 if size < 1000 else 0
    return f"{value:,.{decimals}f}"


def _all_numbers(cells: Sequence[object]) -> bool:
    known = [cell for cell in cells if cell is not None]
    return bool(known) and all(isinstance(cell, int | float) and not isinstance(cell, bool) for cell in known)


def _width(text: str) -> int:
    """The columns that a text takes in a terminal: Chinese characters take two."""
    return sum(2 if unicodedata.east_asian_width(char) in "WF" else 1 for char in text)


def _join(cells: Sequence[str], widths: Sequence[int], numeric: Sequence[bool]) -> str:
    padded = []
    for cell, width, right in zip(cells, widths, numeric, strict=True):
        padding = " " * (width - _width(cell))
        padded.append(padding + cell if right else cell + padding)
    return "| " + " | ".join(padded) + " |"
