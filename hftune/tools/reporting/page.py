"""`hftune report`: one HTML page without further files, and the same in Markdown."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from hftune.errors import ArgumentError
from hftune.publishing.files import write_page
from hftune.tools.reporting import lineage
from hftune.tools.reporting.stages import ASKED, EVALUATED, UNTRAINED, Points, Stage, read_stages, written_by_hftune
from hftune.tools.reporting.svg import chart, short
from hftune.tools.reporting.tables import (
    Section,
    answer_sections,
    capabilities,
    capability_charts,
    completion_section,
    format_cell,
    html_answers,
    html_completions,
    reward_section,
    stages_section,
)
from hftune.visible import code, html, markdown, say, visible

CSS = """
:root{color-scheme:light dark;--bg:#fff;--fg:#1b1f24;--soft:#57606a;--rule:#d8dee4;--card:#f6f8fa;--mark:#d2f4d9;
--c0:#0b62c4;--c1:#c2500a;--c2:#1a7f37;--c3:#8250df;--c4:#bf3989;--c5:#0f766e}
@media(prefers-color-scheme:dark){:root{--bg:#0d1117;--fg:#e6edf3;--soft:#9aa4af;--rule:#30363d;--card:#161b22;
--mark:#124b26;--c0:#58a6ff;--c1:#f0883e;--c2:#56d364;--c3:#bc8cff;--c4:#f778ba;--c5:#2dd4bf}}
*{box-sizing:border-box}
body{margin:0;background:var(--bg);color:var(--fg);font:16px/1.5 system-ui,-apple-system,"Segoe UI",sans-serif}
main{max-width:1180px;margin:0 auto;padding:16px}
h1{font-size:1.6rem;line-height:1.25;overflow-wrap:anywhere}
h2{font-size:1.3rem;margin:2.2rem 0 .4rem;padding-top:.8rem;border-top:1px solid var(--rule);overflow-wrap:anywhere}
h3{font-size:1rem;margin:1.4rem 0 .4rem}
p,.none{color:var(--soft);margin:.3rem 0}
nav{display:flex;flex-wrap:wrap;gap:6px}
nav a{color:inherit;text-decoration:none;border:1px solid var(--rule);border-radius:99px;padding:4px 12px;
font-size:.9rem}
nav a:focus-visible,nav a:hover{border-color:var(--c0);color:var(--c0)}
code{overflow-wrap:anywhere}
.badge{margin-left:10px;font-size:.8rem;border:1px solid var(--c1);color:var(--c1);border-radius:99px;padding:2px 10px}
.charts{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,320px),1fr));gap:12px;margin-top:.8rem}
figure{margin:0;background:var(--card);border:1px solid var(--rule);border-radius:8px;padding:10px}
figcaption{font-weight:600;font-size:.95rem}
svg{display:block;width:100%;height:auto}
svg text{fill:var(--soft);font-size:12px}
svg .y{text-anchor:end}svg .x{text-anchor:middle}
.grid{stroke:var(--rule);stroke-width:1;fill:none}
.line{fill:none;stroke-width:2;stroke-linejoin:round}
path.c0{stroke:var(--c0)}path.c1{stroke:var(--c1)}path.c2{stroke:var(--c2)}path.c3{stroke:var(--c3)}path.c4{stroke:var(--c4)}path.c5{stroke:var(--c5)}
circle.c0{fill:var(--c0)}circle.c1{fill:var(--c1)}circle.c2{fill:var(--c2)}circle.c3{fill:var(--c3)}circle.c4{fill:var(--c4)}circle.c5{fill:var(--c5)}
i.c0{background:var(--c0)}i.c1{background:var(--c1)}i.c2{background:var(--c2)}i.c3{background:var(--c3)}i.c4{background:var(--c4)}i.c5{background:var(--c5)}
.legend{display:flex;flex-wrap:wrap;gap:14px;font-size:.85rem;color:var(--soft)}
.legend i{display:inline-block;width:14px;height:3px;border-radius:2px;margin-right:6px;vertical-align:middle}
.tables{display:flex;flex-wrap:wrap;gap:0 56px}.tables>div{max-width:100%}.tables>div.whole{flex-basis:100%}
.scroll{overflow-x:auto}
table{border-collapse:collapse;font-size:.9rem;font-variant-numeric:tabular-nums}
th,td{text-align:left;padding:5px 14px 5px 0;border-bottom:1px solid var(--rule);vertical-align:top}
th{color:var(--soft);font-weight:600;white-space:nowrap}
.n{text-align:right}
pre{background:var(--card);border:1px solid var(--rule);border-radius:8px;padding:10px;white-space:pre-wrap;
overflow-wrap:anywhere;font-size:.85rem;margin:.4rem 0}
.asked{background:var(--card);border:1px solid var(--rule);border-radius:8px;padding:10px 12px;margin:.5rem 0}
.asked p{color:var(--fg);font-weight:600;margin:0 0 .4rem;white-space:pre-wrap;overflow-wrap:anywhere}
.asked dl{display:grid;grid-template-columns:fit-content(14rem) 1fr;gap:6px 18px;margin:0;font-size:.9rem}
.asked dt{color:var(--soft);overflow-wrap:anywhere}
.asked small{display:block;font-size:.8rem;font-variant-numeric:tabular-nums}
.asked dd{margin:0;white-space:pre-wrap;overflow-wrap:anywhere}
@media(max-width:600px){.asked dl{grid-template-columns:1fr;gap:0}.asked dd{margin:0 0 .6rem}
.asked small{display:inline;margin-left:.7em}}
mark{background:var(--mark);color:inherit;border-radius:3px}
summary{cursor:pointer;color:var(--soft);margin-top:1rem}
li{overflow-wrap:anywhere}
""".replace("\n", "")


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
        stages, evaluations = _apart(_asked_first(read_stages(folder)))
        path = " → ".join(_title(stage) for stage in stages if _trained(stage)) or "merge"
        title = f"{folder.resolve().name}: {path}"
        # Both are made before one is written: an error leaves the old pair as it is.
        pages = html_page(title, stages, evaluations), markdown_page(title, stages, evaluations)
    for file, text in zip(written, pages, strict=True):
        write_page(file, text)
    return written


def _apart(stages: Sequence[Stage]) -> tuple[list[Stage], list[Mapping[str, Any]]]:
    """The stages, and what evaluations have found: one table says it of all stages."""
    evaluated = [stage for stage in stages if stage.manifest.get("stage") == EVALUATED]
    return [stage for stage in stages if stage not in evaluated], [
        one.evaluation for one in evaluated if one.evaluation
    ]


def _trained(stage: Stage) -> bool:
    return stage.manifest.get("stage") not in UNTRAINED


def _title(stage: Stage) -> str:
    said = stage.manifest.get("stage") != "merge" or stage.name.endswith("-merged")
    return stage.name if said else f"{stage.name} (merged)"


def _asked_first(stages: Sequence[Stage]) -> list[Stage]:
    """The stages with answers of `hftune ask` first: most readers open the page for them."""
    # Sorting is stable: the others keep their order.
    return sorted(stages, key=lambda stage: stage.manifest.get("stage") != ASKED)


# --- what both show ---


def sections(stage: Stage) -> Iterator[Section]:
    """The tables of a stage: records, settings, figures, and what a merge's verification measured."""
    manifest = stage.manifest
    splits = lineage.trained_on(manifest)
    if splits:
        names = ("split", "read", "used", "dropped", "truncated", "tokens", "trained tokens", "files")
        yield Section("Records", names, [_records(split) for split in splits])
    settings = lineage.settings(manifest)
    if settings:
        shortened = [(name, f"{value:g}" if isinstance(value, float) else value) for name, value in settings.items()]
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


