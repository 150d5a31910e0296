"""The board's pages as HTML: all runs, one run, several compared, a pipeline. What runs say is escaped."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hftune.errors import ManifestError
from hftune.opening.files import MIB
from hftune.opening.yaml_file import read_yaml_text
from hftune.tools.board.found import Found, number
from hftune.tools.board.layout import page, part, pre, state
from hftune.tools.board.pipelines import ACTIONS, Pipeline
from hftune.tools.reporting.history import StageSummary
from hftune.tools.reporting.lineage import parents_of
from hftune.tools.reporting.page import html_charts, html_details, html_origin, html_table
from hftune.tools.reporting.shapes import SHAPES
from hftune.tools.reporting.stages import Points, Stage, curves_of, read_texts, with_speed
from hftune.tools.reporting.svg import chart
from hftune.tools.reporting.tables import Section
from hftune.tools.watching.runs import FINISHED, RUNNING, SILENT, Watched, last_words, tail
from hftune.visible import clock, html, progress_figures

Fields = Mapping[str, Sequence[str]]
_DRAWN = 12
"""Runs of the first page that have their curve there."""
_COMPARED = 6
"""As many as there are colours."""
_LARGEST = 16 * MIB
_LINES = 200
_DEPTH = 20


# --- all runs ---------------------------------------------------------------------------------------------------------


def overview(found: Found, asked: Fields) -> str:
    """The first page: every run, and every pipeline."""
    again = "".join(f"<li><code>{html(top)}</code></li>" for top in found.tops)
    body = (
        f'<form action="compare">{part("part/overview", overview_part(found, asked))}'
        '<p class="row"><button>Compare what is ticked</button></p></form>'
        f"<details><summary>Folders</summary><ul>{again}</ul></details>"
    )
    return page("hftune board", body)


def overview_part(found: Found, asked: Fields) -> str:
    """What of it changes."""
    runs = found.runs()
    trained = [run for run in runs if run.log.lines or run.state != FINISHED]
    cards = "".join(_card(found, run, drawn=place < _DRAWN) for place, run in enumerate(trained))
    # Merged models and answers have no curve, and nothing in them changes.
    further = "".join(f"<li>{_link(found, run)}</li>" for run in runs if run not in trained)
    made = f"<details><summary>Merged models, answers</summary><ul>{further}</ul></details>" if further else ""
    none = "<p>No run has begun in these folders. A run appears here with its first step.</p>"
    lines = "".join(
        f'<li><a data-key="{one.id}" href="pipeline/{one.id}">{html(one.name)}</a> {state(one.state())}</li>'
        for one in found.pipelines.all()
    )
    pipelines = f"<h2>Pipelines</h2><ul>{lines}</ul>" if lines else ""
    return f'<h2>Runs</h2><div class="cards">{cards}</div>{made}{"" if runs else none}{pipelines}'


def _card(found: Found, run: Watched, *, drawn: bool) -> str:
    key = number(run.folder)
    curves = curves_of(run.log.lines) if drawn else {}
    # In RL the loss says little.
    title = next((name for name in ("Reward", "Loss") if name in curves), "")
    return (
        f'<div class="card"><h3>{_link(found, run)}{state(run.state)}</h3>'
        f"{_progress(run)}{f'<small>{title}</small>{chart(curves[title], title)}' if title else ''}"
        f'<label><input type="checkbox" name="run" value="{key}" data-key="c{key}"> compare</label></div>'
    )


def _link(found: Found, run: Watched) -> str:
    key = number(run.folder)
    return f'<a data-key="{key}" href="run/{key}">{html(found.name(run))}</a>'


def _progress(run: Watched) -> str:
    moment = run.moment()
    left = [f"{clock(moment.seconds_left)} left"] if moment.seconds_left is not None else []
    steps = [f"step {moment.step}/{moment.max_steps}"] if moment.max_steps else []
    bar = (
        f'<progress value="{min(moment.step, moment.max_steps)}" max="{moment.max_steps}"></progress>' if steps else ""
    )
    said = ", ".join([*steps, *progress_figures(moment.figures, left)])
    fault = f'<p class="fault">{html(run.fault)}</p>' if run.fault else ""
    quiet = f"<p>nothing was written for {clock(run.quiet())}</p>" if run.state == SILENT else ""
    return f'{bar}<p class="figures">{html(said)}</p>{quiet}{fault}'


# --- one run ----------------------------------------------------------------------------------------------------------


def run(found: Found, asked: Fields) -> str:
    """The page of a run."""
    one = found.run(asked["id"][0])
    stage = _stage(found, one)
    body = [
        f"<h1>{html(found.name(one))}</h1>{_read(lambda: html_origin(stage))}",
        part(f"../part/run/{number(one.folder)}", run_part(found, asked)),
        _lineage(found, one),
        # A link may lead out of the folder: nothing behind it is read.
        "" if one.fault else _read(lambda: html_details(_with_texts(stage))),
    ]
    return page(f"{found.name(one)} - hftune board", "".join(body), depth=1)


def run_part(found: Found, asked: Fields) -> str:
    """What of it changes: how far it is, its curves, and why it does not train."""
    one = found.run(asked["id"][0])
    saved = one.checkpoints()
    checkpoints = f"<p>Checkpoints: {', '.join(map(str, saved[-12:]))}</p>" if saved else ""
    parts = [state(one.state), _progress(one), html_charts(_curves(one)), checkpoints]
    if one.state not in (RUNNING, FINISHED) and not one.fault:
        name, lines = last_words(one.folder, one.top, 20)
        parts += [f"<h3>{html(name)}</h3>", pre(lines)] if lines else []
    return "".join(parts)


def _curves(run: Watched) -> dict[str, dict[str, Points]]:
    return curves_of(with_speed(run.log.lines))


def _stage(found: Found, run: Watched) -> Stage:
    """The run as a report has it, without what its further files hold."""
    return Stage(found.name(run), run.folder, run.manifest, StageSummary(run.name))


def _with_texts(stage: Stage) -> Stage:
    read_texts(stage, _LARGEST)
    return stage


def _read(make: Callable[[], str]) -> str:
    """HTML made of a run's files, or why they cannot be shown: they may be of another shape than hftune writes."""
    try:
        return make()
    except ManifestError as error:
        return f'<p class="fault">{html(error)}</p>'
    except SHAPES:
        return '<p class="fault">its files have another shape than those that hftune writes</p>'


