"""`hftune report`: one HTML page without further files, and the same in Markdown."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader
from markupsafe import Markup

from hftune.checkpoints.manifest import settings
from hftune.errors import ArgumentError
from hftune.publishing.folder import write_page
from hftune.tools.reporting import lineage
from hftune.tools.reporting.stages import (
    ASKED,
    EVALUATED,
    UNTRAINED,
    Points,
    Stage,
    read_stages,
    written_by_hftune,
)
from hftune.tools.reporting.svg import chart
from hftune.tools.reporting.tables import (
    SHOWN,
    Section,
    answer_cards,
    capabilities,
    completion_cards,
    format_cell,
    render_cards,
    reward_section,
    stages_section,
)
from hftune.visible import clock, code, html, markdown, say, visible

CSS = Path(__file__).with_name("style.css").read_text(encoding="utf-8").replace("\n", "")
NAME = "report"
_BLOCKS = "▁▂▃▄▅▆▇█"
_SPARK = 32


def main(argv: list[str]) -> None:
    """Run `hftune report FOLDER`."""
    if len(argv) != 1 or argv[0].startswith("-"):
        raise ArgumentError("`hftune report` needs one folder", fix="hftune report outputs/lora")
    say("\n".join(str(file) for file in write_pages(argv[0])))


def write_pages(folder: str | Path) -> tuple[Path, Path]:
    """Write `report.html` and `report.md` into a stage's or a pipeline's folder.

    Raises:
        ManifestError: There is nothing to report.
    """
    folder = Path(folder)
    written = folder / f"{NAME}.html", folder / f"{NAME}.md"
    with written_by_hftune(folder):
        # The stages with answers of `hftune ask` first: most readers open the page for them.
        found = sorted(read_stages(folder), key=lambda stage: stage.manifest.get("stage") != ASKED)
        # What evaluations have found is one table of all stages.
        stages = [stage for stage in found if stage.manifest.get("stage") != EVALUATED]
        evaluations = [stage.evaluation for stage in found if stage not in stages and stage.evaluation]
        path = " → ".join(_title(stage) for stage in stages if _trained(stage)) or "merge"
        title = f"{folder.resolve().name}: {path}"
        # Both are made before one is written: an error leaves the old pair as it is.
        pages = _html_report(title, stages, evaluations), markdown_page(title, stages, evaluations)
    for file, text in zip(written, pages, strict=True):
        write_page(file, text)
    return written


def _trained(stage: Stage) -> bool:
    return stage.manifest.get("stage") not in UNTRAINED


def _title(stage: Stage) -> str:
    said = stage.manifest.get("stage") != "merge" or stage.name.endswith("-merged")
    return stage.name if said else f"{stage.name} (merged)"


# --- what both show ---


def sections(stage: Stage) -> Iterator[Section]:
    """The tables of a stage: records, settings, figures, and what a merge's verification measured."""
    manifest = stage.manifest
    splits = lineage.trained_on(manifest)
    if splits:
        names = ("split", "read", "used", "dropped", "truncated", "tokens", "trained tokens", "files")
        yield Section("Records", names, [_records(split) for split in splits])
    if found := settings(manifest):
        shortened = [(name, f"{value:g}" if isinstance(value, float) else value) for name, value in found.items()]
        yield Section("Settings", ("argument", "value"), shortened)
    figures = {name: value for name, value in (manifest.get("metrics") or {}).items() if isinstance(value, int | float)}
    # Time and speed stand in the overview, and FLOPs of one stage compare with nothing.
    shown = {name: value for name, value in figures.items() if not name.endswith(("_per_second", "flos", "runtime"))}
    if shown:
        yield Section("Metrics", ("metric", "value"), sorted(shown.items()))
    verified = manifest.get("verified") or {}
    if verified:
        labels = {"largest": "largest difference", "mean": "mean difference", "same_greedy": "same greedy answers"}
        rows = [(label, verified[name]) for name, label in labels.items() if verified.get(name) is not None]
        yield Section("Merged model against base + adapter", ("measure", "value"), rows)


def _records(split: dict[str, Any]) -> tuple[object, ...]:
    dropped = split.get("dropped") or {}
    told = ", ".join(f"{number} {reason}" for reason, number in dropped.items()) or 0
    files = ", ".join(Path(file).name for file in (split.get("files") or [])[:6]) or None
    counts = (split.get("rows"), split.get("used"), told, split.get("truncated"), split.get("tokens"))
    return (split["split"], *counts, split.get("trained_tokens") or None, files)


# --- HTML: parts of pages, which the board and `hftune data check` show as well ---


@cache
def environment() -> Environment:
    """The templates of all pages. What runs say is escaped as `html` does, which also shows what a terminal obeys."""
    here = Path(__file__).parent
    made = Environment(autoescape=True, finalize=_safe, trim_blocks=True, loader=FileSystemLoader([here, here.parent]))
    # Text goes in as it is; only numbers are formatted as in Markdown, whose escapes mean nothing here.
    made.globals.update(cell=lambda value: value if isinstance(value, str) else format_cell(value), clock=clock)
    # Functions, not attributes: of an attribute that raises, Jinja makes nothing at all.
    made.globals.update(origin_of=origin_of, command_of=lambda stage: stage.command, sections=sections, chart=chart)
    made.globals.update(reward_section=reward_section, answer_cards=answer_cards, completion_cards=completion_cards)
    made.globals.update(SHOWN=SHOWN)
    return made