def _answers(stage: Stage) -> Iterator[Section]:
    """Tables of what models answered: before and after training, and during RL."""
    yield from answer_sections(stage.answers)
    if stage.completions:
        yield completion_section(stage.completions)


# --- HTML ---


def html_page(title: str, stages: Sequence[Stage], evaluations: Sequence[Mapping[str, Any]] = ()) -> str:
    """The page as HTML that loads no script, font or picture from anywhere."""
    trained = [stage for stage in stages if _trained(stage)]
    overview = stages_section([_named(stage) for stage in trained]) if trained else None
    links = "".join(f'<a href="#s{number}">{html(_title(stage))}</a>' for number, stage in enumerate(stages))
    body = [
        f"<h1>{html(title)}</h1>",
        f"<nav>{links}</nav>",
        *([html_table(overview)] if overview else []),
        _html_capabilities(evaluations),
        *(_html_stage(number, stage) for number, stage in enumerate(stages)),
    ]
    return html_document(title, "".join(body))


def html_document(title: str, body: str) -> str:
    """A page of HTML that loads no script, font or picture from anywhere, in the look of reports."""
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        # Nothing is loaded and nothing runs, whatever found its way in here.
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; "
        'img-src data:">'
        # Else browsers ask the server, or the disk, for a favicon.
        '<link rel="icon" href="data:,">'
        f"<title>{html(title)}</title><style>{CSS}</style></head>\n<body><main>{body}</main></body></html>\n"
    )


