"""The board's pages: all runs, one run, several compared. What runs say is escaped."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from markupsafe import Markup

from hftune.errors import ManifestError
from hftune.opening.files import MIB
from hftune.tools.reporting.page import CSS as REPORT
from hftune.tools.reporting.page import as_html, environment, part
from hftune.tools.reporting.runs import FINISHED, RUNNING, Runs, Watched
from hftune.tools.reporting.stages import SHAPES, Points, Stage, curves_of, read_texts
from hftune.tools.reporting.svg import chart
from hftune.tools.reporting.tables import Section
from hftune.visible import html

CSS = (
    REPORT
    + """
header a{color:inherit;text-decoration:none}
.cards{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,320px),1fr));gap:12px}
.card{background:var(--card);border:1px solid var(--rule);border-radius:8px;padding:10px;min-width:0}
.card h3{display:flex;flex-wrap:wrap;gap:8px;margin:0;overflow-wrap:anywhere}
.state,button{font-size:.8rem;border:1px solid var(--rule);border-radius:99px;padding:1px 9px;font-weight:400}
.state.running{border-color:var(--c2)}.state.silent,.state.stopped,.state.unreadable,.fault{border-color:var(--c1)}
.fault{color:var(--c1)}progress{display:block;width:100%;height:8px}
"""
).replace("\n", "")
_DRAWN = 12
"""Runs of the first page that have their curve there."""
_COMPARED = 6
"""As many as there are colours."""
_LARGEST = 16 * MIB


def number(place: Path) -> str:
    """The number of a run's folder in an address."""
    return hashlib.sha256(str(place).encode(errors="surrogateescape")).hexdigest()[:16]


class _Card(NamedTuple):
    """A run on a page; `chart` is HTML, empty for none."""

    run: Watched
    id: str
    name: str
    chart: Markup


class Pages:
    """Makes the pages from the files of runs, as they are now.

    Args:
        folders: Nothing outside of them is read.
    """

    def __init__(self, folders: Sequence[Path]) -> None:
        self._runs = Runs(folders)

    def overview(self) -> str:
        """The first page: every run, the one that was written last first."""
        runs = self._read()
        trained = [run for run in runs if run.log.lines or run.state != FINISHED]
        cards = [self._card(run, drawn=place < _DRAWN) for place, run in enumerate(trained)]
        # Merged models and answers have no curve, and nothing in them changes.
        further = [self._card(run) for run in runs if run not in trained]
        again = any(run.state != FINISHED for run in trained)
        return _page("hftune board", again=again, cards=cards, further=further, tops=self._runs.tops)

    def run(self, asked: str) -> str:
        """The page of a run.

        Raises:
            LookupError: There is none of this number.
        """
        one = next((run for run in self._read() if number(run.folder) == asked), None)
        if one is None:
            raise LookupError(asked)
        stage = Stage(self._name(one), one.folder, one.manifest)
        quiet = one.state not in (RUNNING, FINISHED) and not one.fault
        return _page(
            self._name(one),
            first="../",
            again=one.state == RUNNING,
            run=one,
            origin=_read(lambda: part("origin", stage)),
            charts=part("figures", curves_of(one.log.lines)),
            saved=one.checkpoints()[-12:],
            words=one.last_words(20) if quiet else ("", []),
            # A link may lead out of the folder: nothing behind it is read.
            details="" if one.fault else _read(lambda: part("details", _with_texts(stage))),
        )

    def compare(self, asked: Sequence[str]) -> str:
        """Curves of several runs over each other, and what differs between them; and a form that asks for others."""
        every = [self._card(run) for run in self._read()]
        runs = [one for one in every if one.id in asked][:_COMPARED]
        over: dict[str, dict[str, Points]] = {}
        for one in runs:
            for title, curves in curves_of(one.run.log.lines).items():
                for label, points in curves.items():
                    # A figure for each curve of a run: training and held-out losses of six runs would be twelve lines.
                    name = f"{title}, {label}" if title in ("Loss", "Reward", "Reward margin", "Accuracy") else title
                    # All of them from the start, so that a run has one colour in all figures.
                    over.setdefault(name, {other.name: ([], []) for other in runs})[one.name] = points
        tables = _read(lambda: as_html("").join(part("table", one) for one in _differences(runs) if one.rows))
        # Not loaded again by itself: that would take away what is being chosen.
        return _page("compared", every=every, runs=runs, charts=part("figures", over), tables=tables)

    def _read(self) -> list[Watched]:
        return self._runs.read()[::-1]

    def _name(self, run: Watched) -> str:
        """A run's name: with its folder's before it where several folders are watched."""
        alone = len(self._runs.tops) == 1 or run.folder == run.top
        return run.name if alone else f"{run.top.name}/{run.name}"

    def _card(self, run: Watched, *, drawn: bool = False) -> _Card:
        curves = curves_of(run.log.lines) if drawn else {}
        # In RL the loss says little.
        title = next((name for name in ("Reward", "Loss") if name in curves), "")
        picture = f"<small>{title}</small>{chart(curves[title], title)}" if title else ""
        return _Card(run, number(run.folder), self._name(run), as_html(picture))


def _page(title: str, *, again: bool = False, first: str = "./", **parts: Any) -> str:
    """A page; one that changes is loaded again by the browser."""
    template = environment().get_template("board/board.html")
    return template.render(title=title, again=again, first=first, css=as_html(CSS), **parts)


def _with_texts(stage: Stage) -> Stage:
    read_texts(stage, _LARGEST)
    return stage


def _read(make: Callable[[], Markup]) -> Markup:
    """HTML made of a run's files, or why they cannot be shown: they may be of another shape than hftune writes."""
    try:
        return make()
    except ManifestError as error:
        return as_html(f'<p class="fault">{html(error)}</p>')
    except SHAPES:
        return as_html('<p class="fault">its files have another shape than those that hftune writes</p>')


def _differences(runs: Sequence[_Card]) -> Iterator[Section]:
    """Tables of the arguments that differ, and of what was measured."""
    names = [one.name for one in runs]
    arguments = [_arguments(one.run.manifest) for one in runs]
    note = "Of those that all of them have."
    yield Section("Arguments that differ", ("argument", *names), _differing(arguments), note)
    metrics = [one.run.manifest.get("metrics") or {} for one in runs]
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