def _lineage(found: Found, run: Watched) -> str:
    """What a run was made from, by the manifests of the runs that are watched."""
    known = {one.folder: one for one in found.runs()}

    def below(manifest: Mapping[str, Any], depth: int, seen: tuple[Path, ...]) -> Iterator[str]:
        for name, role, _ in parents_of(dict(manifest)):
            # By its text alone: a name of somebody's manifest is not looked up on the disk.
            place = Path(os.path.abspath(name.replace("\x00", "")))
            one = known.get(place)
            link = f'<a href="{number(place)}">{html(name)}</a>' if one else f"<code>{html(name)}</code>"
            inner = ""
            if one is not None and depth < _DEPTH and place not in seen:
                inner = "".join(below(one.manifest, depth + 1, (*seen, place)))
            yield f"<li>{html(role)}: {link}{f'<ul>{inner}</ul>' if inner else ''}</li>"

    made = _read(lambda: "".join(below(run.manifest, 0, (run.folder,))))
    asked = "<p><code>hftune lineage</code> also reads every byte, and says whether all of it still holds.</p>"
    return f'<h3>Made from</h3><div class="lineage"><ul>{made}</ul>{asked}</div>' if made else ""


# --- several ----------------------------------------------------------------------------------------------------------


def compare(found: Found, asked: Fields) -> str:
    """The page on which runs are compared."""
    runs = _chosen(found, asked)
    body = [
        "<h1>Compared</h1>",
        part("part/compare", compare_part(found, asked)),
        _read(lambda: "".join(html_table(section) for section in _differences(found, runs) if section.rows)),
    ]
    return page("compared - hftune board", "".join(body))


def compare_part(found: Found, asked: Fields) -> str:
    """What of it changes: the curves of all runs over each other."""
    runs = _chosen(found, asked)
    if len(runs) < 2:
        return '<p>Tick two runs or more on the <a href="./">first page</a>.</p>'
    links = "".join(f"<li>{_link(found, one)} {state(one.state)}</li>" for one in runs)
    over: dict[str, dict[str, Points]] = {}
    for one in runs:
        for title, curves in _curves(one).items():
            for label, points in curves.items():
                # A figure for each curve of a run: training and held-out losses of six runs would be twelve lines.
                name = f"{title}, {label}" if title in ("Loss", "Reward", "Reward margin", "Accuracy") else title
                # All of them from the start, so that a run has one colour in all figures.
                over.setdefault(name, {found.name(other): ([], []) for other in runs})[found.name(one)] = points
    return f"<ul>{links}</ul>{html_charts(over)}"