def _safe(value: Any) -> Markup:
    return as_html(value if hasattr(value, "__html__") else html(value))


def as_html(text: str) -> Markup:
    """A text that is HTML already: made by functions that escape what runs say."""
    return Markup(text)  # noqa: S704


def part(name: str, *given: Any) -> Markup:
    """A macro of parts.html: `table` of a `Section`, `figures` of curves, `origin` and `details` of a `Stage`."""
    return as_html(getattr(environment().get_template("parts.html").module, name)(*given))


def html_page(title: str, **parts: Any) -> str:
    """A page that loads no script, font or picture from anywhere: a report's, or one with a given `body`."""
    return environment().get_template("report.html").render(title=title, css=as_html(CSS), **parts)


def origin_of(stage: Stage) -> tuple[str, list[str]] | None:
    """The base, and of a distillation the teachers, that a stage was made from; None where that is not known."""
    base = (stage.manifest.get("base") or {}).get("name")
    return (str(base), [str(one["name"]) for one in stage.manifest.get("teachers") or []]) if base else None


def _html_report(title: str, stages: Sequence[Stage], evaluations: Sequence[Mapping[str, Any]]) -> str:
    trained = [stage.overview for stage in stages if _trained(stage)]
    return html_page(
        title,
        overview=stages_section(trained) if trained else None,
        capabilities=capabilities(evaluations),
        stages=[(_title(stage), stage) for stage in stages],
    )


# --- Markdown ---


def markdown_page(title: str, stages: Sequence[Stage], evaluations: Sequence[Mapping[str, Any]] = ()) -> str:
    """The page as Markdown; a curve is a line of blocks with its first, lowest, highest and last value."""
    trained = [stage.overview for stage in stages if _trained(stage)]
    measured = capabilities(evaluations)
    parts = [f"# {markdown(title)}", *([stages_section(trained).render()] if trained else [])]
    parts += [measured.render()] if measured else []
    for stage in stages:
        parts += [f"## {markdown(_title(stage))}", *_markdown(stage)]
    return "\n\n".join(parts) + "\n"


def _markdown(stage: Stage) -> Iterator[str]:
    if origin := origin_of(stage):
        taught = "".join(f", taught by {code(name)}" for name in origin[1])
        yield f"From {code(origin[0])}{taught}, {markdown(stage.manifest.get('status'))}."
    rewards = reward_section(stage.answers)
    found = [*([_curves(stage)] if stage.curves else []), *sections(stage), *([rewards] if rewards else [])]
    # Sections are headings of the second level, and here they stand below one.
    yield from (section.render().replace("## ", "### ", 1) for section in found)
    if cards := answer_cards(stage.answers):
        left = f"The first {SHOWN} of {len(cards)} questions; all are in answers.json.\n\n" if cards[SHOWN:] else ""
        yield f"### Answers\n\n{left}{render_cards(cards[:SHOWN])}"
    if sampled := completion_cards(stage.completions):
        yield f"### Answers in the course of training\n\n{render_cards(sampled)}"
    if stage.samples:
        yield "### What was trained\n\nText between « and » is trained; the rest is context."
        yield from (_fenced("".join(f"«{t}»" if b else t for t, b in sample)) for sample in stage.samples)
    if stage.command:
        yield f"### Command\n\n{_fenced(stage.command)}"


def _curves(stage: Stage) -> Section:
    rows = [
        (title if len(curves) == 1 else f"{title}, {label}", spark(points), *_figures(points))
        for title, curves in stage.curves.items()
        for label, points in curves.items()
    ]
    return Section("Curves", ("what", "over the steps", "first", "lowest", "highest", "last"), rows)


def _figures(points: Points) -> tuple[float, ...]:
    values = [value for value in points[1] if math.isfinite(value)] or [math.nan]
    return points[1][0], min(values), max(values), points[1][-1]


def spark(points: Points) -> str:
    """The values as a line of blocks of eight heights; a value that is not finite is an `x`."""
    values = list(points[1])
    if len(values) > _SPARK:
        # The last value always stays: it is what the run came to.
        values = [values[int(number * len(values) / _SPARK)] for number in range(_SPARK - 1)] + values[-1:]
    finite = [value for value in values if math.isfinite(value)]
    low, high = (min(finite), max(finite)) if finite else (0.0, 0.0)
    # A curve that never moves has no span to divide by.
    span = (high - low) or 1.0
    return "".join(_BLOCKS[min(7, int((value - low) / span * 8))] if math.isfinite(value) else "x" for value in values)


def _fenced(text: str) -> str:
    """The text as a Markdown block whose fence is longer than any in the text."""
    # An answer may hold fences of its own.
    text, fence = visible(text), "```"
    while fence in text:
        fence += "`"
    return f"{fence}\n{text}\n{fence}"