def _html_capabilities(evaluations: Sequence[Mapping[str, Any]]) -> str:
    found = capabilities(evaluations)
    return html_table(found) + html_figures(capability_charts(evaluations)) if found else ""


def _named(stage: Stage) -> Any:
    return replace(stage.summary, stage=stage.name)


def _teachers(stage: Stage) -> list[str]:
    """Of a distillation, the models that it learnt from."""
    return [str(teacher["name"]) for teacher in stage.manifest.get("teachers") or []]


def _html_stage(number: int, stage: Stage) -> str:
    status = stage.manifest.get("status")
    badge = "" if status == "complete" else f'<span class="badge">{html(str(status))}</span>'
    parts = [
        f'<section id="s{number}"><h2>{html(_title(stage))}{badge}</h2>{html_origin(stage)}',
        html_charts(stage.curves),
        html_details(stage),
        "</section>",
    ]
    return "".join(parts)


def html_origin(stage: Stage) -> str:
    """What the stage was made from, as HTML; empty where that is not known."""
    base = (stage.manifest.get("base") or {}).get("name")
    taught = "".join(f", taught by <code>{html(name)}</code>" for name in _teachers(stage))
    return f'<p class="from">from <code>{html(str(base))}</code>{taught}</p>' if base else ""


def html_charts(curves: Mapping[str, Mapping[str, Points]]) -> str:
    """Curves as HTML: a figure for each title."""
    return html_figures({title: chart(found, title) for title, found in curves.items()})


def html_figures(pictures: Mapping[str, str]) -> str:
    """Pictures as HTML, each below its title."""
    charts = "".join(
        f"<figure><figcaption>{html(title)}</figcaption>{picture}</figure>" for title, picture in pictures.items()
    )
    return f'<div class="charts">{charts}</div>' if charts else ""


def html_details(stage: Stage) -> str:
    """Everything of a stage but its curves, as HTML: tables, samples, answers, notices and the command."""
    # The records' table has eight columns; others share a row.
    wide = ' class="whole"'
    tables = "".join(f"<div{wide if s.title == 'Records' else ''}>{html_table(s)}</div>" for s in sections(stage))
    parts = [
        f'<div class="tables">{tables}</div>',
        _html_samples(stage),
        _html_said(stage),
        _html_notices(stage),
        f"<h3>Command</h3><pre>{html(stage.command)}</pre>" if stage.command else "",
    ]
    return "".join(parts)


def _html_said(stage: Stage) -> str:
    """Answers of models as HTML: mean rewards, then a card for each question."""
    rewards = reward_section(stage.answers)
    parts = [html_table(rewards)] if rewards else []
    parts += [html_answers(stage.answers)] if stage.answers.get("questions") else []
    parts += [html_completions(stage.completions)] if stage.completions else []
    return "".join(parts)