def _chosen(found: Found, asked: Fields) -> list[Watched]:
    wanted = {*asked.get("run", [])}
    return [one for one in found.runs() if number(one.folder) in wanted][:_COMPARED]


def _differences(found: Found, runs: Sequence[Watched]) -> Iterator[Section]:
    """Tables of the arguments that differ, and of what was measured."""
    names = [found.name(one) for one in runs]
    arguments = [_arguments(one.manifest) for one in runs]
    note = "Of those that all of them have."
    yield Section("Arguments that differ", ("argument", *names), _differing(arguments), note)
    metrics = [one.manifest.get("metrics") or {} for one in runs]
    measured = sorted({name for column in metrics for name in column})
    rows = [(name, *(_cell(column.get(name)) for column in metrics)) for name in measured]
    yield Section("Metrics", ("metric", *names), rows)


def _differing(columns: Sequence[Mapping[str, Any]]) -> list[tuple[object, ...]]:
    """Rows of what all columns have, and not all alike."""
    shared = sorted(set.intersection(*(set(column) for column in columns))) if columns else []
    # As texts: lists and objects compare as they are shown, and 1 and true do not.
    differing = [name for name in shared if len({repr(column[name]) for column in columns}) > 1]
    return [(name, *(_cell(column[name]) for column in columns)) for name in differing]


def _cell(value: Any) -> object:
    return value if value is None or isinstance(value, int | float | str) else repr(value)


def _arguments(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """All arguments of a run by name, where each run has its own folder: without the folder's own."""
    groups = manifest.get("arguments") or {}
    found = {name: value for group in groups.values() for name, value in group.items()}
    return {name: value for name, value in found.items() if name not in ("output_dir", "logging_dir", "run_name")}


# --- a pipeline -------------------------------------------------------------------------------------------------------


def pipeline(found: Found, asked: Fields) -> str:
    """The page of a pipeline: its file, what it does, and what can be done with it."""
    one = found.pipelines.one(asked["id"][0])
    buttons = "".join(
        f'<button name="action" value="{action}"{_first(action)}>{word}</button>' for action, word in ACTIONS.items()
    )
    body = [
        f"<h1>{html(one.name)}</h1><p><code>{html(one.file)}</code></p>",
        f'<form method="post" class="row">{buttons}</form>',
        "<p>Stop asks for a checkpoint: the stage finishes its step and saves; Start resumes from it.</p>",
        part(f"../part/pipeline/{one.id}", pipeline_part(found, asked)),
        f"<h3>The file</h3>{_file(one)}",
        f'<p><a class="button" href="../new?from={one.id}">Change it in the form</a></p>' if _of_form(one) else "",
    ]
    return page(f"{one.name} - hftune board", "".join(body), depth=1)


def pipeline_part(found: Found, asked: Fields) -> str:
    """What of it changes: its state, what its command says, its runs."""
    one = found.pipelines.one(asked["id"][0])
    cards = "".join(
        f'<div class="card"><h3><a data-key="{number(run.folder)}" href="../run/{number(run.folder)}">'
        f"{html(run.name)}</a>{state(run.state)}</h3>{_progress(run)}</div>"
        for run in _of(found, one)
    )
    said = tail(one.log, _LINES)
    return f"<p>{state(one.state())}</p>{pre(said)}{f'<h3>Runs</h3><div class=cards>{cards}</div>' if cards else ''}"


def _of(found: Found, pipeline: Pipeline) -> Iterable[Watched]:
    folder = pipeline.folder
    return [] if folder is None else [run for run in found.runs() if run.folder.is_relative_to(folder.resolve())][::-1]


def _of_form(pipeline: Pipeline) -> bool:
    return pipeline.file.parent == pipeline.log.parent


def _file(pipeline: Pipeline) -> str:
    return _read(lambda: f"<pre>{html(read_yaml_text(pipeline.file))}</pre>")


def _first(action: str) -> str:
    return ' class="first"' if action == "run" else ""
