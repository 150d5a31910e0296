"""Tables that terminal, Markdown and HTML share: of stages, of what models answered, of what was evaluated."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.cells import cell_len

from hftune.opening.json_file import LARGE, read_json
from hftune.tools.reporting.stages import OVERVIEW, RESULTS
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

    @property
    def numeric(self) -> list[bool]:
        """Of each column, whether it stands to the right."""
        return _numeric(self.rows, len(self.headers))

    def render(self) -> str:
        """The section as Markdown."""
        parts = [
            f"## {self.title}",
            markdown(self.note),
            format_table(self.headers, self.rows) if self.rows else "Nothing to show.",
        ]
        return "\n\n".join(part for part in parts if part)


def stages_section(rows: Sequence[Sequence[object]]) -> Section:
    """A table with one row a stage, as `overview` makes them: how long it took, how fast it was, and its losses."""
    note = "The last loss is the mean of the last 10% of the logged ones. Losses of different stages do not compare."
    return Section("Stages", OVERVIEW, rows, note)


def format_table(headers: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A Markdown table that also reads well in a terminal: padded cells, numbers to the right, None as "-"."""
    # A row that is too short would shift its cells under other headers without a word.
    for row in rows:
        if len(row) != len(headers):
            raise ValueError(f"a row of {len(row)} cells under {len(headers)} headers: {row!r}")
    numeric = _numeric(rows, len(headers))
    lines = [[markdown(header) for header in headers], *([format_cell(cell) for cell in row] for row in rows)]
    # Some readers of Markdown take fewer than three dashes for text.
    widths = [
        max(3, *(min(cell_len(line[column]), WIDEST_PADDING) for line in lines)) for column in range(len(headers))
    ]
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


def _numeric(rows: Sequence[Sequence[object]], columns: int) -> list[bool]:
    known = ([row[column] for row in rows if row[column] is not None] for column in range(columns))
    return [bool(cells) and all(type(cell) in (int, float) for cell in cells) for cells in known]


def _join(cells: Sequence[str], widths: Sequence[int], numeric: Sequence[bool]) -> str:
    padded = []
    for cell, width, right in zip(cells, widths, numeric, strict=True):
        padding = " " * (width - cell_len(cell))
        padded.append(padding + cell if right else cell + padding)
    return "| " + " | ".join(padded) + " |"


SHOWN = 6
"""Questions that a report shows at once: what `hftune ask` wrote may be many."""

Said = tuple[str, str, str]
"""Who answered, a note on it (a reward), and the answer."""
Card = tuple[str, list[Said]]
"""A question, and its answers."""


def labels(names: Sequence[str]) -> list[str]:
    """Short names of models: as few last parts of their paths as differ, `sft` for `outputs/x/sft-merged`."""
    deepest = max((len(Path(name).parts) for name in names), default=0)
    for depth in range(1, deepest + 1):
        tails = ["/".join(Path(name).parts[-depth:]) for name in names]
        # Without `-merged` where the names still differ: readers know stages, not steps of merging.
        for found in ([tail.removesuffix("-merged") for tail in tails], tails):
            if len(set(found)) == len(found):
                return found
    # Reached where the same name stands there twice.
    return list(names)


def answer_cards(found: Mapping[str, Any]) -> list[Card]:
    """A card a question of `answers.json`, with every model's answer and its reward.

    Raises:
        ValueError: A model has more answers than there are questions, or fewer: the file was edited, or is another's.
    """
    questions, answers, rewards = (found.get(name) or {} for name in ("questions", "answers", "rewards"))
    for model, given in answers.items():
        if len(given) != len(questions):
            raise ValueError(f"{model} has {len(given)} answers to {len(questions)} questions")
    names = dict(zip(answers, labels(list(answers)), strict=True))
    return [
        (question, [(names[model], _reward(rewards, model, number), answers[model][number]) for model in answers])
        for number, question in enumerate(questions)
    ]


def _reward(rewards: Mapping[str, Sequence[float | None]], model: str, number: int) -> str:
    value: Any = rewards[model][number] if model in rewards else None
    return "" if value is None else f"reward {value:.3g}" if isinstance(value, int | float) else f"reward {value}"


