"""What `hftune evaluate` has found, as tables; and over the stages of a pipeline as pictures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hftune.opening.json_file import LARGE, read_json
from hftune.tools.reporting.answers import labels
from hftune.tools.reporting.stages import RESULTS
from hftune.tools.reporting.svg import chart
from hftune.tools.reporting.tables import Section, format_cell

_NOTE = "In brackets: 95 % of bootstrap samples of the records."


def read_evaluation(folder: str | Path) -> dict[str, Any]:
    """What `evaluation.json` of a folder holds.

    Raises:
        ManifestError: It is not there, or damaged.
    """
    found: dict[str, Any] = read_json(Path(folder) / RESULTS, limit=LARGE, finite=False)
    return found


def evaluation_sections(found: Mapping[str, Any]) -> list[Section]:
    """Tables of `evaluation.json`: figures, and differences where there are any."""
    models: Mapping[str, Any] = found["models"]
    made = [_table("Capabilities", models, _NOTE)]
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
    models = _models(evaluations)
    return _table("Capabilities", models, _NOTE) if models else None


def capability_charts(evaluations: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """A picture of each task as SVG, by its title: the figure of one model after another, within its interval."""
    models = _models(evaluations)
    names = ", ".join(f"{number} {name}" for number, name in enumerate(labels(list(models))))
    found = {}
    for task in dict.fromkeys(task for figures in models.values() for task in figures):
        places = [number for number, figures in enumerate(models.values()) if task in figures]
        known = [figures[task] for figures in models.values() if task in figures]
        lines = {"figure": "value", "upper end": "high", "lower end": "low"}
        curves = {label: (places, [float(one[name]) for one in known]) for label, name in lines.items()}
        found[f"{task} ({names})"] = chart(curves, task)
    return found


def _models(evaluations: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for evaluation in evaluations:
        for model, figures in evaluation["models"].items():
            found.setdefault(model, {}).update(figures)
    return found