def html_table(section: Section) -> str:
    """A table as HTML, numbers to the right."""
    numeric = [
        bool(section.rows) and all(isinstance(row[column], int | float | None) for row in section.rows)
        for column in range(len(section.headers))
    ]
    heads = "".join(f"<th{_right(n)}>{html(head)}</th>" for head, n in zip(section.headers, numeric, strict=True))
    rows = "".join(
        "<tr>" + "".join(f"<td{_right(n)}>{_cell(cell)}</td>" for cell, n in zip(row, numeric, strict=True)) + "</tr>"
        for row in section.rows
    )
    note = f"<p>{html(section.note)}</p>" if section.note else ""
    table = f'<div class="scroll"><table><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table></div>'
    return f"<h3>{html(section.title)}</h3>{note}{table}"


def _right(numeric: bool) -> str:
    return ' class="n"' if numeric else ""


def _cell(value: object) -> str:
    # Text goes in as it is; only numbers are formatted as in Markdown, whose escapes mean nothing here.
    return html(value if isinstance(value, str) else format_cell(value))


def _html_samples(stage: Stage) -> str:
    if not stage.samples:
        return ""
    shown = "".join(
        "<pre class=sample>"
        + "".join(f"<mark>{html(text)}</mark>" if trained else html(text) for text, trained in sample)
        + "</pre>"
        for sample in stage.samples
    )
    return f"<h3>What was trained</h3><p>Marked text is trained; the rest is context.</p>{shown}"


def _html_notices(stage: Stage) -> str:
    told = stage.manifest.get("notices") or []
    if not told:
        return ""
    entries = "".join(f"<li>{html(str(notice))}</li>" for notice in told)
    return f"<details><summary>Notices ({len(told)})</summary><ul>{entries}</ul></details>"


# --- Markdown ---


def markdown_page(title: str, stages: Sequence[Stage], evaluations: Sequence[Mapping[str, Any]] = ()) -> str:
    """The page as Markdown; a curve is a line of blocks with its first, lowest, highest and last value."""
    trained = [_named(stage) for stage in stages if _trained(stage)]
    parts = [f"# {markdown(title)}", *([stages_section(trained).render()] if trained else [])]
    measured = capabilities(evaluations)
    parts += [measured.render()] if measured else []
    for stage in stages:
        parts.append(f"## {markdown(_title(stage))}")
        base = (stage.manifest.get("base") or {}).get("name")
        taught = "".join(f", taught by {code(name)}" for name in _teachers(stage))
        parts += [f"From {code(base)}{taught}, {markdown(stage.manifest.get('status'))}."] if base else []
        if stage.curves:
            # Sections are headings of the second level, and here they stand below one.
            parts.append(_curves(stage).render().replace("## ", "### ", 1))
        found = [*sections(stage), *_answers(stage)]
        parts += [section.render().replace("## ", "### ", 1) for section in found]
        if stage.samples:
            parts.append("### What was trained\n\nText between « and » is trained; the rest is context.")
            parts += [_fenced("".join(f"«{t}»" if b else t for t, b in sample)) for sample in stage.samples]
        if stage.command:
            parts.append(f"### Command\n\n{_fenced(stage.command)}")
    return "\n\n".join(parts) + "\n"


def _curves(stage: Stage) -> Section:
    rows = [
        (title if len(curves) == 1 else f"{title}, {label}", spark(points), *_figures(points))
        for title, curves in stage.curves.items()
        for label, points in curves.items()
    ]
    return Section("Curves", ("what", "over the steps", "first", "lowest", "highest", "last"), rows)


def _figures(points: Points) -> tuple[str, ...]:
    values = [value for value in points[1] if math.isfinite(value)] or [math.nan]
    return tuple(short(value) for value in (points[1][0], min(values), max(values), points[1][-1]))


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