def completion_cards(lines: Sequence[Mapping[str, Any]]) -> list[Card]:
    """A card a prompt, with the answers that RL sampled for it."""
    by_prompt: dict[str, list[Said]] = {}
    for line in lines:
        entry = (f"step {line['step']}", rewards_of(line.get("rewards")), said(line.get("completion")))
        by_prompt.setdefault(said(line.get("prompt")), []).append(entry)
    return list(by_prompt.items())


def render_cards(cards: Sequence[Card]) -> str:
    """Cards as a list of Markdown that also reads well in a terminal: three columns of long texts fit none."""
    return "\n".join(line for card in cards for line in _lines(card))


def _lines(card: Card) -> Iterator[str]:
    question, answers = card
    # A word of ours comes first: a text that begins with `#` would be a heading.
    yield f"- asked: {markdown(question)}"
    for who, note, text in answers:
        yield f"  - {markdown(who)}{f' ({markdown(note)})' if note else ''}: {markdown(text)}"


def reward_section(found: Mapping[str, Any]) -> Section | None:
    """A table of the mean reward of each model's answers; None without rewards."""
    rewards = found.get("rewards")
    if not rewards:
        return None
    means = [_mean(values) for values in rewards.values()]
    note = f"Mean raw reward of the answers to {len(found['questions'])} questions"
    model = found.get("reward_model")
    note += f", by {labels([model])[0]}." if model else "."
    rows = list(zip(labels(list(rewards)), means, strict=True))
    return Section("Reward of the answers", ("model", "mean reward"), rows, note)


def _mean(values: Sequence[float | None]) -> float | None:
    # An empty answer has no reward.
    known = [value for value in values if isinstance(value, int | float)]
    return sum(known) / len(known) if known else None


def said(value: Any) -> str:
    """A text, or the last turn of a conversation."""
    return str(value[-1].get("content") if isinstance(value, list) and value else value)


def rewards_of(found: Mapping[str, Any] | None) -> str:
    """Rewards by name as one text: `length 0.5, rm -1.25`."""
    numbers = {name: value for name, value in (found or {}).items() if isinstance(value, int | float)}
    return ", ".join(f"{name} {value:.3g}" for name, value in numbers.items())


_NOTE = "In brackets: 95 % of bootstrap samples of the records."


def read_evaluation(folder: str | Path) -> dict[str, Any]:
    """What `evaluation.json` of a folder holds.

    Raises:
        ManifestError: It is not there, or damaged.
    """
    found: dict[str, Any] = read_json(Path(folder) / RESULTS, limit=LARGE)
    return found


def evaluation_sections(found: Mapping[str, Any]) -> list[Section]:
    """Tables of `evaluation.json`: figures, and differences where there are any."""
    made = [_table("Capabilities", found["models"], _NOTE)]
    if found.get("differences"):
        (against,) = labels([str(found["against"])])
        made.append(_table(f"Less {against}, on the same records", found["differences"]))
    return made


def _table(title: str, models: Mapping[str, Mapping[str, Any]], note: str = "") -> Section:
    tasks = list(dict.fromkeys(task for figures in models.values() for task in figures))
    rows = [
        (name, *(shown(figures.get(task)) for task in tasks))
        for name, figures in zip(labels(list(models)), models.values(), strict=True)
    ]
    return Section(title, ("model", *tasks), rows, note)


def shown(one: Mapping[str, float] | None) -> str | None:
    """A figure with its interval."""
    if one is None:
        return None
    value, low, high = (format_cell(float(one[name])) for name in ("value", "low", "high"))
    more = f", perplexity {format_cell(one['perplexity'])}" if "perplexity" in one else ""
    return f"{value} [{low}, {high}]{more}"


def capabilities(evaluations: Sequence[Mapping[str, Any]]) -> Section | None:
    """A table of the models of several evaluations, each once, in their order; None without one."""
    models: dict[str, dict[str, Any]] = {}
    for model, figures in (entry for evaluation in evaluations for entry in evaluation["models"].items()):
        models.setdefault(model, {}).update(figures)
    return _table("Capabilities", models, _NOTE) if models else None
